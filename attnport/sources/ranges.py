"""The range of a dim for which the user declared none, the part of a usual range at which the module runs; and a check
of those that are declared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from attnport.budget import Budget
from attnport.dims import Dim, distinct_sizes, prime
from attnport.errors import SpecError
from attnport.options import advised

_BATCH = "batch"
_FIRST = (16, 8, 32, 64)
"""Sizes of all other dims at which a module is run before any other, to see what it takes."""
_STEPS = (1, 2, 4, 8, 16, 32)
"""Numbers of which sizes may have to be multiples to go together."""
_TRIED = (128, 16, 224, 64, 8, 32, 240, 360, 2)
"""Sizes from which ranges are looked for: tables end, images have to hold a patch, and be multiples of a window."""

Sizes = Mapping[str, int]


def usual_range(name: str) -> Dim:
    """The range of a dim of which nothing is known but its name."""
    return Dim(name, 1, 8, 64) if name == _BATCH else Dim(name, 1, 128, 512)


def found_ranges(
    names: Sequence[str],
    declared: Mapping[str, Dim],
    runs: Callable[[Sizes], bool],
    budget: Budget | None = None,
    start: Mapping[str, int] | None = None,
    limits: Mapping[str, Dim] = MappingProxyType({}),
) -> tuple[tuple[Dim, ...], tuple[str, ...]]:
    """The range of every dim, in the order of `names`: as declared, or as far as the module runs.

    Args:
        limits: By dim, the range within which it is tried; by default that of its name.
        runs: Whether the module runs at given sizes of all dims. It is taken to run at all sizes between two at which
            it runs; or at all multiples of a number, if it runs at no size beside the first one.
        budget: What the module takes; None = not known yet. A range ends where larger sizes may not fit.
        start: Sizes of all dims at which it runs; None = some are looked for.

    Returns:
        The ranges, and a note on those that end for lack of memory or time, if there are any.

    Raises:
        SpecError: it runs at one size of a dim alone.
    """
    budget = budget or Budget([_BATCH])
    wanted = {name: declared.get(name) or limits.get(name) or usual_range(name) for name in names}
    if start is None:
        start = _start(names, declared, runs, budget)
    else:
        budget.reach(start, runs)  # so that it is known what the module takes there
    free = [name for name in wanted if name not in declared]
    if start is None or not free:
        return tuple(wanted.values()), ()  # observing the outputs says what is wrong

    def tries(sizes: Sizes) -> bool:
        return budget.runs_cheaply(sizes, runs)

    lengths = [name for name in free if name != _BATCH]
    usual = dict(wanted)
    _fit_together(wanted, lengths, start, budget, runs)
    for name in free:
        answers: dict[int, bool | None] = {}

        def tried(size: int, name: str = name, answers: dict[int, bool | None] = answers) -> bool | None:
            answers[size] = budget.reach({**start, name: size}, runs)
            # A large batch is tried with small lengths, when the graph is there.
            return True if name == _BATCH and answers[size] is None else answers[size]

        limited = wanted[name].max < usual[name].max
        found = range_by_trying(wanted[name], start[name], tried)
        if found.min == found.max and not limited and None not in answers.values():
            raise SpecError(
                f"dim {name!r} is frozen in the module: it runs at {name}={start[name]} and at no other size.",
                hint="Look for a literal size in view, reshape or expand, or declare the number in place of the name. "
                "A size that follows from other dims is declared so: past+seq.",
            )
        if any(answer is False and size > start[name] for size, answer in answers.items()):
            usual[name] = found  # which ends where the module ends
        # At 1, a dim that has to be equal to another one is repeated to be so.
        if len(names) > 1 and found.max == usual[name].max == start[name] and bound_dims(names, tries):
            raise SpecError(f"dim {name!r} is frozen in the module: it runs at no size above {name}={start[name]}.")
        wanted[name] = _step_beside_others(found, wanted, start, tries)
    _fit_together(wanted, lengths, start, budget, runs)
    if len(lengths) > 1:
        wanted |= _least_together(wanted, lengths, start, tries)
        together = _together(wanted, lengths, start, budget, runs)
        wanted, usual = wanted | together, usual | together
        joint = _in_steps([wanted[name] for name in lengths if name in free], start, tries)
        wanted, usual = wanted | joint, usual | joint
        wanted |= {name: dim for name, dim in _never_shorter(wanted, lengths, start, tries).items() if name in free}
    return tuple(wanted.values()), _left_out(wanted, usual, budget)


def refuse_sizes(
    text: str,
    dims: Sequence[Dim],
    declared: Collection[str],
    runs: Callable[[Sizes], bool],
    budget: Budget,
    problem: Callable[[], str],
) -> None:
    """Raises SpecError for a declared range with an end at which the module does not run, beside small sizes of others.

    A trace, or a run of the graph, would fail later, and with less to say. A size that may not fit is left to these.

    Args:
        text: What errors call the module.
        dims: All dims; the module runs at their `distinct_sizes`.
        declared: The names of those that are declared.
        runs, budget: As of `found_ranges`.
        problem: What the module raised in the last run that failed.
    """
    base = distinct_sizes(dims)
    small = {dim.name: dim.at_least(1 if dim.name == _BATCH else 2) for dim in dims}
    for dim in dims:

        def may_run(size: int, others: Sizes = base, name: str = dim.name) -> bool:
            return budget.reach({**others, name: size}, runs) is not False

        if dim.name not in declared or (may_run(dim.min) and may_run(dim.max, small)):
            continue
        told, found = problem(), range_by_trying(dim, base[dim.name], may_run)
        if (found.min, found.max) != (dim.min, dim.max):
            end = dim.max if found.max < dim.max else dim.min
            raise SpecError(
                f"{text}: dim {dim}: the module does not run at {dim.name}={end}: {told}",
                hint=f"It runs at {found.span}: {advised('dims', [found])}. Without that option, it is found.",
            )


def bound_dims(names: Sequence[str], runs: Callable[[Sizes], bool]) -> tuple[str, str] | None:
    """The dim that follows from others where a module does not run at sizes that all differ, and what it has to be.

    Args:
        runs: Whether the module runs at given sizes of these dims.

    Returns:
        A dim and an expression, such as `("sequence", "seq")` or `("total", "past+seq")`; None if there is none.
    """
    pairs = list(itertools.combinations(names, 2))
    # Of two that are equal, the later one is told as the other's second name.
    rules: list[tuple[str, tuple[str, ...], str]] = [(other, (one,), one) for one, other in pairs]
    rules += [(name, pair, "+".join(pair)) for pair in pairs for name in names if name not in pair]
    rules += [(name, (one, one), f"2*{one}") for one, name in itertools.permutations(names, 2)]
    for unit in (8, 16, 2, 1):  # a module may take multiples alone; of attention over pixels, 40 by 48 take long
        different = [
            {name: unit * (by * index + first) for index, name in enumerate(names)} for first, by in ((5, 1), (7, 3))
        ]
        falling = {name: unit * (5 + index) for index, name in enumerate(reversed(names))}  # if one is at most another
        if any(map(runs, (*different, falling))):
            return None
        for name, parts, expression in rules:
            if all(runs({**sizes, name: sum(sizes[part] for part in parts)}) for sizes in different):
                return name, expression
    return None


def _fit_together(
    dims: dict[str, Dim], lengths: Sequence[str], start: Sizes, budget: Budget, runs: Callable[[Sizes], bool]
) -> None:
    """Halves ranges, in place, until one item of the largest lengths fits, and then usual sizes until a batch does."""

    def fit(largest: bool) -> bool:
        sizes = {**start, **{name: dims[name].max if largest else dims[name].opt for name in lengths}}
        if _BATCH in dims:
            sizes[_BATCH] = dims[_BATCH].min if largest else dims[_BATCH].opt
        return budget.fits(sizes) or budget.reach(sizes, runs) is not None

    while not fit(largest=True) and (longer := [dims[name] for name in lengths if dims[name].max > start[name]]):
        most = max(dim.max for dim in longer)
        for dim in longer:
            end = max(start[dim.name], most // 2 // dim.step * dim.step)
            dims[dim.name] = replace(dim, opt=min(dim.opt, end), max=min(dim.max, end))
    while not fit(largest=False) and (longer := [dims[name] for name in lengths if dims[name].opt > dims[name].min]):
        most = max(dim.opt for dim in longer)
        for dim in longer:
            dims[dim.name] = replace(dim, opt=min(dim.opt, dim.at_least(most // 2)))


def _least_together(
    dims: Mapping[str, Dim], lengths: Sequence[str], start: Sizes, runs: Callable[[Sizes], bool]
) -> dict[str, Dim]:
    """The ranges with twice their smallest lengths, and so on, until the module runs at all of these at once; none
    where it does at none below `start`.

    A norm over the pixels of a picture takes 1 by 2 pixels and 2 by 1, and not 1 by 1.
    """
    least = {name: dims[name].min for name in lengths}
    while not runs({**start, **least}):
        if all(size >= start[name] for name, size in least.items()):
            return {}
        least = {name: min(2 * size, max(start[name], size)) for name, size in least.items()}
    return {
        name: replace(dims[name], min=size, opt=max(dims[name].opt, size))
        for name, size in least.items()
        if size > dims[name].min
    }


def _together(
    dims: Mapping[str, Dim], lengths: Sequence[str], start: Sizes, budget: Budget, runs: Callable[[Sizes], bool]
) -> dict[str, Dim]:
    """The ranges halved until the module runs at all largest lengths at once; none where it does at none above `start`,
    or where that takes long to know.

    A table of as many positions as a picture has patches takes a high picture or a wide one.
    """
    most = {name: dims[name].max for name in lengths}
    while any(size > start[name] for name, size in most.items()):
        answer = budget.reach({**start, **most}, runs) if budget.cheap({**start, **most}) else None
        if answer is None:
            return {}
        if answer:
            break
        most = {name: max(start[name], size // 2 // dims[name].step * dims[name].step) for name, size in most.items()}
    else:
        return {}
    shorter = {name: size for name, size in most.items() if size < dims[name].max}
    return {name: replace(dims[name], opt=min(dims[name].opt, size), max=size) for name, size in shorter.items()}


def _never_shorter(
    dims: Mapping[str, Dim], lengths: Sequence[str], start: Sizes, runs: Callable[[Sizes], bool]
) -> dict[str, Dim]:
    """New ranges for lengths that have to be at least another length: they begin at the largest size of the other.

    In TabPFN the first rows of a table have labels, so that there are at least as many rows as labels.
    """
    found: dict[str, Dim] = {}
    for shorter, name in itertools.permutations(lengths, 2):
        most, dim = dims[shorter].max, dims[name]
        least = dim.at_least(most)
        if dim.min < most <= least <= start[name] and not runs({**start, shorter: most, name: dim.min}):
            found[name] = replace(dim, min=least, opt=max(dim.opt, least))
    return found


def _in_steps(dims: Sequence[Dim], start: Sizes, runs: Callable[[Sizes], bool]) -> dict[str, Dim]:
    """The dims as multiples of the smallest number at which the module runs with all of them different; none where it
    does at any sizes, or at no such multiples.

    Attention over four equal parts of a picture takes 16 by 5 pixels and 5 by 16, and not 5 by 5.
    """
    for step in _STEPS if len(dims) > 1 and all(dim.step == 1 for dim in dims) else ():
        tried = [{dim.name: dim.at_least(step * prime(at + first)) for at, dim in enumerate(dims)} for first in (3, 4)]
        answers = [runs({**start, **sizes}) for sizes in tried]
        if all(answers) or (step == 1 and any(answers)):
            ends = {dim.name: [size // step * step for size in (dim.min + step - 1, dim.opt, dim.max)] for dim in dims}
            stepped = {name: Dim(name, low, opt, high, step) for name, (low, opt, high) in ends.items()}
            return {} if step == 1 else stepped
    return {}


def _step_beside_others(dim: Dim, dims: Mapping[str, Dim], start: Sizes, runs: Callable[[Sizes], bool]) -> Dim:
    """Doubles the step of a dim until the module also runs when the other dims have other sizes.

    `x.view(-1, 32)` takes multiples of 4 beside 8 rows, and multiples of 32 beside any.
    """
    others = {name: other.at_least(start[name] + 1) for name, other in dims.items() if other.step == 1}
    step = dim.step
    while step > 1 and start[dim.name] % step == 0 and not runs({**start, **others, dim.name: start[dim.name] + step}):
        step *= 2
    if step == dim.step or start[dim.name] % step:
        return dim
    least, usual, most = (-(-dim.min // step), -(-dim.opt // step), dim.max // step)
    return Dim(dim.name, least * step, min(usual, most) * step, most * step, step)


def _left_out(dims: Mapping[str, Dim], usual: Mapping[str, Dim], budget: Budget) -> tuple[str, ...]:
    """Says which sizes were not tried; `usual` are the ranges that the module may have."""
    ends = {name: usual[name].max // dim.step * dim.step for name, dim in dims.items()}
    short = [dim for dim in dims.values() if dim.max < ends[dim.name]]
    if not short:
        return ()
    sizes = {name: dim.min if name == _BATCH else dim.max for name, dim in dims.items()}
    cost = budget.cost({**sizes, **{dim.name: min(2 * dim.max, ends[dim.name]) for dim in short}})
    further = advised("dims", [replace(dim, max=ends[dim.name]) for dim in short])
    tried = ", ".join(f"{dim.name} up to {dim.max}" for dim in short)
    return (f"sizes are taken as far as they could be tried, {tried}. Larger ones may take up to {cost}: {further}",)


def range_by_trying(dim: Dim, start: int, runs: Callable[[int], bool | None]) -> Dim:
    """The part of a range, around `start`, at which a module runs.

    Args:
        runs: Whether it runs at a size; it does at `start`, and is taken to run at all sizes between two at which it
            runs; or at all multiples of a number, if it runs at no size beside `start`. None = a size is too large to
            be tried.
    """
    least, step = dim.min, 1
    if not runs(least) or (1 < least < dim.max and runs(least + 1) is False):
        step = _step(start, dim, runs)
        least = _first(runs, -(-least // step) * step, start, step, True)
    most = dim.max // step * step
    low, answer = start, runs(most)
    if answer is None:  # up to where the next one is too large
        while 2 * low < most and (answer := runs(2 * low)):
            low *= 2
        most = 2 * low if answer is False else low
    if answer is False:
        most = _first(runs, low, most, step, False) - step
    return Dim(dim.name, least, max(least, min(-(-dim.opt // step) * step, most)), most, step)


def _first(runs: Callable[[int], bool | None], low: int, high: int, step: int, at_high: bool) -> int:
    """The first multiple from `low` on at which running is as `at_high`, which it is at `high`."""
    low -= step
    while high - low > step:
        middle = (low + high) // step // 2 * step
        if runs(middle) == at_high:
            high = middle
        else:
            low = middle
    return high


def _step(usual: int, dim: Dim, runs: Callable[[int], bool | None]) -> int:
    """The number whose multiples a dim takes, from sizes beside one that it takes; 1 = it takes others too.

    What pads or cuts off takes a few sizes beside a multiple too, on one side of it: a number counts if the module runs
    on both sides, or if it runs nowhere on the other, and not again further off than where it fails.
    """
    steps = [step for step in range(1, usual + 1) if usual % step == 0]
    beside = {by: bool(dim.min <= usual + by <= dim.max and runs(usual + by)) for step in steps for by in (step, -step)}
    for at, step in enumerate(steps):
        sides = [[beside[sign * each] for each in steps[at:]] for sign in (1, -1)]
        running = [side for side in sides if any(side)]
        again = len(running) == 1 and running[0] != sorted(running[0], reverse=True)
        if running and all(side[0] for side in running) and not again:
            return step
    return 1


def _start(
    wanted: Sequence[str], declared: Mapping[str, Dim], runs: Callable[[Sizes], bool], budget: Budget
) -> dict[str, int] | None:
    """Sizes of all dims at which the module runs; None if it runs at none of those that are tried."""

    def sizes_of(size: int) -> dict[str, int]:
        return {name: 2 if name == _BATCH else size for name in wanted}

    usual = {name: dim.opt for name, dim in declared.items()}
    for size in _FIRST:
        # Sizes that are declared may all be large, and may run or not; what small ones take tells it.
        if budget.reach({name: min(usual.get(name, at), at) for name, at in sizes_of(size).items()}, runs):
            break
    if all(name in declared for name in wanted):
        return None
    return next((sizes for size in _TRIED if budget.reach(sizes := {**sizes_of(size), **usual}, runs)), None)
