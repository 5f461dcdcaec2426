"""Opens regular files only: it follows no link and does not wait for a pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from .errors import IntegrityError

# Not every system has all of these flags.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BinaryIO:
    """Opens `path` for reading.

    Raises:
        OSError: it cannot be opened, or is a link.
        ValueError: it is not a regular file.
    """
    # The descriptor makes sure that the file that is checked is the one that is read.
    file = open(os.open(path, os.O_RDONLY | _FLAGS), "rb")  # noqa: PTH123, SIM115 - see above; the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise ValueError("not a regular file")


def read_regular(path: Path) -> bytes:
    """The bytes of a bundled file. Raises IntegrityError if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as err:
        raise IntegrityError(f"{path}: cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise IntegrityError(f"{path}: {err}.") from err
