"""Checks JSON against as much of JSON Schema as docs/schemas uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
SAID = {"$schema", "$id", "$defs", "description", "default"}
"""Keys that allow anything."""


def problems(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Where a value breaks a schema, and the keyword that it breaks.

    Raises:
        NotImplementedError: the schema has a keyword that is not checked here.
    """
    for keyword, given in schema.items():
        if keyword == "$ref":
            yield from problems(value, root["$defs"][given.removeprefix("#/$defs/")], root, place)
        elif keyword == "anyOf":
            if all(any(problems(value, each, root, place)) for each in given):
                yield f"{place} anyOf"
        elif keyword in BROKEN:
            if BROKEN[keyword](value, given):
                yield f"{place} {keyword}"
        elif keyword in INSIDE:
            for key, item, part in INSIDE[keyword](value, given, schema):
                yield from problems(item, part, root, f"{place}.{key}")
        elif keyword not in SAID:
            raise NotImplementedError(keyword)


def _wrong_type(value: Any, given: str) -> bool:
    is_flag = isinstance(value, bool)  # which Python counts as a whole number
    return not isinstance(value, TYPES[given]) or (is_flag and given != "boolean")


BROKEN: dict[str, Any] = {
    "type": _wrong_type,
    "const": lambda value, given: value != given,
    "enum": lambda value, given: value not in given,
    "required": lambda value, given: isinstance(value, dict) and not value.keys() >= set(given),
    "minItems": lambda value, given: isinstance(value, list) and len(value) < given,
    "maxItems": lambda value, given: isinstance(value, list) and len(value) > given,
}
Parts = list[tuple[Any, Any, Mapping[str, Any]]]


def _properties(value: Any, given: Mapping[str, Any], _: Mapping[str, Any]) -> Parts:
    return [(key, value[key], part) for key, part in given.items() if key in value] if isinstance(value, dict) else []


def _others(value: Any, given: Any, schema: Mapping[str, Any]) -> Parts:
    known = schema.get("properties", {})
    others = [key for key in value if key not in known] if isinstance(value, dict) and given is not True else []
    return [(key, value[key], given) for key in others]


def _items(value: Any, given: Mapping[str, Any], _: Mapping[str, Any]) -> Parts:
    return [(place, item, given) for place, item in enumerate(value)] if isinstance(value, list) else []


def _prefix(value: Any, given: list[Mapping[str, Any]], _: Mapping[str, Any]) -> Parts:
    pairs = zip(value, given, strict=False) if isinstance(value, list) else ()
    return [(place, item, part) for place, (item, part) in enumerate(pairs)]


INSIDE = {"properties": _properties, "additionalProperties": _others, "items": _items, "prefixItems": _prefix}
