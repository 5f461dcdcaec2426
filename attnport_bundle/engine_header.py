"""The header of a serialized TensorRT-RTX engine: magic, size, version and target mask.

NVIDIA does not document it. The layout was taken from engines of TensorRT-RTX 1.7.1, all little-endian: bytes 0-3 are
`vtrt`, the u64 at 16 is the size of the file, bytes 24-27 are the version, the u32 at 32 is the bit mask of targets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"vtrt"
HEADER_BYTES = 36
TARGET_BITS = {1 << 0: 75, 1 << 1: 80, 1 << 2: 86, 1 << 3: 89, 1 << 4: 120, 1 << 5: 121}
"""Compute capability by bit. An engine for the builder's default list also sets bit 6, for future devices."""


class NoEngine(ValueError):
    """The file does not begin as an engine does."""


class OtherSize(ValueError):
    """The file is cut short, or has extra bytes at its end."""


@dataclass(frozen=True)
class EngineHeader:
    """What the header says.

    Attributes:
        version: The TensorRT-RTX version that built it, such as `1.7.1.116`.
        size_bytes: The size of the whole file; `read_header` refuses a file of another size.
        sm: The compute capabilities it runs on (`86` is 8.6).
    """

    version: str
    size_bytes: int
    sm: tuple[int, ...]


def read_header(path: Path) -> EngineHeader:
    """Reads and checks the header of a TensorRT-RTX engine.

    This finds files that are not engines and files that were cut short. It does not find a changed byte behind the
    header: compare the digest for that.

    Raises:
        OSError: the file cannot be read.
        NoEngine: the file has other magic.
        OtherSize: the file is cut short or has extra bytes at its end.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    size = path.stat().st_size
    if not head.startswith(MAGIC):
        raise NoEngine(
            f"{path} is no TensorRT-RTX engine by its header: got first bytes {head[:4].hex() or 'none'}; "
            f"expected {MAGIC.hex()}."
        )
    if len(head) < HEADER_BYTES:
        raise OtherSize(f"{path} is cut short: got {len(head)} bytes, less than a header.")
    (declared,) = struct.unpack_from("<Q", head, 16)
    if declared != size:
        raise OtherSize(
            f"{path} is cut short or has bytes behind its end: got {size} bytes; its header says {declared}."
        )
    (mask,) = struct.unpack_from("<I", head, 32)
    return EngineHeader(
        version=".".join(str(part) for part in head[24:28]),
        size_bytes=declared,
        sm=tuple(sm for bit, sm in TARGET_BITS.items() if mask & bit),
    )
