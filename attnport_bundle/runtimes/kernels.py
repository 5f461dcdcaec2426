"""Keeps the kernels that TensorRT-RTX compiled for a device in the user's cache folder.

Everything in it can be made again. The folder must lie outside the bundle: a file that came with a bundle must not
decide what runs on this machine.

A file is a magic number, the SHA-256 of the rest and the blob. The digest only finds damage; the content is trusted
because only this user can write to the folder. TensorRT-RTX itself refuses a blob of another release or GPU.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import warnings
from pathlib import Path

from ..errors import BundleError, BundleWarning
from ..format.files import open_regular

VARIABLE = "ATTNPORT_CACHE"
MAX_BYTES = 1 << 30
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Cache:
    """Files by name, in a folder that only this user can write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if it does not exist, cannot be read or is larger than `MAX_BYTES`."""
        try:
            with open_regular(self.folder / name) as file:
                data: bytes = file.read(MAX_BYTES + 1)
        except (OSError, ValueError):
            return None
        return data if len(data) <= MAX_BYTES else None

    def write(self, name: str, data: bytes) -> bool:
        """Writes a file, whole or not at all. Returns whether it could: without it, work is only done again."""
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=self.folder) as scratch:
                part = Path(scratch, name)
                part.touch(mode=0o600)
                with part.open("wb") as file:
                    file.write(data)
                    os.fsync(file.fileno())
                part.replace(self.folder / name)
        except OSError:
            return False
        return True


def find(bundle: Path, asked: Path | None = None) -> Cache | None:
    """The cache of this user; its folder is created if necessary.

    Args:
        bundle: The bundle that is being opened.
        asked: The folder; None = `$ATTNPORT_CACHE`, else `attnport` in the user's folder for caches.

    Returns:
        The cache, or None with a warning if the folder cannot be created or other users may write to it.

    Raises:
        BundleError: the folder is inside the bundle.
    """
    folder = default_folder() if asked is None else asked
    if folder is None:
        return None
    if folder.resolve().is_relative_to(bundle.resolve()):
        raise BundleError(f"{folder}: the cache may not be inside the bundle {bundle}; choose a folder outside it.")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _problem(folder.stat())
    except OSError as err:
        problem = str(err.strerror)
    if problem:
        warnings.warn(f"{folder}: no cache is kept there: {problem}.", BundleWarning, stacklevel=3)
        return None
    return Cache(folder)


def default_folder() -> Path | None:
    """The folder of the cache unless another one is given; None on a system without a home folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    base = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says to ignore a path that is not absolute.
    if base and Path(base).is_absolute():
        return Path(base) / "attnport"
    try:
        return Path.home() / ".cache" / "attnport"
    except RuntimeError:
        return None


def _problem(status: os.stat_result) -> str:
    if not stat.S_ISDIR(status.st_mode):
        return "not a folder"
    if not hasattr(os, "getuid"):
        return ""
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}"
    return "others may write to it" if status.st_mode & _OTHERS_WRITE else ""


MAGIC = b"attnport-rtx-2\0\0"
_HEAD_BYTES = len(MAGIC) + hashlib.sha256().digest_size


class RuntimeCache:
    """The kept blob of one entry."""

    def __init__(self, cache: Cache, entry: str) -> None:
        self._cache, self.name = cache, f"{entry}.rtxcache"
        self._last: bytes | None = None

    def read(self) -> bytes | None:
        """The blob; None if the file does not exist or is damaged."""
        data = self._cache.read(self.name) or b""
        blob = data[_HEAD_BYTES:]
        self._last = blob if data[:_HEAD_BYTES] == _head(blob) else None
        return self._last

    def write(self, blob: bytes) -> None:
        """Keeps a blob, if it is not the last one. If that fails, TensorRT-RTX compiles again next time."""
        if blob != self._last and self._cache.write(self.name, _head(blob) + blob):
            self._last = blob


def _head(blob: bytes) -> bytes:
    return MAGIC + hashlib.sha256(blob).digest()
