"""Archives of arrays that somebody damaged, for both readers: each has to refuse every one of them."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def member(array: Array, **changes: str) -> bytes:
    """An array as a member of an archive, with pieces of its header, and blanks behind them, replaced by others."""
    data = io.BytesIO()
    np.lib.format.write_array(data, array, allow_pickle=False)
    raw = data.getvalue()
    for old, new in changes.items():
        size = max(len(old), len(new))
        assert old.ljust(size).encode() in raw
        raw = raw.replace(old.ljust(size).encode(), new.ljust(size).encode(), 1)
    return raw


def archive(path: Path, members: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


HUGE = 10**17
BAD: dict[str, Callable[[], bytes]] = {
    "no array": lambda: b"not an array",
    "pickled": lambda: member(np.zeros(1), **{"<f8": "|O8"}),
    "fortran": lambda: member(np.asfortranarray(np.zeros((2, 3)))),
    "shape too large": lambda: member(np.zeros(3), **{"(3,)": "(4,)"}),
    "shape too small": lambda: member(np.zeros(3), **{"(3,)": "(2,)"}),
    "shape overflows": lambda: member(np.zeros((1, 3)), **{"(1, 3), }": f"({HUGE}, {HUGE}), }}"}),
    "shape of zero overflows": lambda: member(np.zeros((0, 3)), **{"(0, 3), }": f"(0, {HUGE}, {HUGE}), }}"}),
    "shape negative": lambda: member(np.zeros((1, 10)), **{"(1, 10)": "(-1,-1)"}),
    "shape of no tuple": lambda: member(np.zeros(3), **{"(3,)": "(3 )"}),
    "boolean of two": lambda: member(np.zeros(2, bool))[:-1] + b"\2",
    "header cut": lambda: member(np.zeros(3))[:40],
    "header of garbage": lambda: member(np.zeros(3), **{"'descr'": "__imp__"}),
    "key twice": lambda: member(np.zeros(3), **{"'fortran_order': False": "'descr': '<f8'        "}),
    "version 9": lambda: member(np.zeros(3)).replace(b"NUMPY\1", b"NUMPY\11"),
    "version 1.7": lambda: member(np.zeros(3)).replace(b"NUMPY\1\0", b"NUMPY\1\7"),
    "nothing": lambda: b"",
}  # fmt: skip


def attacked(tmp_path: Path, change: Callable[[bytearray], None]) -> Path:
    path = archive(tmp_path / "a.npz", [("a.npy", member(np.zeros(3))), ("b.npy", member(np.ones(3)))])
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def put(at: int, form: str, value: int, mark: bytes = b"PK\1\2", which: int = 0) -> Callable[[bytearray], None]:
    """Writes a number behind the `which`-th record of a kind."""

    def change(data: bytearray) -> None:
        start = -1
        for _ in range(which + 1):
            start = data.index(mark, start + 1)
        struct.pack_into(f"<{form}", data, start + at, value)

    return change


def packed_by(method: int) -> Callable[[bytearray], None]:
    """The first member is packed by another method, both of its headers say."""

    def change(data: bytearray) -> None:
        put(10, "H", method)(data)
        put(8, "H", method, LOCAL)(data)

    return change


def zip64(data: bytearray) -> None:
    """The size of the first member stands in an extra field of its entry, which is as good as any where it is known."""
    entry, end = data.index(DIRECTORY), data.index(END)
    (size,) = struct.unpack_from("<I", data, entry + 24)
    (name,) = struct.unpack_from("<H", data, entry + 28)
    struct.pack_into("<I", data, entry + 24, 0xFFFFFFFF)
    struct.pack_into("<H", data, entry + 30, 12)
    (length,) = struct.unpack_from("<I", data, end + 12)
    struct.pack_into("<I", data, end + 12, length + 12)
    data[entry + 46 + name : entry + 46 + name] = struct.pack("<2HQ", 1, 8, size)


DIRECTORY, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"
ARCHIVES: dict[str, Callable[[bytearray], None]] = {
    "encrypted": put(8, "H", 1),
    "strongly encrypted": put(8, "H", 0x41),
    "patched": put(8, "H", 0x20),
    "names encrypted": put(8, "H", 0x2000),
    "imploded": packed_by(6),
    "deflate64": packed_by(9),
    "bzip2": packed_by(12),
    "lzma": packed_by(14),
    "zstandard": packed_by(93),
    "deflated, it says": packed_by(8),
    "digest": put(16, "I", 7),
    "packed size": put(20, "I", 7),
    "unpacked size": put(24, "I", 1 << 20),
    "unpacked to 4 GiB": put(24, "I", 0xFFFFFFFE),
    "zip64": put(24, "I", 0xFFFFFFFF),
    "zip64 with its field": zip64,
    "name length": put(28, "H", 0xFFFF),
    "extra length": put(30, "H", 0xFFFF),
    "another disk": put(34, "H", 1),
    "offset outside": put(42, "I", 0x7FFFFFFF),
    "offset of the other": put(42, "I", 0, which=1),
    "no entry": put(0, "I", 0),
    "local name": put(30, "B", ord("z"), LOCAL),
    "local flags": put(6, "H", 1, LOCAL),
    "local method": put(8, "H", 8, LOCAL),
    "other method": put(8, "H", 97, LOCAL),
    "local magic": put(0, "I", 0, LOCAL),
    "local extra length": put(28, "H", 60, LOCAL),
    "count": put(10, "H", 3, END),
    "count on this disk": put(8, "H", 1, END),
    "directory size": put(12, "I", 5, END),
    "directory offset": put(16, "I", 5, END),
    "comment length": put(20, "H", 9, END),
    "in front": lambda data: data.__setitem__(slice(0, 0), b"#!/bin/sh\n"),
    "behind, said to be a comment": lambda data: put(20, "H", 5, END)(data) or data.extend(b"more"),
    "behind": lambda data: data.extend(b"more"),
}  # fmt: skip
