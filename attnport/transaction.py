"""Changing a folder so that a kill at any moment leaves the earlier state or the later one.

A change writes its files beside those of the folder. At its end it moves the files that it replaces or deletes aside,
renames the new ones into place, and renames the manifest last: that one rename makes the change. Whoever opens the
folder next and finds a new manifest that is still waiting moves the earlier files back; where none is waiting, what is
left of a change is deleted. No step is written down: where a file lies tells what has to be done with it.

A folder may come from somebody else, and what lies in its staging folder as well: no link in it is followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnport.errors import ArtifactError, UsageError

STAGING = ".attnport-staging"
LOCK = ".attnport-lock"
OWN = (STAGING, LOCK)
NEW, OLD, ADDED, LAST = "new", "old", "added", "last"
"""In `STAGING/<token>/`: new files; files moved aside; empty files that name those the folder lacked; the manifest."""
COMMIT_WAIT_S = 60.0
"""How long a reader waits for a writer that is renaming; renames take milliseconds."""


class BusyError(UsageError):
    """Another process is writing to the folder."""


def sync(path: Path) -> None:
    """Flushes a file or folder to disk, so that a rename never becomes visible before the data."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_place(folder: Path, name: str) -> None:
    """Refuses, before anything is renamed, a final name that a rename could not reach or would take elsewhere."""
    final = folder / name
    for parent in list(final.relative_to(folder).parents)[:-1]:
        if (folder / parent).is_symlink() or ((folder / parent).exists() and not (folder / parent).is_dir()):
            raise ArtifactError(
                f"{folder / parent} is in the way of {name}: it is not a folder of its own.", hint="Move it away."
            )
    if final.is_dir() and not final.is_symlink():
        raise ArtifactError(
            f"{final} is in the way: it is a folder, and a file of that name has to be written.", hint="Move it away."
        )


def _files(base: Path) -> list[str]:
    """The names of everything below `base` that is no folder; a link counts as a file and is not followed."""
    if base.is_symlink():
        return []
    found = (path for path in base.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(base).as_posix() for path in found)


def _sync_folders(base: Path, names: Iterable[str]) -> None:
    """Flushes the folders from `base` down that hold `names`, as far as they are there."""
    for parent in {base / parent for name in names for parent in Path(name).parents}:
        if parent.is_dir():
            sync(parent)


