"""Files of arrays that somebody damaged, for both readers: each has to refuse every one of them."""

from __future__ import annotations

import json
from typing import Any

ENTRY: dict[str, Any] = {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}
SECOND: dict[str, Any] = {"dtype": "BOOL", "shape": [2], "data_offsets": [24, 26]}
DATA = bytes(24) + b"\1\0"
HUGE = 1 << 40


def file(header: bytes | dict[str, Any], data: bytes = DATA, length: int | None = None) -> bytes:
    """A file of that header and data; `length`: what it says of the header's length, where that is wrong."""
    if isinstance(header, dict):
        header = json.dumps(header).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def one(data: bytes = DATA, **changes: Any) -> bytes:
    """The good file with changes to its first array."""
    return file({"a": {**ENTRY, **changes}, "b": SECOND}, data)


def text(change: tuple[str, str]) -> bytes:
    """The good file with a piece of its header replaced by another one."""
    old, new = change
    whole = json.dumps({"a": ENTRY, "b": SECOND})
    assert old in whole
    return file(whole.replace(old, new, 1).encode())


GOOD = one()
BAD: dict[str, bytes] = {
    "nothing": b"",
    "less than a length": bytes(7),
    "no header": bytes(8),
    "header longer than the file": file({"a": ENTRY, "b": SECOND}, length=1 << 20),
    "header of 2**64 bytes": file({"a": ENTRY, "b": SECOND}, length=(1 << 64) - 1),
    "header longer than allowed": file(json.dumps({"a": ENTRY, "b": SECOND}).encode() + b" " * (4 << 20)),
    "header cut": file(json.dumps({"a": ENTRY, "b": SECOND}).encode()[:-1]),
    "header of garbage": file(b"\x93NUMPY garbage"),
    "header not UTF-8": text(('"b"', '"b\\u00e4"')).replace(b"\\u00e4", b"\xe4     "),
    "header is a list": file(b"[]", b""),
    "header is a number": file(b"1", b""),
    "header behind a blank": file(b" " + json.dumps({"a": ENTRY, "b": SECOND}).encode()),
    "header behind a byte order mark": file(b"\xef\xbb\xbf" + json.dumps({"a": ENTRY, "b": SECOND}).encode()),
    "header with a zero byte behind it": file(json.dumps({"a": ENTRY, "b": SECOND}).encode() + b"\0"),
    "two headers": file(json.dumps({"a": ENTRY, "b": SECOND}).encode() * 2),
    "nested deep": file(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "name twice": text(('"b"', '"a"')),
    "name twice, escaped": text(('"b"', '"\\u0061"')),
    "name with a control": text(('"b"', '"b\\u001b[2J"')),
    "name with half of a pair": text(('"b"', '"\\ud800"')),
    "entry is a list": file({"a": [], "b": SECOND}),
    "entry is null": file({"a": None, "b": SECOND}),
    "key twice": text(('"shape": [3]', '"shape": [3], "shape": [3]')),
    "key missing": file({"a": {"dtype": "F64", "shape": [3]}, "b": SECOND}),
    "key too many": one(strides=[8]),
    "dtype unknown": one(dtype="I4"),
    "dtype in small letters": one(dtype="f64"),
    "dtype of no text": one(dtype=8),
    "bfloat16": one(dtype="BF16", shape=[12]),
    "unsigned bytes": one(dtype="U8", shape=[24]),
    "complex": one(dtype="C64", shape=[3]),
    "shape too large": one(shape=[4]),
    "shape too small": one(shape=[2]),
    "shape negative": one(shape=[-1, -3]),
    "shape of a number": one(shape=3),
    "shape of text": one(shape=["3"]),
    "shape of a boolean": one(shape=[True, 3]),
    "shape of a fraction": one(shape=[3.0]),
    "shape beyond 64 bits": one(shape=[1 << 70]),
    "shape that overflows to what fits": one(shape=[3094053014711431, 2981]),
    "shape that overflows to nothing": one(bytes(2), shape=[HUGE, HUGE, HUGE], data_offsets=[0, 0]),
    "empty shape that overflows": file({"a": {**ENTRY, "shape": [0, HUGE, HUGE], "data_offsets": [0, 0]}}, b""),
    "shape of 33 sizes": one(shape=[3] + [1] * 32),
    "offsets missing one": one(data_offsets=[0]),
    "offsets of three": one(data_offsets=[0, 24, 26]),
    "offsets negative": one(data_offsets=[-24, 0]),
    "offsets backwards": one(data_offsets=[24, 0]),
    "offsets beyond 64 bits": one(data_offsets=[0, 24 + (1 << 64)]),
    "offsets of a fraction": one(data_offsets=[0, 24.0]),
    "offsets outside": one(data_offsets=[26, 50]),
    "offsets that overlap": file({"a": ENTRY, "b": {**SECOND, "data_offsets": [22, 24]}}, bytes(24)),
    "offsets of the same data": file({"a": ENTRY, "b": ENTRY}, bytes(24)),
    "offsets inside of the other": file({"a": ENTRY, "b": {**SECOND, "data_offsets": [8, 10]}}, bytes(24)),
    "offsets with a gap": file({"a": ENTRY, "b": {**SECOND, "data_offsets": [25, 27]}}, bytes(27)),
    "offsets with a gap in front": file({"a": {**ENTRY, "data_offsets": [8, 32]}}, bytes(32)),
    "bytes behind": GOOD + b"more",
    "a byte behind": GOOD + b"\0",
    "bytes behind no array": file({}, b"more"),
    "cut short": GOOD[:-1],
    "data missing": file({"a": ENTRY, "b": SECOND}, b""),
    "boolean of two": GOOD[:-1] + b"\2",
    "metadata of numbers": file({"__metadata__": {"format": 1}, "a": ENTRY, "b": SECOND}),
    "metadata of lists": file({"__metadata__": [], "a": ENTRY, "b": SECOND}),
    "metadata null": file({"__metadata__": None, "a": ENTRY, "b": SECOND}),
    "metadata nested": file({"__metadata__": {"a": {"b": "c"}}, "a": ENTRY, "b": SECOND}),
}  # fmt: skip
