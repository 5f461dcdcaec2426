"""Decodes JSON from an untrusted file into dataclasses, strictly and within limits.

Refused: duplicate keys, NaN and Inf, unknown keys, missing keys (but for fields that say `optional`), wrong types (a
bool is not a number), integers that a double cannot hold, long text, text that cannot be printed, and deep nesting.
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

from .errors import IntegrityError, UsageError
from .printable import is_printable

T = TypeVar("T")
AnyText = NewType("AnyText", str)
"""Text that need not be printable, as it has several lines. A message must not show it as it is."""
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
"""The pydantic configuration with which attnport reads these values; a plain dict, as the reader has no pydantic."""
MAX_DEPTH = 32
MAX_TEXT = 1000
MAX_INTEGER = (1 << 53) - 1
"""The largest integer that every JSON reader reads exactly."""
_MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def parse(data: bytes, where: str) -> Any:
    """Parses JSON text. Raises IntegrityError naming `where`."""
    try:
        _check_depth(data)
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as err:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise IntegrityError(f"{where} is not valid: {err}") from err


def _check_depth(data: bytes) -> None:
    depth, quoted, escaped = 0, False, False
    for byte in data:
        if quoted:
            quoted, escaped = escaped or byte != 0x22, byte == 0x5C and not escaped
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
        elif byte in b"]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"key {_short(key)} is there twice")
        unique[key] = value
    return unique


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{_short(text)} is out of range")
    return value


def decode(kind: type[T], value: Any, where: str) -> T:
    """Turns parsed JSON into a `kind`: a dataclass, or any type that its fields may have.

    Raises:
        IntegrityError: the value does not fit; names the place in the file, what was got and what is expected.
    """
    result: T = _decode(kind, value, where)
    return result


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), value, where)
    if origin in (typing.Union, types.UnionType):
        fitting = [arg for arg in args if _fits(arg, value)]
        if fitting:
            return _decode(fitting[0], value, where)
    elif origin is tuple and isinstance(value, list):
        return tuple(_decode(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    elif origin is Mapping and isinstance(value, dict):
        return {_decode(str, key, where): _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    elif origin is Literal and any(type(value) is type(arg) and value == arg for arg in args):
        return value
    elif kind is AnyText and type(value) is str:
        _check_text(value, where, printable=False)
        return value
    elif kind is float and type(value) is int and abs(value) <= MAX_INTEGER:
        return float(value)
    elif type(value) is kind and not (kind is int and abs(value) > MAX_INTEGER):
        if kind is str:
            _check_text(value, where)
        return value
    raise IntegrityError(f"{where}: got {_short(value)}; expected {_type_name(kind)}.")


def _decode_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise IntegrityError(f"{where}: got {_short(value)}; expected {_type_name(kind)}.")
    hints = _hints(kind)
    for key in value:
        if key not in hints:
            raise IntegrityError(f"{where}: unknown key {_short(key)}.")
    for field in dataclasses.fields(kind):
        if field.name not in value and not field.metadata.get("optional"):
            raise IntegrityError(f"{where}: key {field.name!r} is missing.")
    fields = {key: _decode(hints[key], item, f"{where}.{key}" if where else key) for key, item in value.items()}
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
        return isinstance(value, dict)
    return type(value) is kind or (kind is float and type(value) is int)


def _check_text(value: str, where: str, *, printable: bool = True) -> None:
    """Refuses control characters and the like where messages print the text to a terminal."""
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise IntegrityError(f"{where}: half of a surrogate pair.")
    if (printable and not is_printable(value)) or len(value) > MAX_TEXT:
        kind = "printable text" if printable else "text"
        raise IntegrityError(f"{where}: got {_short(value)}; expected {kind} of at most {MAX_TEXT} characters.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(kind: Any) -> str:
    """A type without its modules, whose names depend on where this reader was copied to."""
    if kind is AnyText:
        return "str"
    return kind.__name__ if isinstance(kind, type) else _MODULES.sub("", str(kind))
