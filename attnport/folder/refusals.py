"""What a user can mend about files and folders: a full disk, a path that cannot be written."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from attnport.errors import AttnportError, MissingDependency, UsageError

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