def _prune(folder: Path, names: Iterable[str]) -> None:
    """Removes folders that held `names` and are empty now."""
    parents = {folder / parent for name in names for parent in Path(name).parents} - {folder}
    for parent in sorted(parents, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            parent.rmdir()


class Transaction:
    """Files staged for one folder. Write to `path(name)`, `remove(name)` what goes; nothing shows until `commit`."""

    def __init__(self, folder: Path, last: str) -> None:
        self.folder = folder
        self._last = last
        # A name of its own: a child process that outlived a killed writer must not write into the next one's files.
        self._work = folder / STAGING / secrets.token_hex(8)
        self._removed = set[str]()

    def path(self, name: str) -> Path:
        """Where to write the file that will be called `name` (relative, with `/`)."""
        staged = self._work / LAST if name == self._last else self._work / NEW / name
        staged.parent.mkdir(parents=True, exist_ok=True)
        return staged

    def remove(self, name: str) -> None:
        """Deletes the file `name` at commit, unless it is staged again; one that is not there is no error."""
        (self._work / NEW / name).unlink(missing_ok=True)
        self._removed.add(name)

    def staged(self) -> dict[str, str]:
        """Digest by name of every file staged so far but the last. Raises ArtifactError when a link was staged."""
        found = {}
        for name in _files(self._work / NEW):
            path = self._work / NEW / name
            if path.is_symlink() or not path.is_file():
                raise ArtifactError(f"{path} was staged, but it is not a regular file.")
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def commit(self) -> None:
        """Makes the change, the last file at its end; without that one staged, nothing is changed.

        Killed or failed half way, it is taken back by `recover`.
        """
        if not (self._work / LAST).is_file():
            return
        new, old, added = self._work / NEW, self._work / OLD, self._work / ADDED
        staged = _files(new)
        for name in (*staged, *self._removed, self._last):
            _check_place(self.folder, name)
        replaced = [name for name in sorted({*staged, *self._removed}) if os.path.lexists(self.folder / name)]
        # All that needs space happens before the first rename, so that a full disk seldom stops the renames half way.
        old.mkdir()
        for name in replaced:
            (old / name).parent.mkdir(parents=True, exist_ok=True)
        missing = sorted(set(staged).difference(replaced))
        for name in missing:
            (added / name).parent.mkdir(parents=True, exist_ok=True)
            (added / name).touch()
        for name in staged:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            sync(new / name)
        sync(self._work / LAST)
        _sync_folders(added, missing)
        for parent in (self._work, self.folder / STAGING, self.folder):
            sync(parent)
        for name in replaced:
            (self.folder / name).replace(old / name)
        _sync_folders(old, replaced)
        for name in staged:
            (new / name).replace(self.folder / name)
        _sync_folders(self.folder, (*staged, *replaced))
        (self._work / LAST).replace(self.folder / self._last)
        with suppress(OSError):  # the change is made; that a power cut may still undo it is no reason to say it failed
            sync(self.folder)
        _prune(self.folder, self._removed)


def _undo(folder: Path, work: Path) -> None:
    """Takes back what a change renamed; repeating it after any interruption gives the same result."""
    moved, added = _files(work / OLD), _files(work / ADDED)
    for name in (*moved, *added):
        _check_place(folder, name)
    for name in added:
        (folder / name).unlink(missing_ok=True)
    for name in moved:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (work / OLD / name).replace(folder / name)
    _sync_folders(folder, (*moved, *added))
    _prune(folder, added)


def recover(folder: Path) -> None:
    """Takes back a change that was not finished, and deletes what any change left. The caller holds the lock.

    Raises:
        ArtifactError: something that is no file of ours is in the way of a file that has to be moved back.
    """
    staging = folder / STAGING
    if staging.is_dir() and not staging.is_symlink():
        for work in staging.iterdir():
            if not work.is_symlink() and os.path.lexists(work / LAST):
                _undo(folder, work)
        shutil.rmtree(staging)
    else:
        staging.unlink(missing_ok=True)


def undo_unfinished(folder: Path) -> None:
    """Brings a folder to a state that can be read: takes back what a killed writer did not finish.

    A writer at work is no obstacle while it stages (the earlier state stands) and is waited for while it renames.
    A folder that cannot be written is read as it stands: the manifest's digests tell which of its files may be used.

    Raises:
        ArtifactError: as `recover`.
        BusyError: a writer stays in the middle of its renames.
    """
    until = time.monotonic() + COMMIT_WAIT_S
    while os.path.lexists(folder / STAGING):
        try:
            with locked(folder):
                recover(folder)
        except BusyError:
            if not any((folder / STAGING).glob(f"*/{OLD}")):
                return
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        except OSError:
            return


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder's lock; the kernel drops it when the process dies.

    Raises:
        BusyError: another process is writing.
        OSError: the folder is not there or cannot be written.
    """
    path = folder / LOCK
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder deletes its lock file: a lock on a file that is gone, or on an earlier one, counts for nothing.
            if os.path.lexists(path) and os.path.samestat(os.fstat(handle), os.lstat(path)):
                break
        except FileNotFoundError:
            pass
        except BlockingIOError as err:
            os.close(handle)
            raise BusyError(
                f"{folder} is being written by another process.", hint="Wait for it, or use another folder."
            ) from err
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


@contextmanager
def transaction(folder: Path, last: str) -> Iterator[Transaction]:
    """Opens a folder for one change: recovers, yields the transaction, commits on a clean exit, discards otherwise.

    Args:
        last: The name of the file that is renamed last and makes the change: the manifest.

    Raises:
        BusyError: another process is writing to the folder.
        OSError: the folder cannot be made or written, or the disk is full.
        ArtifactError: as `recover`; or something that is no file of ours is in the way of a final name.
    """
    made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder):
            recover(folder)
            change = Transaction(folder, last)
            try:
                yield change
                change.commit()
            finally:
                with suppress(OSError):  # whoever opens the folder next tries again
                    recover(folder)
    finally:
        with suppress(OSError):  # one with something in it stays
            for place in made:
                place.rmdir()
