"""Made-up manifests and ONNX files for the comparison of the two readers: odd values in odd places, from a seed."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
if str(FUZZ) not in sys.path:
    sys.path.append(str(FUZZ))  # where the mutations are that the fuzzer makes

import mutate  # noqa: E402 - see above

_HEAD = b'{"format":"attnport-bundle","version":'
TRICKY = (
    b"", b" ", b"[]", b"1", b"null", b'"x"', b"NaN", b"-Infinity", b"[1,]", b"{}", b" {} ", b"{}{}", b"{}\0", b"{}\0x",
    b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0", b'{"a":1,"a":2}', b'{"a":1,"a":2,}', b'{"a":{"b":1,"b":2}}', b"/**/{}",
    b"[" * 32, b"[" * 33, b"[" * 32 + b"]" * 32, b"[" * 33 + b"]" * 33, b'["' + b"[" * 40 + b'"]', b'["\\"[["]',
    b'"\xc3"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc0\xaf"', b'"\\u00e"', b'"\\x"', b'"a\tb"', b'"\x7f"',
    b"01",
    b"-", b"1.", b".5", b"1e5", b"1E+5", b"1e400", b"-1e400", b"1e-400", b"-0", b"-0.0", b"+1", b"0x1", b"9" * 400,
    b"[1 2]",
    b'{"format":1}', b'{"format":null}', b'{"format":"\\ud800"}', b'{"format":"attnport-bundle"}',
    b'{"format":"attnport-bundle\\u0000"}', b'{"format":"attnport\\u002dbundle","version":3}',
    *(_HEAD + version + b"}" for version in (
        b"true", b"2", b"2.0", b"2e0", b"-0", b"-0.0", b"1e22", b"1e16", b"1e-7", b"123456789.125",
        b"9223372036854775807",
        b"9223372036854775808", b"-9223372036854775809", b"9" * 60, b"9" * 4300, b"9" * 4301, b"null", b'"2"',
        b'"it\'s"',
        b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\udc00\\ud800"', b"[]", b"[[],{}]",
        b'{"a":[1.5,"it\'s \\"so\\"",null,true]}',
        b'"' + b"x" * 61 + b'"', b'{"\\ud800":1}', b'"\\u200b\\u00ad\\u0378\\u00e9"', b'"\\n\\t\\r\\u0000\\\\"', b"NaN",
    )),
    *(_HEAD + b'2,"' + key + b'":1}' for key in (
        b"x", b"\\ud800", b"\\ud800\\udc00", b"\\udbff\\udfff", b"\xf4\x8f\xbf\xbfd800", b"it's", b"", b"\\u0000",
        b"y" * 80,
    )),
)  # fmt: skip
"""Texts that parsers of JSON differ about, and messages that must show what they hold."""

_TEXTS = (
    "", ".", "..", "a/b", "/a", "a//b", "nul", "CON.txt", "\x1b[2J", "\ud800", "\udfff\ud800", "\U0010ffff",
    "\U0001f600", "it's",
    "\u00e9\u200b", "x" * 1000, "x" * 1001, "y" * 61, "PASS", "FAIL", "NOT_RUN", "float16", "bfloat16",
    "float32",
    "int64", "bool", "keep", "hide", "additive", "mask", "lengths", "ids", "marks", "padding", "causal", "window",
    "documents",
    "global", "prefix", "onnxruntime", "tensorrt", "tensorrt_rtx", "openvino", "device", "graph-only", "0" * 64,
    "1.2.3", "1..2",
    "1.2.3.4.5", "bundle.json", "Bundle.JSON", "python/x.py", "PYTHON/y", "python/attnport_bundle/x", "batch", "seq",
    "ids\n",
)  # fmt: skip
_VALUES = (
    None, True, False, 0, 1, -1, -0.0, 1.5, 1e308, 5e-324, 0.1, 2, 3, 17, 2**53 - 1, 2**53, -(2**53), 2**63, 2**64,
    -(2**63) - 1,
    10**30, 1e-7, 1e16, 123456.789, [], {}, [[]], {"a": 1}, ["a", "a"], [1, 2], [2, 1], [0, 1], ["padding", "causal"],
    ["none", "causal"], {"\ud800": 1}, {'it\'s "q"': [1.5, True, None, "a"]}, *_TEXTS,
)  # fmt: skip
_PIECES = (
    b"\xef\xbb\xbf", b"\0", b"NaN", b"-Infinity", b"1e400", b"9" * 400, b"9" * 5000, b"-0", b"01", b"1.", b"\\ud800",
    b"\\u00",
    b"\\udbff\\udfff", b"\xf4\x8f\xbf\xbf", b"[", b"]", b"{", b"}", b'"', b",", b":", b"/*x*/", b"\xff",
    b"\xed\xa0\x80", b"\t",
    b"[ " * 33, b"1E5", b"null", b"true", b"-", b'"a":1,', b'"format":2,',
)  # fmt: skip


def manifests(seeds: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Manifests with one to three changes each; some are still ones."""
    chance = random.Random(seed)
    for _ in range(count):
        data = chance.choice(seeds)
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            change = chance.choice([_mild, _value, _value, _key, _bytes, _fuzzed])
            data = change(data, chance)
        yield data


