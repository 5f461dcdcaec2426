"""Mutations that keep a file's form, so that the fuzzer gets past the parser of JSON or of zip archives."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

Mutate = Callable[[bytes, int], bytes]
"""Bytes and the most bytes that may come back."""

_ODD = [None, True, 0, 1, -1, 1 << 63, 1.5, 1e308, "", "..", "a/b", "nul", "\x1b[2J", "\ud800", [], {}, [[]], {"a": 1}]
_AS_BYTES, _STOP = 0.3, 0.3


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


def zip_member(data: bytes, max_size: int, seed: int, fallback: Mutate) -> bytes:
    """Changes the bytes or the name of one member of a zip archive, whose sums fit again afterwards."""
    chance = random.Random(seed)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [[member.filename, archive.read(member)] for member in archive.infolist()]
    except Exception:  # damaged bytes make the parsers raise a dozen kinds
        members = []
    if not members or chance.random() < _AS_BYTES:
        return fallback(data, max_size)
    chosen, other = chance.choice(members), chance.choice(members)
    action = chance.randrange(8)
    if action == 0:
        members.remove(chosen)
    elif action == 1:
        chosen[0] += chance.choice(["x", "/", ".npy"])
    elif action == 2:
        chosen[1] = other[1]
    else:  # the header of an array, of 128 bytes or so, is where most of the decisions are
        cut = min(len(chosen[1]), chance.choice([16, 128, 1 << 20]))
        chosen[1] = fallback(chosen[1][:cut], cut + 16) + chosen[1][cut:]
    return zipped(members)[:max_size]


def zipped(members: list[list[Any]]) -> bytes:
    """An archive of (name, bytes) pairs, without times."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {name: content for name, content in members}.items():  # noqa: C416 - a pair is a list here
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()
