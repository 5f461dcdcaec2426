"""Mutations that keep a file's form, so that the fuzzer gets past the parsers and not only to their first refusal."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Mutate = Callable[[bytes, int], bytes]
"""Bytes and the most bytes that may come back."""

_ODD = [None, True, 0, 1, -1, 1 << 63, 1.5, 1e308, "", "..", "a/b", "nul", "\x1b[2J", "\ud800", [], {}, [[]], {"a": 1}]
_AS_BYTES, _STOP, _IN_HEADER = 0.3, 0.3, 0.8


def json_value(data: bytes, max_size: int, seed: int, fallback: Mutate) -> bytes:
    """Replaces, removes, renames or copies one value of a JSON text; what is no JSON goes to `fallback`."""
    chance = random.Random(seed)
    try:
        value = json.loads(data)
    except Exception:  # damaged bytes make the parsers raise a dozen kinds
        value = None
    if not isinstance(value, dict | list) or not value or chance.random() < _AS_BYTES:
        return fallback(data, max_size)
    holder, key = _place(value, chance)
    action = chance.randrange(5)
    if action <= 1:
        holder[key] = chance.choice(_ODD)
    elif action == 2:
        del holder[key]
    elif action == 3 and isinstance(holder, dict):
        holder[str(key) + chance.choice(["x", "/..", "", "."])] = holder.pop(key)
    else:
        other, name = _place(value, chance)
        holder[key] = json.loads(json.dumps(other[name]))
    return json.dumps(value, separators=(",", ":")).encode()[:max_size]


def _place(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """A holder and a key in it, by a walk down from the top, so that few deep lists do not draw all the mutations."""
    while True:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < _STOP:
            return value, key
        value = inner


def safetensors_file(data: bytes, max_size: int, seed: int, fallback: Mutate) -> bytes:
    """Changes one value in the header of a safetensors file, whose length fits again afterwards, or the data."""
    chance = random.Random(seed)
    end = 8 + int.from_bytes(data[:8], "little")
    if end > len(data) or chance.random() < _AS_BYTES:
        return fallback(data, max_size)
    header, content = data[8:end], data[end:]
    if chance.random() < _IN_HEADER:
        header = json_value(header, max_size, seed, fallback)
    else:
        content = fallback(content, max_size)
    return (len(header).to_bytes(8, "little") + header + content)[:max_size]