def _fuzzed(data: bytes, chance: random.Random) -> bytes:
    return mutate.json_value(data, 1 << 20, chance.getrandbits(32), lambda data, _: _bytes(data, chance))


def _bytes(data: bytes, chance: random.Random) -> bytes:
    """Changes a few bytes, mostly in front of a value."""
    found = [match.start() for match in re.finditer(rb'\d+|"[^"]*"', data)]
    at = chance.choice(found) if found and chance.random() < 0.5 else chance.randrange(len(data) + 1)
    action = chance.randrange(8)
    if action == 0:
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    if action == 1:
        return data[:at] + data[at + chance.choice([1, 1, 3, 50]) :]
    if action == 2 and chance.random() < 0.2:
        return data[:at]
    return data[:at] + chance.choice(_PIECES) + data[at:]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _value(data: bytes, chance: random.Random) -> bytes:
    """Puts an odd value in a place, any place as likely as another."""
    return _edited(data, chance, lambda holder, key: holder.__setitem__(key, chance.choice(_VALUES)))


def _mild(data: bytes, chance: random.Random) -> bytes:
    """Puts another value of the same kind in a place, which often makes no difference to the rules."""

    def edit(holder: Any, key: Any) -> None:
        value = holder[key]
        if isinstance(value, bool):
            holder[key] = not value
        elif isinstance(value, int | float):
            holder[key] = value * chance.choice([1, 2, 0.5, 3.0]) + chance.choice([0, 1])
        elif isinstance(value, str):
            holder[key] = value + chance.choice(["0", "\u00e9", "'", '"', "\\", "\U0001f600"])
        elif isinstance(value, list):
            holder[key] = value[::-1]
        elif isinstance(value, dict):
            holder[key] = dict(reversed(value.items()))

    return _edited(data, chance, edit)


def _key(data: bytes, chance: random.Random) -> bytes:
    """Renames a key, or repeats an item."""

    def edit(holder: Any, key: Any) -> None:
        if isinstance(holder, list):
            holder.append(holder[key])
        else:
            odd = chance.choice(
                [*_TEXTS, *(f"{key}{end}" for end in ("x", "/..", "/", ".", " ", "\u00e9", "\ud800", "\x07"))]
            )
            holder[odd if chance.random() < 0.8 else key.swapcase()] = holder.pop(key)

    return _edited(data, chance, edit)


def _edited(data: bytes, chance: random.Random, edit: Any) -> bytes:
    try:
        value = json.loads(data)
        places = list(_places(value)) if isinstance(value, dict | list) else []
    except (ValueError, RecursionError):
        places = []
    if not places:
        return _bytes(data, chance)
    edit(*chance.choice(places))
    return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


