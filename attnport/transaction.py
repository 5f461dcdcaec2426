"""Changing a folder all at once: stage, journal, rename.

A writer stages its files beside the ones they replace, writes a journal (staged name, final name, digest) and then
renames. Whoever opens the folder next completes a journal that is whole, or discards staged files that have none. So
a kill, a full disk or a power cut at any moment leaves the earlier state or the later one, never a mixture.

A folder may come from somebody else, and so may a journal in it: every name is checked before it is followed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from attnport.errors import ArtifactError, AttnportError, UsageError

STAGING = ".attnport-staging"
JOURNAL = ".attnport-journal.json"
LOCK = ".attnport-lock"
OWN = (STAGING, JOURNAL, LOCK)
MAX_JOURNAL_BYTES = 16 << 20
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(name: object) -> str:
    """`name` if it is a plain relative path below a folder, with `/` between its parts. Raises ArtifactError."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts) or parts[0] in OWN:
        raise ArtifactError(f"{name!r} is not the name of a file inside an artifact folder.")
    return str(name)


def _check_place(folder: Path, name: str) -> None:
    """Refuses, before anything is renamed, a final name that a rename could not reach or would take elsewhere."""
    final = folder / name
    for parent in list(final.relative_to(folder).parents)[:-1]:
        if (folder / parent).is_symlink() or ((folder / parent).exists() and not (folder / parent).is_dir()):
            raise ArtifactError(f"{folder / parent} is in the way of {name}: it is not a folder of its own.")
    if final.is_dir() and not final.is_symlink():
        raise ArtifactError(f"{final} is in the way: it is a folder, and a file of that name has to be written.")


@dataclass(frozen=True)
class _Plan:
    """A journal: what to rename from `STAGING/<token>/`, with digests, and what to delete afterwards."""

    token: str
    files: dict[str, str]
    remove: list[str]


