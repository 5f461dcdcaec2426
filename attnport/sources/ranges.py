"""The range of a dim for which the user declared none: the part of a usual range at which the module runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attnport.dims import Dim
from attnport.errors import SpecError

_BATCH = "batch"
_TRIED = (128, 16, 224, 64, 8, 32, 240, 360, 2)
"""Sizes of all other dims at which a module is tried at first: tables end, images have to hold a patch, and be
multiples of a window."""


def usual_range(name: str) -> Dim:
    """The range of a dim of which nothing is known but its name."""
    return Dim(name, 1, 8, 64) if name == _BATCH else Dim(name, 1, 128, 512)


def found_ranges(
    names: Sequence[str], declared: Mapping[str, Dim], runs: Callable[[Mapping[str, int]], bool]
) -> tuple[Dim, ...]:
    """The range of every dim, in the order of `names`: as declared, or as far as the module runs.

    Args:
        runs: Whether the module runs at given sizes of all dims. It is taken to run at all sizes between two at which
            it runs; or at all multiples of a number, if it runs at no size beside the first one.

    Raises:
        SpecError: it runs at one size of a dim alone.
    """
    wanted = {name: declared.get(name) or usual_range(name) for name in names}
    start = _start(names, declared, runs)
    if start is None:
        return tuple(wanted.values())  # observing the outputs says what is wrong

    for name, dim in wanted.items():
        if name in declared:
            continue
        found = range_by_trying(dim, start[name], partial(_runs_with, runs, start, name))
        if found.min == found.max:
            raise SpecError(
                f"dim {name!r} is frozen in the module: it runs at {name}={start[name]} and at no other size.",
                hint="Look for a literal size in view, reshape or expand, or declare the number in place of the name. "
                "A size that follows from other dims is declared so: past+seq.",
            )
        wanted[name] = found
    return tuple(wanted.values())


def range_by_trying(dim: Dim, start: int, runs: Callable[[int], bool]) -> Dim:
    """The part of a range, around `start`, at which a module runs.

    Args:
        runs: Whether it runs at a size; it does at `start`, and is taken to run at all sizes between two at which it
            runs; or at all multiples of a number, if it runs at no size beside `start`.
    """
    least, step = dim.min, 1
    if not runs(least):
        step = _step(start, dim, runs)
        least = _first(runs, -(-least // step) * step, start, step, True)
    most = dim.max // step * step
    if not runs(most):
        most = _first(runs, start, most, step, False) - step
    return Dim(dim.name, least, max(least, min(-(-dim.opt // step) * step, most)), most, step)


def _runs_with(runs: Callable[[Mapping[str, int]], bool], sizes: Mapping[str, int], name: str, size: int) -> bool:
    return runs({**sizes, name: size})


def _first(runs: Callable[[int], bool], low: int, high: int, step: int, at_high: bool) -> int:
    """The first multiple from `low` on at which running is as `at_high`, which it is at `high`."""
    low -= step
    while high - low > step:
        middle = (low + high) // step // 2 * step
        if runs(middle) == at_high:
            high = middle
        else:
            low = middle
    return high


def _step(usual: int, dim: Dim, runs: Callable[[int], bool]) -> int:
    """The number whose multiples a dim takes, from sizes beside one that it takes; 1 = it takes others too."""
    for step in (step for step in range(1, usual + 1) if usual % step == 0):
        if any(dim.min <= size <= dim.max and runs(size) for size in (usual + step, usual - step)):
            return step
    return 1


def _start(
    wanted: Sequence[str], declared: Mapping[str, Dim], runs: Callable[[Mapping[str, int]], bool]
) -> dict[str, int] | None:
    """Sizes of all dims at which the module runs; None if it runs at none of those that are tried."""
    for size in _TRIED:
        sizes = {name: 2 if name == _BATCH else size for name in wanted}
        sizes |= {name: dim.opt for name, dim in declared.items()}
        if runs(sizes):
            return sizes
    return None
