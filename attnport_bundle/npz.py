"""The arrays of an `.npz`, a zip archive of `.npy` files, where every reader has to find the same ones or none.

The zip format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, section 4. Python's zipfile takes other
compressions, more of them with each release, and mends what contradicts itself. As in the C++ reader, sizes and digests
are those of the central directory; of the header in front of a member the name, flags and method have to be the same.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .printable import is_printable

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 1 << 30
_END = struct.Struct("<4s4H2IH")
_ENTRY = struct.Struct("<4s4x2H4x3I4H6xI")
_LOCAL = struct.Struct("<4s2x2H16x2H")
_IN_ZIP64 = 0xFFFFFFFF  # the number stands in an extra field, as archives over 4 GiB need it
# How hard a member was deflated, sizes behind the data, UTF-8 names: flags that a reader can leave alone.
_HARMLESS, _UTF8 = 0x0002 | 0x0004 | 0x0008 | 0x0800, 0x0800
_STORED, _DEFLATED = 0, 8
_MAX_RATIO = 1032  # deflate packs no better: https://zlib.net/zlib_tech.html


@dataclass(frozen=True)
class _Member:
    """An entry of the central directory; `at`: where its header starts."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int


def read_npz(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Every array by its name, in the order of the directory.

    Raises:
        Exception: the archive is damaged, contradicts itself, or is not stored and deflated alone; or a member is no
            array in C order. Damaged bytes make zlib, struct and NumPy raise a dozen kinds.
    """
    start, members = _directory(data)
    if sum(member.size for member in members) > MAX_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_BYTES} bytes")
    packed = {member: _packed(data, member) for member in members}
    behind = 0
    for member in sorted(members, key=lambda one: one.at):
        if member.at < behind:
            raise _refusal(member, "overlaps with what stands before it")
        behind = packed[member][1]
    if behind > start:
        raise ValueError("its last member overlaps with its directory")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for member in members:
        name = member.name.removesuffix(".npy")
        if name in found:
            raise ValueError("a name is there twice")
        found[name] = _array(member, _unpacked(member, packed[member][0]))
    return found


def _refusal(member: _Member, words: str) -> ValueError:
    return ValueError(f"{member.name!r}: {words}")


def _directory(data: bytes) -> tuple[int, list[_Member]]:
    """Where the central directory starts, and its entries."""
    at = data.rfind(b"PK\5\6")
    # Behind the record stands a comment, whose length is the last number of the record; it ends the file.
    while at >= 0 and at + _END.size + int.from_bytes(data[at + 20 : at + 22], "little") != len(data):
        at = data.rfind(b"PK\5\6", 0, at)
    if at < 0:
        raise ValueError("it is no zip archive")
    _, disk, first_disk, here, count, size, start, _ = _END.unpack_from(data, at)
    if disk or first_disk or here != count:
        raise ValueError("it is one part of a split archive")
    if start + size != at:
        raise ValueError("its directory does not lie where it says, or it is a ZIP64 archive")
    members, behind = [], start
    for _ in range(count):
        member, behind = _entry(data, behind)
        members.append(member)
    if behind != at:
        raise ValueError("its directory is damaged")
    return start, members


def _entry(data: bytes, at: int) -> tuple[_Member, int]:
    """An entry of the directory, and where the next one starts."""
    magic, flags, method, crc, packed, size, *lengths, disk, header = _ENTRY.unpack_from(data, at)
    raw = data[at + _ENTRY.size : at + _ENTRY.size + lengths[0]]
    if magic != b"PK\1\2" or len(raw) != lengths[0]:
        raise ValueError("its directory is damaged")
    name = raw.decode("utf-8" if flags & _UTF8 else "ascii")
    if not name.isascii() and not is_printable(name):
        raise ValueError("a name in it cannot be printed")
    found = _Member(name, raw, flags, method, crc, packed, size, header)
    if _IN_ZIP64 in (packed, size, header):
        raise _refusal(found, "a member of a ZIP64 archive")
    if disk:
        raise _refusal(found, "a member on another disk")
    if flags & ~_HARMLESS:
        raise _refusal(found, "encrypted, or packed in a way that is not known")
    if method not in (_STORED, _DEFLATED):
        raise _refusal(found, "neither stored nor deflated")
    if (packed != size) if method == _STORED else size // _MAX_RATIO > packed:
        raise _refusal(found, "its sizes contradict each other")
    return found, at + _ENTRY.size + sum(lengths)


def _packed(data: bytes, member: _Member) -> tuple[bytes, int]:
    """The packed data of a member, behind the header in front of it, and where it ends."""
    magic, flags, method, name_bytes, extra_bytes = _LOCAL.unpack_from(data, member.at)
    start = member.at + _LOCAL.size
    if magic != b"PK\3\4":
        raise _refusal(member, "no member stands where the directory says")
    if data[start : start + name_bytes] != member.raw_name:
        raise _refusal(member, "its header has another name")
    if (flags, method) != (member.flags, member.method):
        raise _refusal(member, "its header contradicts the directory")
    start += name_bytes + extra_bytes
    found = data[start : start + member.packed]
    if len(found) != member.packed:
        raise _refusal(member, "it is cut short")
    return found, start + member.packed


def _unpacked(member: _Member, packed: bytes) -> bytes:
    found = packed
    if member.method == _DEFLATED:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        found = stream.decompress(packed, member.size + 1)  # a byte more than there may be
        if not stream.eof or stream.unused_data or len(found) != member.size:
            raise _refusal(member, "it does not unpack to its size")
    if zlib.crc32(found) != member.crc:
        raise _refusal(member, "its data is damaged")
    return found


def _array(member: _Member, data: bytes) -> np.ndarray[Any, Any]:
    import numpy as np

    if not data.startswith(b"\x93NUMPY"):
        raise ValueError("a member is no array")
    file = io.BytesIO(data)
    found: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):
        raise _refusal(member, "its shape does not fit its data")
    if not found.flags.c_contiguous:
        raise ValueError("a member is not in C order")
    if found.dtype == np.bool_ and (found.view(np.uint8) > 1).any():
        raise _refusal(member, "a boolean that is neither 0 nor 1")
    return found
