"""Made-up manifests for the comparison of the two readers: odd values in odd places, from a seed."""

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
    *(_HEAD + b'1,"' + key + b'":1}' for key in (
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
