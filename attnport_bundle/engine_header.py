"""The header of a serialized TensorRT-RTX engine: magic, size, version and target mask.

NVIDIA does not document it. The layout was read off engines of TensorRT-RTX 1.7.1: bytes 0-3 `vtrt`, a u64 at 16 = the
size of the file, bytes 24-27 = the version, a u32 at 32 = the bit mask of targets. All little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"vtrt"
HEADER_BYTES = 36
TARGET_BITS = {1 << 0: 75, 1 << 1: 80, 1 << 2: 86, 1 << 3: 89, 1 << 4: 120, 1 << 5: 121}
"""Compute capability by bit. An engine for the builder's default list also sets bit 6, for devices still to come."""


class NoEngine(ValueError):
    """It does not begin as an engine does."""


class OtherSize(ValueError):
    """It is cut short, or has bytes behind its end."""


@dataclass(frozen=True)
class EngineHeader:
    """What the header says.

    Attributes:
        version: The TensorRT-RTX version that built it, such as `1.7.1.116`.
        size_bytes: The size of the whole file; equal to what is on disk, or `read_header` had refused it.
        sm: The compute capabilities it runs on (`86` is 8.6).
    """

    version: str
    size_bytes: int
    sm: tuple[int, ...]


def read_header(path: Path) -> EngineHeader:
    """Reads and checks the header of a TensorRT-RTX engine.

    It finds a file that is no engine and one that was cut short. A changed byte behind the header it does not find:
    compare the digest for that.

    Raises:
        OSError: the file cannot be read.
        NoEngine: other magic.
        OtherSize: it is cut short or has bytes behind its end.
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
