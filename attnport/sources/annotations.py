"""What structure a parameter of a forward takes, by its annotation."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError

if TYPE_CHECKING:
    from torch import nn

Make = Callable[[dict[str, Any]], Any]


def parameter_types(module: nn.Module) -> Mapping[str, Any]:
    """The annotations of a module's forward by parameter; those that cannot be resolved are left out."""
    forward = inspect.unwrap(module.forward)
    try:
        return typing.get_type_hints(forward)
    except Exception:  # an annotation may name what is imported for type checkers alone
        found = getattr(forward, "__annotations__", {})
        return {name: kind for name, kind in found.items() if not isinstance(kind, str)}


def structure_of(annotation: Any, keys: Sequence[str], path: str) -> tuple[Make, Mapping[str, Any]]:
    """What makes a structure of parts by key, and the annotations of the parts.

    A dataclass, a named tuple, a TypedDict, a cache of transformers, lists, tuples and dicts are made as annotated.
    Without an annotation, numbers are the places of a tuple, and names the keys of a dict.

    Raises:
        SpecError: the places are not 0, 1, 2, ...
    """
    options = [each for each in _options(annotation) if _fits(each, keys)]
    kind: Any = options[0] if options else None
    origin = typing.get_origin(kind) or kind
    numbered = all(key.isdigit() for key in keys)
    if numbered and not is_cache(origin) and sorted(map(int, keys)) != list(range(len(keys))):
        raise SpecError(
            f"--input {path}: got the places {', '.join(keys)}; expected 0 to {len(keys) - 1}, each once.",
        )
    if is_cache(origin):
        return (lambda parts: _cache(origin, parts)), {}
    if dataclasses.is_dataclass(origin) or _is_named_tuple(origin):
        return (lambda parts: origin(**parts)), getattr(origin, "__annotations__", {})
    if numbered and origin is not dict:
        sequence = list if origin in (list, typing.get_origin(Sequence[Any])) else tuple
        part_types = [each for each in typing.get_args(kind) if each is not Ellipsis]
        repeated = len(part_types) == 1
        found = {key: part_types[0 if repeated else int(key)] for key in keys if repeated or int(key) < len(part_types)}
        return (lambda parts: sequence(parts.values())), found
    values = typing.get_args(kind)[1:] if origin in (dict, typing.get_origin(Mapping[str, Any])) else ()
    known = getattr(origin, "__annotations__", {}) if typing.is_typeddict(origin) else {}
    return dict, dict.fromkeys(keys, values[0]) if values else known


def _options(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: those of a union, in order."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(each for each in typing.get_args(annotation) if each is not type(None))
    return () if annotation is None else (annotation,)


def _fits(kind: Any, keys: Sequence[str]) -> bool:
    origin = typing.get_origin(kind) or kind
    numbered = all(key.isdigit() for key in keys)
    if is_cache(origin):
        return numbered
    if dataclasses.is_dataclass(origin):
        return {field.name for field in dataclasses.fields(origin)} >= set(keys)
    if _is_named_tuple(origin):
        return set(origin._fields) >= set(keys)
    if origin in (list, tuple, typing.get_origin(Sequence[Any])):
        return numbered
    return origin in (dict, typing.get_origin(Mapping[str, Any])) or typing.is_typeddict(origin)


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_cache(kind: Any) -> bool:
    """Whether a class is a cache of transformers that takes keys and values."""
    return isinstance(kind, type) and any(
        base.__name__ == "Cache" and base.__module__ == "transformers.cache_utils" for base in kind.__mro__
    )


def _cache(kind: Any, parts: dict[str, Any]) -> Any:
    """A cache of transformers; of the class that only stands for all caches, the usual one."""
    if kind.__name__ == "Cache":
        from transformers import DynamicCache

        kind = DynamicCache
    return kind([_pair(part) for part in parts.values()])


def _pair(part: Any) -> tuple[Any, Any]:
    """Keys and values of a layer, declared as `key` and `value`, or as 0 and 1."""
    key, value = (part["key"], part["value"]) if isinstance(part, dict) else part
    return key, value
