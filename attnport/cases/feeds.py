"""Arrays that a user gives in a file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from attnport.errors import UsageError


def read_feeds(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an `.npz` by name; nothing is unpickled.

    Raises:
        UsageError: there is no such file, it is not an `.npz`, it is cut short, or it holds Python objects.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror or err}.", hint="Write it with numpy.savez.") from err
    # One array alone (.npy) is no context manager: AttributeError or TypeError.
    except (
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        TypeError,
        AttributeError,
        NotImplementedError,
    ) as err:
        raise UsageError(
            f"{path} is no .npz of arrays: {err}.", hint="Write it with numpy.savez, an array for each input, by name."
        ) from err