class Transaction:
    """Files staged for one folder. Write to `path(name)`, `remove(name)` what goes; nothing shows until `commit`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A name of its own: a child process that outlived a killed writer must not write into the next one's files.
        self._token = secrets.token_hex(8)
        self.staging = folder / STAGING / self._token
        self._removed: list[str] = []

    def path(self, name: str) -> Path:
        """Where to write the file that will be called `name` (relative, with `/`)."""
        staged = self.staging / _inside(name)
        staged.parent.mkdir(parents=True, exist_ok=True)
        return staged

    def remove(self, name: str) -> None:
        """Deletes the file `name` at commit, unless it is staged again; one that is not there is no error."""
        (self.staging / _inside(name)).unlink(missing_ok=True)
        self._removed.append(name)

    def staged(self) -> dict[str, str]:
        """Digest by name of every file staged so far. Raises ArtifactError when a link was staged."""
        found = sorted(path for path in self.staging.rglob("*") if path.is_symlink() or not path.is_dir())
        for path in found:
            if path.is_symlink() or not path.is_file():
                raise ArtifactError(f"{path} was staged, but it is not a regular file.")
        return {path.relative_to(self.staging).as_posix(): _digest(path) for path in found}

    def commit(self) -> None:
        """Makes the staged files visible: writes the journal, renames, removes the journal."""
        files = self.staged()
        plan = _Plan(
            self._token,
            files,
            sorted({name for name in self._removed if name not in files and os.path.lexists(self.folder / name)}),
        )
        if not files and not plan.remove:
            return
        for name in (*files, *plan.remove):
            _check_place(self.folder, name)
        # All that needs space happens before the journal, so that a full disk cannot stop the renames half way.
        for name in files:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            sync(self.staging / name)
        self.staging.mkdir(parents=True, exist_ok=True)
        draft = self.staging / JOURNAL
        draft.write_text(
            json.dumps({"token": plan.token, "files": plan.files, "remove": plan.remove}), encoding="utf-8"
        )
        sync(draft)
        for parent in _parents(self.staging, files):
            sync(parent)
        for parent in _parents(self.folder, files):
            sync(parent)
        sync(self.folder / STAGING)
        draft.replace(self.folder / JOURNAL)
        sync(self.folder)
        _carry_out(self.folder, plan)

    def discard(self) -> None:
        """Drops what was staged, and folders that were made for it and stayed empty."""
        names = [path.relative_to(self.staging).as_posix() for path in self.staging.rglob("*")]
        _discard(self.folder)
        _prune(self.folder, names)


def _parents(base: Path, names: Iterable[str]) -> list[Path]:
    """The folders from `base` down that hold `names`, deepest first."""
    found = {base / parent for name in names for parent in Path(name).parents} | {base}
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _prune(folder: Path, names: Iterable[str]) -> None:
    for parent in _parents(folder, names):
        if parent != folder and not parent.is_symlink():
            with suppress(OSError):
                parent.rmdir()


def _carry_out(folder: Path, plan: _Plan) -> None:
    """Renames, deletes, removes the journal; repeating it after any interruption gives the same result."""
    for name in plan.files:
        staged, final = folder / STAGING / plan.token / name, folder / name
        if staged.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(final)
    for name in plan.remove:
        (folder / name).unlink(missing_ok=True)
    _prune(folder, plan.remove)
    for parent in _parents(folder, (*plan.files, *plan.remove)):
        if parent.exists():
            sync(parent)
    (folder / JOURNAL).unlink()
    sync(folder)
    shutil.rmtree(folder / STAGING, ignore_errors=True)


def _read_journal(folder: Path) -> _Plan:
    journal = folder / JOURNAL
    try:
        if journal.is_symlink() or journal.stat().st_size > MAX_JOURNAL_BYTES:
            raise ValueError("a link, or far too large")
        plan = json.loads(journal.read_text(encoding="utf-8"))
        token, files, remove = plan["token"], plan["files"], plan["remove"]
        if not (isinstance(token, str) and isinstance(files, dict) and isinstance(remove, list)):
            raise TypeError("wrong types")
        if not all(isinstance(digest, str) for digest in files.values()) or "/" in _inside(token):
            raise TypeError("wrong types")
        for name in (*files, *remove):
            _check_place(folder, _inside(name))
        return _Plan(token, files, remove)
    except (ValueError, KeyError, TypeError, RecursionError, ArtifactError) as err:
        raise ArtifactError(
            f"{journal} is not a journal that can be followed: {err}",
            hint="It is not from attnport, or was damaged; move it away, or make the folder again elsewhere.",
        ) from err


def _complete(folder: Path) -> None:
    """Carries out the journal of a killed writer, or rolls back where its files are damaged and none is in place."""
    plan = _read_journal(folder)
    damaged, placed = [], []
    # Checked whole before the first rename: a journal over damaged staged files must not be half carried out.
    for name, digest in plan.files.items():
        staged, final = folder / STAGING / plan.token / name, folder / name
        if os.path.lexists(staged):
            if staged.is_symlink() or not staged.is_file() or _digest(staged) != digest:
                damaged.append(name)
        elif final.is_file() and not final.is_symlink() and _digest(final) == digest:
            placed.append(name)
        else:
            damaged.append(name)
    if damaged and placed:
        raise ArtifactError(
            f"{folder}: an interrupted write cannot be completed: {damaged[0]} is damaged and {placed[0]} is already "
            "replaced.",
            hint="Delete the folder and make it again.",
        )
    if damaged:
        (folder / JOURNAL).unlink()
        sync(folder)
        _discard(folder)
    else:
        _carry_out(folder, plan)


def _discard(folder: Path) -> None:
    staging = folder / STAGING
    if staging.is_symlink() or staging.is_file():
        staging.unlink()
    elif staging.exists():
        shutil.rmtree(staging)


def recover(folder: Path) -> None:
    """Completes or discards what an interrupted writer left. The caller holds the lock.

    Raises:
        ArtifactError: the journal is not one that can be followed, or its files are damaged half way.
    """
    if os.path.lexists(folder / JOURNAL):
        _complete(folder)
    else:
        _discard(folder)


def settle(folder: Path) -> None:
    """Brings a folder to a state that can be read: what a killed writer left is completed or discarded.

    A writer at work is no obstacle while it stages (the earlier state stands) and is waited for while it renames.
    A folder that cannot be written is read as it stands, unless a change is half in place.

    Raises:
        ArtifactError: as `recover`, or a change that is half in place cannot be completed here.
        BusyError: a writer stays in the middle of its renames.
    """
    until = time.monotonic() + COMMIT_WAIT_S
    while os.path.lexists(folder / JOURNAL) or os.path.lexists(folder / STAGING):
        half_way = os.path.lexists(folder / JOURNAL)
        try:
            with locked(folder):
                recover(folder)
        except BusyError:
            if not half_way:
                return
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        except OSError as err:
            if half_way:
                raise ArtifactError(
                    f"{folder}: an interrupted write has to be completed first, and cannot be: {err.strerror}.",
                    hint="Make the folder writable, free some space, and try again.",
                ) from err
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
def transaction(folder: Path) -> Iterator[Transaction]:
    """Opens a folder for one change: recovers, yields the transaction, commits on a clean exit, discards otherwise.

    Raises:
        BusyError: another process is writing to the folder.
        UsageError: the folder cannot be made or written, or the disk is full.
        ArtifactError: as `recover`; or something that is no file of ours is in the way of a final name.
    """
    made = False
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            made = True
        with locked(folder):
            recover(folder)
            change = Transaction(folder)
            try:
                yield change
                change.commit()
            finally:
                # Before the journal stands nothing has changed; after it, the next opener completes the change.
                if not os.path.lexists(folder / JOURNAL):
                    with suppress(OSError):
                        change.discard()
    except AttnportError:
        raise
    except OSError as err:
        _explain(folder, err)
        raise
    finally:
        if made:
            with suppress(OSError):
                folder.rmdir()


def _explain(folder: Path, err: OSError) -> None:
    """Raises a UsageError for a full disk or a folder that cannot be written; other errors are the caller's."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.path.lexists(folder / JOURNAL):
            raise UsageError(
                f"{folder}: {err.strerror}; the change is on disk but not yet in place.",
                hint="Free some space; the next verb that opens the folder puts it in place.",
            ) from err
        # A write that fails names no file: it may have been a temporary one, on another disk.
        raise UsageError(
            f"{folder}: {err.strerror}; what was there before is untouched.",
            hint="Free some space there, or where temporary files go (TMPDIR), and try again.",
        ) from err
    refused = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
    if err.errno in refused and isinstance(err.filename, (str, os.PathLike)):
        path = Path(err.filename)
        if path.is_relative_to(folder) or folder.is_relative_to(path):
            raise UsageError(
                f"{folder} cannot be written: {err.strerror} ({path}).", hint="Choose a folder that you may write to."
            ) from err
