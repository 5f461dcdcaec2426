"""Mutations that keep a file's form, so that the fuzzer gets past the parser of JSON or of zip archives."""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

Mutate = Callable[[bytes, int], bytes]
"""Bytes and the most bytes that may come back."""

_ODD = [None, True, 0, 1, -1, 1 << 63, 1.5, 1e308, "", "..", "a/b", "nul", "\x1b[2J", "\ud800", [], {}, [[]], {"a": 1}]
_AS_BYTES = 0.3
_ANY = (TypeError, ValueError, KeyError, RecursionError, zipfile.BadZipFile, zlib.error, OSError, NotImplementedError)


def json_value(data: bytes, max_size: int, seed: int, fallback: Mutate) -> bytes:
    """Replaces, removes, renames or copies one value of a JSON text; what is no JSON goes to `fallback`."""
    chance = random.Random(seed)
    try:
        value = json.loads(data)
        places = [place for place in _places(value) if place]
    except _ANY:
        places = []
    if not places or chance.random() < _AS_BYTES:
        return fallback(data, max_size)
    place = chance.choice(places)
    holder, key = _at(value, place[:-1]), place[-1]
    action = chance.randrange(4)
    if action == 0:
        holder[key] = chance.choice(_ODD)
    elif action == 1:
        del holder[key]
    elif action == 2 and isinstance(holder, dict):
        holder[str(key) + chance.choice(["x", "/..", "", "."])] = holder.pop(key)
    else:
        holder[key] = json.loads(json.dumps(_at(value, chance.choice(places))))
    return json.dumps(value, separators=(",", ":")).encode()[:max_size]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*at, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def zip_member(data: bytes, max_size: int, seed: int, fallback: Mutate) -> bytes:
    """Changes the bytes or the name of one member of a zip archive, whose sums fit again afterwards."""
    chance = random.Random(seed)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [[member.filename, archive.read(member)] for member in archive.infolist()]
    except _ANY:
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
