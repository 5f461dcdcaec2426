"""Keeps the kernels that TensorRT-RTX compiled for a device.

A file is a magic number, the SHA-256 of the rest, the entry's name and the blob. The digest only finds damage; the
content is trusted because only this user can write to the folder. TensorRT-RTX itself refuses a blob of another release
or GPU.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .cache import Cache

MAGIC = b"attnport-rtx-1\0\0"
_DIGEST_BYTES, _ENTRY_BYTES = 32, 64


@dataclass
class RuntimeCache:
    """The kept blob of one entry.

    Attributes:
        entry: The name from `cache.entry`.
        last: The blob in the file, if known; an equal blob is not written again.
    """

    cache: Cache
    entry: str
    last: bytes | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.entry}.rtxcache"

    def read(self) -> bytes | None:
        """The blob; None if the file does not exist, is damaged or belongs to another entry."""
        data = self.cache.read(self.name) or b""
        head, rest = data[: len(MAGIC)], data[len(MAGIC) + _DIGEST_BYTES :]
        if head != MAGIC or hashlib.sha256(rest).digest() != data[len(MAGIC) : len(MAGIC) + _DIGEST_BYTES]:
            return None
        if rest[:_ENTRY_BYTES] != self.entry.encode():
            return None
        self.last = rest[_ENTRY_BYTES:]
        return self.last

    def write(self, blob: bytes) -> None:
        """Keeps a blob. If that fails, TensorRT-RTX compiles again next time."""
        if blob == self.last:
            return
        rest = self.entry.encode() + blob
        if self.cache.write(self.name, MAGIC + hashlib.sha256(rest).digest() + rest):
            self.last = blob