# --- ONNX files, piece by piece: https://protobuf.dev/programming-guides/encoding ---------------------------------


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _piece(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def nested(depth: int) -> bytes:
    """A model with subgraphs in subgraphs, and external data in the innermost."""
    graph = _piece(5, _piece(13, _piece(1, b"location") + _piece(2, b"w.bin")) + _number(14, 1))
    for _ in range(depth):
        graph = _piece(1, _piece(5, _piece(6, graph)))
    return _piece(7, graph)


TRICKY_ONNX = (
    b"", b"\0", *(nested(depth) for depth in (1, 10, 20, 30, 31, 32, 33, 34, 200)),
    *(_number(8, 1 << bits) for bits in (62, 63, 64, 69, 70)), *(_varint(1 << bits | 2) + b"\1x" for bits in (62, 64,
    66, 69)), *(_varint(1 << bits | 2) + b"\1x" for bits in (28, 31, 32, 35, 36)),
    *(b"\xba" + b"\x80" * more + bytes([last, 0]) for more in range(1, 10) for last in (0, 1, 0x0F, 0x10)),
    *(_piece(8, _number(2, 1 << bits)) for bits in (0, 31, 32, 62, 63)),
)  # fmt: skip


_KEYS = (b"location", b"offset", b"length")
_WORDS = (b"w.bin", b"0", b"12", b"-1", b"9" * 19, b"9" * 20, b"\xff", b"", b"\xc3\xa9", b"'")


def models(seeds: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Files that look like ONNX, some of them with a few bytes changed."""
    chance = random.Random(seed)
    for _ in range(count):
        data = _model(chance) if chance.random() < 0.7 else chance.choice(seeds)
        for _ in range(chance.choice([0, 0, 1, 1, 3])):
            at = chance.randrange(len(data) + 1)
            cut, new = chance.randrange(4), chance.randbytes(chance.randrange(4))
            data = data[:at] + new + (data[at + cut :] if chance.random() < 0.9 else b"")
        yield data


def _model(chance: random.Random) -> bytes:
    opset = _piece(1, chance.choice([b"", b"ai.onnx", b"other", b"\xff"])) if chance.random() < 0.7 else b""
    data = _piece(8, opset + _number(2, chance.choice([1, 17, 23, 1 << 40, 1 << 62]))) * chance.randrange(3)
    data += _piece(7, _graph(chance, 3))
    if chance.random() < 0.2:
        data += _piece(20, _piece(1, _graph(chance, 1)))
    for _ in range(chance.choice([0, 0, 1, 2, 3])):
        nodes = b"".join(
            _piece(7, _named(chance, 7, 4, 8) + _attributes(chance, 1)) for _ in range(chance.randrange(3))
        )
        default = _piece(11, _attribute(chance, 1)) if chance.random() < 0.1 else b""
        data += _piece(25, nodes + default + _named(chance, 10, 1, 13))
    return data


def _named(chance: random.Random, domain: int, name: int, overload: int) -> bytes:
    """Whose function it is, or calls: few names, so that some call each other and some themselves."""
    found = _piece(domain, chance.choice([b"ai.onnx", b"own", b""])) if chance.random() < 0.5 else b""
    found += _piece(name, chance.choice([b"F", b"G", b"H", b"I", b"\xff"]))
    return found + (_piece(overload, chance.choice([b"", b"a", b"b"])) if chance.random() < 0.5 else b"")


def _attributes(chance: random.Random, depth: int) -> bytes:
    return _piece(5, _attribute(chance, depth)) if chance.random() < 0.3 else b""


def _graph(chance: random.Random, depth: int) -> bytes:
    found = b""
    for _ in range(chance.randrange(4)):
        kind = chance.randrange(4)
        if kind < 2:
            found += _piece(5, _tensor(chance))
        elif kind == 2:
            found += _piece(15, _piece(1, _tensor(chance)) + _piece(2, _tensor(chance)))
        elif depth:
            found += _piece(1, _named(chance, 7, 4, 8) + _attributes(chance, depth - 1))
    return found


def _attribute(chance: random.Random, depth: int) -> bytes:
    field = chance.choice([5, 10, 6, 11, 22])
    if field in (6, 11):
        return _piece(field, _graph(chance, depth))
    return _piece(field, _piece(1, _tensor(chance)) if field == 22 else _tensor(chance))


def _tensor(chance: random.Random) -> bytes:
    keys = (
        b"location",
        b"offset",
        b"length",
        b"w.bin",
        b"0",
        b"12",
        b"-1",
        b"9" * 19,
        b"9" * 20,
        b"\xff",
        b"",
        b"\xc3\xa9",
        b"'",
    )
    found = b""
    for key in chance.sample(keys[:3], chance.randrange(4)):
        value = b"w.bin" if key == b"location" else b"%d" % chance.randrange(100)
        found += _piece(13, _piece(1, key) + _piece(2, value))
    if chance.random() < 0.3:
        entry = (
            _piece(chance.choice([1, 2, 1, 2, 3]), chance.choice(keys)) for _ in range(chance.choice([2, 2, 2, 1, 3]))
        )
        found += _piece(13, b"".join(entry))
    if chance.random() < 0.5:
        found += _number(14, chance.choice([0, 1, 2, 1 << 32, (1 << 32) + 1, 1 << 64, 1 << 69]))
    if chance.random() < 0.3:
        found += (
            _varint(9 << 3 | 1) + b"12345678" + _varint(9 << 3 | 5) + b"1234" + _piece(9, b"raw" * chance.randrange(5))
        )
    return found
