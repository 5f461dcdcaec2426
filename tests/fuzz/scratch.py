"""A folder for the one file that a target reads again and again."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def scratch() -> Path:
    """A new folder, removed when Python ends."""
    folder = Path(tempfile.mkdtemp(prefix="attnport-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
