"""Decodes JSON from an untrusted file into dataclasses, strictly and within limits.

Refused: duplicate keys, NaN and Inf, unknown keys, missing keys, wrong types (a bool is not a number) and deep nesting;
unless the file is of attnport's own making, also integers that a double cannot hold, and text that is long or cannot
be printed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, NewType, TypeVar

from ..arguments import shown
from ..errors import IntegrityError, UsageError, is_printable

T = TypeVar("T")
AnyText = NewType("AnyText", str)
"""Text that need not be printable, as it has several lines. A message must not show it as it is."""
MAX_DEPTH = 32
MAX_TEXT = 1000
MAX_INTEGER = (1 << 53) - 1
"""The largest integer that every JSON reader reads exactly."""
_MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def parse(data: bytes, where: str) -> Any:
    """Parses JSON text. Raises IntegrityError naming `where`."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
        if _depth(value) > MAX_DEPTH:
            raise RecursionError
    except RecursionError as err:
        raise IntegrityError(f"{where} is not valid: nested deeper than {MAX_DEPTH}") from err
    except ValueError as err:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise IntegrityError(f"{where} is not valid: {err}") from err
    return value


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"key {shown(key)} is there twice")
        unique[key] = value
    return unique


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is out of range")
    return value


def decode(kind: type[T], value: Any, where: str, *, own: bool = False) -> T:
    """Turns parsed JSON into a `kind`: a dataclass, or any type that its fields may have.

    Args:
        own: Whether the file is one that attnport writes for itself: text and integers may be any, and keys that have a
            default may be missing.

    Raises:
        IntegrityError: the value does not fit; names the place in the file, what was got and what is expected.
    """
    result: T = _decode(kind, value, where, own)
    return result


def _decode(kind: Any, value: Any, where: str, own: bool) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), value, where, own)
    if origin in (typing.Union, types.UnionType):
        fitting = [arg for arg in args if _fits(arg, value)]
        if fitting:
            return _decode(fitting[0], value, where, own)
    elif origin is tuple and isinstance(value, list) and (args[-1] is ... or len(args) == len(value)):
        kinds = [args[0]] * len(value) if args[-1] is ... else args
        pairs = zip(kinds, value, strict=True)
        return tuple(_decode(each, item, f"{where}[{index}]", own) for index, (each, item) in enumerate(pairs))
    elif origin is Mapping and isinstance(value, dict):
        items = value.items()
        return {_key(args[0], key, where, own): _decode(args[1], item, _place(where, key), own) for key, item in items}
    elif origin is Literal and any(type(value) is type(arg) and value == arg for arg in args):
        return value
    elif kind in (str, AnyText) and type(value) is str:
        _check_text(value, where, printable=kind is str, own=own)
        return value
    elif type(value) is int and kind in (int, float) and (own or abs(value) <= MAX_INTEGER):
        return kind(value)
    elif type(value) is kind and kind is not int:
        return value
    raise IntegrityError(f"{where}: got {shown(value)}; expected {_type_name(kind)}.")


def _place(where: str, key: str) -> str:
    """Such as `bundle.json: io.dims[0].max`."""
    return f"{where}: {key}" if where.endswith(".json") else f"{where}.{key}" if where else key


def _key(kind: type, key: str, where: str, own: bool) -> Any:
    """The key of a mapping: JSON has no other keys than texts, so that one of numbers is written in digits."""
    if kind is int and re.fullmatch(r"-?[0-9]{1,16}", key):
        return int(key)
    return _decode(kind, key, where, own)


def _decode_dataclass(kind: type, value: Any, where: str, own: bool) -> Any:
    if not isinstance(value, dict):
        raise IntegrityError(f"{where}: got {shown(value)}; expected {_type_name(kind)}.")
    hints = _hints(kind)
    for key in value:
        if key not in hints:
            raise IntegrityError(f"{where}: unknown key {shown(key)}.")
    for field in dataclasses.fields(kind):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in value and not (own and has_default):
            raise IntegrityError(f"{where}: key {field.name!r} is missing{'' if own else ' (of another release?)'}.")
    fields = {key: _decode(hints[key], item, _place(where, key), own) for key, item in value.items()}
    try:
        return kind(**fields)
    except (UsageError, ValueError) as err:
        raise IntegrityError(f"{where}: {err}") from err


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass' fields. Without the cache, most of the time to read a manifest would go here."""
    return typing.get_type_hints(kind)


def _fits(kind: Any, value: Any) -> bool:
    if kind is type(None):
        return value is None
    if dataclasses.is_dataclass(kind):
        # Of several kinds of report, the key `schema` says which it is.
        named = next((field.default for field in dataclasses.fields(kind) if field.name == "schema"), None)
        return isinstance(value, dict) and value.get("schema") in (None, named)
    origin = typing.get_origin(kind)
    if origin in (tuple, Mapping, Literal):
        return isinstance(value, {tuple: list, Mapping: dict}.get(origin, str))
    return type(value) is kind or (kind is float and type(value) is int)


def _check_text(value: str, where: str, *, printable: bool, own: bool) -> None:
    """Refuses control characters and the like where messages print the text to a terminal."""
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise IntegrityError(f"{where}: half of a surrogate pair.")
    if not own and ((printable and not is_printable(value)) or len(value) > MAX_TEXT):
        kind = "printable text" if printable else "text"
        raise IntegrityError(f"{where}: got {shown(value)}; expected {kind} of at most {MAX_TEXT} characters.")


def _type_name(kind: Any) -> str:
    """A type without its modules, whose names depend on where this reader was copied to."""
    if kind is AnyText:
        return "str"
    return kind.__name__ if isinstance(kind, type) else _MODULES.sub("", str(kind))
