"""Changing a folder all at once: stage, journal, rename.

A writer stages its files beside the ones they replace, writes a journal (staged name, final name, digest) and then
renames. Whoever opens the folder next completes a journal that is whole, or discards staged files that have none. So
a kill, a full disk or a power cut at any moment leaves the earlier state or the later one, never a mixture.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnport.errors import ArtifactError, AttnportError, UsageError

STAGING = ".attnport-staging"
JOURNAL = ".attnport-journal.json"
LOCK = ".attnport-lock"
OWN = (STAGING, JOURNAL, LOCK)


def _sync(path: Path) -> None:
    """Flushes a file or folder to disk, so that a rename never becomes visible before the data."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Transaction:
    """Files staged for one folder. Write to `path(name)`, `remove(name)` what goes; nothing shows until `commit`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staging = folder / STAGING
        self._removed: list[str] = []

    def path(self, name: str) -> Path:
        """Where to write the file that will be called `name` (relative, with `/`)."""
        staged = self.staging / name
        staged.parent.mkdir(parents=True, exist_ok=True)
        return staged

    def remove(self, name: str) -> None:
        """Deletes the file `name` at commit; one that is not there is no error."""
        self._removed.append(name)

    def staged(self) -> dict[str, str]:
        """Digest by name of every file staged so far."""
        return {
            path.relative_to(self.staging).as_posix(): _digest(path)
            for path in sorted(self.staging.rglob("*"))
            if path.is_file()
        }

    def commit(self) -> None:
        """Makes the staged files visible: writes the journal, renames, removes the journal."""
        files = self.staged()
        if not files and not self._removed:
            return
        for name in files:
            _sync(self.staging / name)
        draft = self.staging / JOURNAL
        draft.write_text(json.dumps({"files": files, "remove": self._removed}))
        _sync(draft)
        os.replace(draft, self.folder / JOURNAL)
        _sync(self.folder)
        _complete(self.folder)


def _complete(folder: Path) -> None:
    """Carries out a journal; repeating it after any interruption gives the same result."""
    journal = folder / JOURNAL
    try:
        plan = json.loads(journal.read_text())
        files, removed = dict(plan["files"]), list(plan["remove"])
    except (ValueError, KeyError, TypeError, OSError) as err:
        raise ArtifactError(
            f"{journal} is unreadable: {err}.", hint="It is not from attnport; move it away and make the folder again."
        ) from err
    # Checked whole before the first rename: a journal over damaged staged files must not be half carried out.
    for name, digest in files.items():
        staged, final = folder / STAGING / name, folder / name
        found = staged if staged.exists() else final
        if not found.is_file() or _digest(found) != digest:
            raise ArtifactError(
                f"{folder}: an interrupted write cannot be completed, {name} is damaged.", hint="Make the folder again."
            )
    for name in files:
        staged, final = folder / STAGING / name, folder / name
        if staged.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged, final)
            _sync(final.parent)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    journal.unlink()
    _sync(folder)
    shutil.rmtree(folder / STAGING, ignore_errors=True)


def recover(folder: Path) -> None:
    """Completes or discards what an interrupted writer left. The caller holds the lock."""
    if (folder / JOURNAL).exists():
        _complete(folder)
    elif (folder / STAGING).exists():
        shutil.rmtree(folder / STAGING)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder's lock; the kernel drops it when the process dies.

    Raises:
        UsageError: another process is writing.
    """
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            raise UsageError(
                f"{folder} is being written by another process.", hint="Wait for it, or use another folder."
            ) from err
        yield


@contextmanager
def transaction(folder: Path) -> Iterator[Transaction]:
    """Opens a folder for one change: recovers, yields the transaction, commits on a clean exit, discards otherwise.

    Raises:
        UsageError: the folder cannot be made, or another process is writing to it, or the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            recover(folder)
            change = Transaction(folder)
            try:
                yield change
                change.commit()
            except BaseException:
                # Before the journal stands nothing has changed; after it, the next opener completes the change.
                if not (folder / JOURNAL).exists():
                    shutil.rmtree(folder / STAGING, ignore_errors=True)
                raise
    except AttnportError:
        raise
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UsageError(
                f"{folder}: {err.strerror}; what was there before is untouched.", hint="Free some space and try again."
            ) from err
        if err.errno in (errno.EACCES, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EPERM):
            raise UsageError(f"{folder} cannot be written: {err.strerror}.") from err
        raise
