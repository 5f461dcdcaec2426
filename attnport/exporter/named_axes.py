"""Operations of the package einx on named axes, which a trace cannot follow, written with sizes that stay symbolic.

einx makes a Python number of each size and compiles a function for these numbers, so that every size is a constant
behind `einx.where('b n, b n d, -> b n d', mask, x, 0.)`, which x-transformers computes wherever it is given a mask.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from attnport.patches import Patch, everywhere

_NAMED = {
    "where": "where",
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "true_divide",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "maximum": "maximum",
    "minimum": "minimum",
}
"""What each operation of elements is called in torch."""
_GROUP = re.compile(r"\([^()]*\)|[^\s()]+")
"""An axis of a result, or several that become one."""
_AXIS = re.compile(r"[A-Za-z_]\w*|\.\.\.")


def named_axes() -> Iterator[Patch]:
    """Patches of the operations of elements; none if einx is not imported."""
    package = sys.modules.get("einx")
    own = {name: getattr(package, name) for name in _NAMED if hasattr(package, name)}
    return everywhere({of: _written(of, getattr(torch, _NAMED[name])) for name, of in own.items()})


def _written(of: Callable[..., Any], operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of elements, of einx where its description has more than names of axes."""

    @functools.wraps(of)
    def called(description: str, *given: Any, **options: Any) -> Any:
        sides = description.split("->")
        groups = _GROUP.findall(sides[1]) if len(sides) == 2 else []
        apart = "->".join([sides[0], *(re.sub("[()]", " ", side) for side in sides[1:])]) if groups else description
        values = None if options else aligned(apart, given)
        if values is None:
            return of(description, *given, **options)
        several = len(values) > 2 and operation.__name__ != "where"
        found = functools.reduce(operation, values) if several else operation(*values)
        rest = found.dim() - sum(len(group.split()) for group in groups) + 1
        at = 0
        for group in groups:
            axes = sum(rest if name == "..." else 1 for name in group.strip("()").split())
            if group != "..." and axes > 1:
                found, axes = found.flatten(at, at + axes - 1), 1
            at += axes
        return found

    return called


def aligned(description: str, given: tuple[Any, ...]) -> list[Any] | None:
    """The values with the axes of the result, in its order; None for a description with more than names of axes.

    Args:
        description: `b n, b n d, -> b n d`; without a result, that is the value that has all axes. The result may have
            axes `1`.
        given: Tensors and numbers.
    """
    sides = description.split("->")
    axes = [part.split() for part in sides[0].split(",")]
    named = {name for own in axes for name in own}
    result = sides[1].split() if len(sides) == 2 else next((own for own in axes if set(own) == named), [])
    own_axes = [name for name in result if name != "1"]
    if set(own_axes) != named or len(own_axes) != len(named) or len(axes) != len(given):
        return None
    if not all(_AXIS.fullmatch(name) for name in named) or any(len(set(own)) < len(own) for own in axes):
        return None
    # "..." stands for the same number of axes in every value.
    rests = {value.dim() - len(own) + 1 for value, own in zip(given, axes, strict=True)
             if "..." in own and isinstance(value, torch.Tensor)}  # fmt: skip
    if len(rests) > 1:
        return None
    rest = [f"...{at}" for at in range(next(iter(rests), 0))]
    whole = _spread(result, rest)
    values = []
    for value, own in zip(given, (_spread(each, rest) for each in axes), strict=True):
        if not isinstance(value, torch.Tensor):
            if own:
                return None
            values.append(value)
            continue
        if value.dim() != len(own):
            return None
        places = [own.index(name) for name in whole if name in own]
        values.append(value.permute(places)[tuple(slice(None) if name in own else None for name in whole)])
    return values


def _spread(names: list[str], rest: list[str]) -> list[str]:
    """Names with those of the rest in place of `...`."""
    return list(itertools.chain.from_iterable(rest if name == "..." else [name] for name in names))
