"""Parameters of which `make test` takes some, and `make test-all` every one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def representatives(values: Iterable[Any], quick: Collection[Any], marks: Mapping[Any, Any] | None = None) -> list[Any]:
    """The values for parametrize: those that are not in `quick` are slow. `marks` has a further mark of some.

    A tuple holds a value for each name.
    """
    values, further = list(values), marks or {}
    missing = [one for one in quick if one not in values]
    assert quick, "not one is quick"
    assert not missing, f"no parameters: {missing}"
    found = []
    for value in values:
        own = [further[value]] if further and value in further else []
        found.append(
            pytest.param(
                *(value if isinstance(value, tuple) else (value,)),
                marks=own if value in quick else [*own, pytest.mark.slow],
            )
        )
    return found


def crossed(*axes: Iterable[Any]) -> list[Any]:
    """Every combination of the axes' values; quick is each value once, beside the first of every other axis."""
    values = [list(axis) for axis in axes]
    first = tuple(axis[0] for axis in values)
    quick = [one for one in itertools.product(*values) if sum(a != b for a, b in zip(one, first, strict=True)) <= 1]
    return representatives(itertools.product(*values), quick)
