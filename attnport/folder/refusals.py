"""What a user can mend about files and folders: a full disk, a path that cannot be written, a folder of someone's."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from attnport.artifacts import MANIFEST
from attnport.errors import AttnportError, MissingDependency, UsageError
from attnport.transaction import OWN, settle

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CUT_SHORT = re.compile(r"problem writing element|\d+ requested and \d+ written")
_REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


def as_attnport_error(err: BaseException) -> AttnportError | None:
    """The error as one of ours; None for a bug."""
    if isinstance(err, AttnportError):
        return err
    if isinstance(err, ModuleNotFoundError) and err.name and err.name.split(".")[0] != "attnport":
        from attnport.optional import pip_line

        return MissingDependency(f"{err.name} is not installed.", hint=pip_line(err.name.split(".")[0]))
    return as_usage_error(err) if isinstance(err, OSError) else None


def as_usage_error(err: OSError) -> UsageError | None:
    """An OSError as what the user is told; None for one that is not the user's to mend."""
    where = f"{err.filename}: " if err.filename else ""
    # NumPy writes arrays by C's fwrite, and says how far it came, not why it came no further.
    if err.errno in _FULL or (err.errno is None and _CUT_SHORT.search(str(err))):
        return UsageError(
            f"{where}{err.strerror or os.strerror(errno.ENOSPC)}; what was there before is untouched.",
            hint="Free some space (temporary files go to TMPDIR) and try again.",
        )
    if err.errno == errno.ENOENT and err.filename is None and "usable temporary directory" in str(err):
        # All places of `tempfile` were tried, and none could be written: a full disk, or one that is read-only.
        return UsageError(f"{err.strerror}.", hint="Free some space, or set TMPDIR to a folder that you may write to.")
    if err.errno in _REFUSED and err.filename:
        return UsageError(f"{where}{err.strerror}.", hint="Give a path that you may read and write.")
    return folder_is_gone() if err.errno == errno.ENOENT else None


def folder_is_gone() -> UsageError | None:
    """What to tell when the current folder was deleted: MKL ends the process there, whatever the paths."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return UsageError("The current folder was deleted.", hint="cd to a folder that is there.")
    return None


def refuse_stranger(folder: Path) -> None:
    """Refuses to export into a folder that holds somebody's files and is no artifact; nothing in it is touched.

    Raises:
        UsageError: it is a file, or a folder that is neither empty nor an artifact.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is there and is no folder.", hint="Give another folder, or move it away.")
    if (folder / MANIFEST).exists():
        return
    settle(folder)  # a first export that was killed has left files of its own
    strange = sorted(path.name for path in folder.iterdir() if path.name not in OWN)
    if strange:
        raise UsageError(
            f"{folder} is not empty and no artifact (it holds {strange[0]}); it stays as it is.",
            hint="Give an empty or a new folder.",
        )
