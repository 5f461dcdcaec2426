"""Replaces a whole folder at once: a new one is built beside it, then exchanged with it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnport.errors import UsageError
from attnport.transaction import sync

_AT_FDCWD, _EXCHANGE = -100, 2


@contextmanager
def replaced(out: Path, may_replace: Callable[[], None]) -> Iterator[Path]:
    """Yields an empty folder to fill; on a clean exit it becomes `out`, in one step if the file system can do this.

    If the process is killed before that, `out` is unchanged, and the next call removes the hidden folder beside it.

    Args:
        may_replace: Called right before the exchange; raises if `out` must not be replaced.

    Raises:
        UsageError: `out` cannot be written, or the disk is full.
    """
    out = out.absolute()
    with _errors_of_files(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear(out)
        staged, lock = _stage(out)
        try:
            yield staged
            for path in (*staged.rglob("*"), staged):
                sync(path)
            may_replace()
            _swap(staged, out)
            sync(out.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            os.close(lock)


def refuse_unwritable(out: Path) -> None:
    """Raises UsageError where `replaced` cannot write, before the work that fills the folder."""
    out = out.absolute()
    with _errors_of_files(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent)).rmdir()


@contextmanager
def _errors_of_files(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UsageError(
                f"{out}: {err.strerror}; what was there before is untouched.", hint="Free some space and try again."
            ) from err
        if err.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
            raise UsageError(
                f"{out} cannot be written: {err.strerror} ({err.filename}).",
                hint="Choose a folder that you may write to.",
            ) from err
        raise


def _prefix(out: Path) -> str:
    return f".{out.name}.attnport-bundle-"


def _stage(out: Path) -> tuple[Path, int]:
    """A new folder beside `out`, and a lock on it that is held as long as this process lives."""
    while True:
        staged = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
        with suppress(FileNotFoundError):  # another call removed it before it was locked
            lock = os.open(staged, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if staged.exists():
                umask = os.umask(0)
                os.umask(umask)
                staged.chmod(0o777 & ~umask)
                return staged, lock
            os.close(lock)


def _clear(out: Path) -> None:
    """Removes the folders of calls that were killed."""
    for stale in out.parent.glob(f"{_prefix(out)}*"):
        with suppress(OSError):
            lock = os.open(stale, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale, ignore_errors=True)
            finally:
                os.close(lock)


def _swap(staged: Path, out: Path) -> None:
    """Moves `staged` to `out`; if there was a folder at `out`, it is at `staged` afterwards, or removed."""
    if not os.path.lexists(out):
        staged.rename(out)
        return
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(out), _EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(out))
    # If the file system cannot exchange, a kill between the two renames leaves the old folder under a hidden name.
    aside = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
    out.rename(aside)
    staged.rename(out)
    shutil.rmtree(aside, ignore_errors=True)
