"""Tries an exported graph at sizes that were not traced, and says which dim froze where it is wrong."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnport.artifacts import UNKNOWN_SIZE, CaseResult, Dim, IOContract, Session
from attnport.budget import Budget
from attnport.cases.inputs import Array, Case, batch_dim, full_case, largest_size
from attnport.dims import distinct_sizes
from attnport.errors import AttnportError, ExportError, UsageError
from attnport.options import advised
from attnport.parity.bound import (
    JUMPS,
    NO_ROUNDING,
    Errors,
    Yardstick,
    floor,
    judge,
    measure_all,
    within_rounding,
    worse,
)
from attnport.parity.metrics import without_fills
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport_bundle.feeds import check_feeds

if TYPE_CHECKING:
    from attnport.exporter.guards import Guard

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Gives outputs by name, in contract order."""

_CHECKERS = ("ort_cpu", "onnx_reference")
_BEYOND = re.compile(r"out of data bounds, idx=(-?\d+) must be within the inclusive range \[-?\d+,(\d+)\]")
"""What ONNX Runtime says of a `Gather` whose index is beyond its table: the index, and the last row."""
_FURTHER = 32
"""How many larger sizes are tried where a module gives nothing at one."""
_CONTRADICTED = "Declare what is right at every size, such as past+seq, or narrow the range of a dim."


def size_cases(io: IOContract, guards: Sequence[Guard] = ()) -> list[tuple[str | Guard | None, Case]]:
    """The sizes at which an export is checked, each with the dim that it varies or the guard that is false there.

    These are the sizes of `guards`, a base of primes, other primes, for each dim its smallest and its largest size, and
    one size for all dims: a trace has different ones, and may not say that the code compares them.
    With the largest size of a dim, the others are small, as all largest sizes together would take too long: of a large
    model, even the largest length of one item costs more than all other sizes together.
    """
    start, counted = distinct_sizes(io.dims), batch_dim(io)
    each = itertools.chain((2, 13, 17, 19, 23, 29, 31, 37), itertools.count(41, 2))  # in the end, odd numbers do
    primes = {dim.name: dim.at_least(prime) for dim, prime in zip(io.dims, each, strict=False)}
    small = {dim.name: dim.at_least(1 if dim.name == counted else 2) for dim in io.dims}
    # Guards come first, as they name the line of code.
    plans: list[tuple[str | Guard | None, Mapping[str, int]]] = [(guard, {**start, **guard.sizes}) for guard in guards]
    plans.append((None, start))
    plans += [(dim.name, {**start, dim.name: size}) for dim in io.dims for size in (primes[dim.name], dim.min)]
    # These change several dims, so they come after those that change only one and therefore name the right dim.
    plans += [(_different(equal), {**start, **equal}) for equal in filter(None, [_all_equal(io.dims)])]
    plans += [(dim.name, {**small, dim.name: largest_size(io, dim)}) for dim in io.dims]
    plans.append((None, primes))  # last, as it does not show which dim froze
    unique: dict[tuple[tuple[str, int], ...], tuple[str | Guard | None, Mapping[str, int]]] = {}
    for tried, sizes in plans:
        unique.setdefault(tuple(sizes.items()), (tried, sizes))
    return [(tried, full_case(io, sizes)) for tried, sizes in unique.values()]


def _all_equal(dims: Sequence[Dim]) -> dict[str, int]:
    """The same small size for several dims; none where they have none in common."""
    step = math.lcm(*(dim.step for dim in dims))
    size = -(-max([3, *(dim.min for dim in dims)]) // step) * step
    return {dim.name: size for dim in dims if len(dims) > 1 and all(each.takes(size) for each in dims)}


def _different(sizes: Mapping[str, int]) -> Guard:
    """The condition of a trace that no two sizes are equal, which is false at `sizes`."""
    from attnport.exporter.guards import Guard

    return Guard("different sizes", "", sizes, special=True, holds=lambda at: False, one_way=())


def check_dims(
    io: IOContract,
    guards: Sequence[Guard],
    model: Path,
    reference: Run,
    eager: Run,
    progress: Callable[[str], None],
    moved: Callable[[int], Session] | None = None,
    tell: Callable[[str], None] = lambda message: None,
    decided: Sequence[str] = (),
    departs: Callable[[Case], str] = lambda case: "",
) -> None:
    """Runs the exported graph at every size of `size_cases` against the module.

    What rounding might explain is not refused here: `check` judges it. A size that may not fit into memory or time is
    left out, after smaller ones on the way to it.

    Args:
        reference, eager: The module in float64 and in float32. The graph is compared with `eager`; `reference` is run
            only where the two differ by more than rounding is always allowed.
        moved: The module with weights and inputs moved by one rounding, drawn by a seed. It is asked where a graph is
            far off: what a model that ranks its queries by scores computes jumps where two scores change places.
        tell: Called with a line for each size that is left out.
        decided: The lines of code that choose one of two ways by values, as of `Capture`.
        departs: The path of the first module whose output the graph does not give on a case, "" where that is unknown.

    Raises:
        ExportError: the graph fails or differs (the message names the dim and the inputs that have it), or an output
            has another shape than the contract says.
        MemoryError: there is not enough memory for the smallest sizes.
    """
    try:
        tried = size_cases(io, guards)
    except UsageError as err:
        raise ExportError(err.message, hint=_CONTRADICTED) from err
    start = full_case(io, distinct_sizes(io.dims))
    budget = Budget(list(filter(None, [batch_dim(io)])))
    with budget.measured(check_feeds(io, start.feeds)):
        try:
            checker, session = _checker(io, model, start)
        except ExportError as err:
            sizes = check_feeds(io, start.feeds)
            other = next((guard for guard in guards if guard.one_way and not guard.holds(sizes)), None)
            if other is None:
                raise
            raise ExportError(
                f"{_what_froze(io, other, decided)}: it runs nowhere at {start.name}.",
                hint=_remedy(io, other, decided),
                dims=_varied_dims(other),
                one_way=other.one_way,
            ) from err

    def right(varied: str | Guard | None, sizes: Mapping[str, int]) -> bool:
        case = full_case(io, sizes)
        got, single = _outputs(session, case), eager(case.feeds)
        _check_contract(io, case, single, varied)
        if not isinstance(got, str) and _alike(got, single):
            return True
        expected = reference(case.feeds)
        if not isinstance(got, str):
            expected, single, got = _where_defined(expected, single, got)
        own = measure_all(single, expected, case, io)
        errors = {} if isinstance(got, str) else measure_all(got, expected, case, io)
        problem = got if isinstance(got, str) else _problem(case, errors, own)
        if isinstance(got, str) and not all(array.size for array in single.values()):
            _refuse_nothing(io, case, varied, sizes, eager, f"{checker} gives {got}")
        if problem and not (errors and moved and _jumps(case, errors, own, moved, expected, io)):
            place = departs(case) if errors else ""
            first = f"; the first module whose output differs is {place}" if place else ""
            raise ExportError(
                f"{_what_froze(io, varied, decided, sizes)}: at {case.name} {checker} gives {problem}{first}.",
                hint=_remedy(io, varied, decided, sizes),
                dims=_varied_dims(varied),
                one_way=_one_way(io, varied, sizes),
            )
        return True

    with contextlib.closing(session):
        for number, (varied, case) in enumerate(tried, start=1):
            progress(f"checking sizes {number}/{len(tried)}: {case.name}")
            sizes = check_feeds(io, case.feeds)
            if budget.reach(sizes, partial(right, varied)) is None:
                tell(f"{case.name} was not tried: {budget.why_not(sizes)}.")


def _alike(got: Mapping[str, Array], single: Mapping[str, Array]) -> bool:
    """Whether a graph's outputs are so near PyTorch's in float32 that no float64 run of it could refuse them.

    What is refused is over `NO_ROUNDING` bounds, each at least the floor; two results that differ by so many floors are
    within them, whatever PyTorch's own error is.
    """
    for name, own in single.items():
        array = got[name]
        if array.shape != own.shape or array.dtype != own.dtype:
            return False
        if not np.issubdtype(own.dtype, np.floating):
            if not np.array_equal(array, own):
                return False
            continue
        array, own = without_fills(array, own)
        difference = np.abs(array - own, dtype=np.float64)
        rms = float(np.sqrt(np.mean(np.square(own, dtype=np.float64)))) if own.size else 0.0
        if not difference.max(initial=0.0) <= NO_ROUNDING * floor("fp32", rms):  # also where one is not finite
            return False
    return True


def _where_defined(expected: Mapping[str, Array], *others: dict[str, Array]) -> Iterator[dict[str, Array]]:
    """Outputs with zero in the elements for which the module itself gives NaN or Inf in float64: nothing is asked
    there."""
    undefined = {name: ~np.isfinite(array) for name, array in expected.items() if array.dtype.kind == "f"}
    for outputs in (expected, *others):
        yield {
            name: np.where(undefined[name], 0, array)
            if name in undefined and array.shape == undefined[name].shape
            else array
            for name, array in outputs.items()
        }


def _is_one(varied: str | Guard | None, sizes: Mapping[str, int]) -> bool:
    """Whether a dim is 1: a trace is one of other sizes, and a prime of the dim was tried before."""
    return isinstance(varied, str) and sizes.get(varied) == 1


def _one_way(io: IOContract, varied: str | Guard | None, sizes: Mapping[str, int]) -> Sequence[tuple[Dim, ...]]:
    """Ranges of dims in which the graph, which is wrong at some sizes, may be right."""
    if varied is None or isinstance(varied, str):
        return [(_from(io.dim(str(varied)), 2),)] if _is_one(varied, sizes) else []
    return varied.one_way


def _from(dim: Dim, size: int) -> Dim:
    """A range without what is below a size."""
    return replace(dim, min=size, opt=max(dim.opt, size))


def _remedy(
    io: IOContract,
    varied: str | Guard | None,
    decided: Sequence[str] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> str:
    if varied is None and decided:
        return (
            "The values that were tried go the other way. Compute both ways, and choose with "
            "torch.where(condition, one, other)."
        )
    if varied is None:
        return 'If random values do not fit an input, such as sorted offsets, give an example of it and ":example".'
    if isinstance(varied, str) and _is_one(varied, sizes):
        above = _from(io.dim(varied), 2)
        return f"Write it without a Python branch on a size of 1, or leave it out: {advised('dims', [above])}"
    if isinstance(varied, str):
        return "Look for sizes that the code turns into Python numbers or constants."
    usual = (part for part in varied.one_way if all(dim.takes(io.dim(dim.name).opt) for dim in part))
    left = "leave those sizes out" + next((f": {advised('dims', part)}" for part in usual), " of the ranges of dims")
    return f"Write it without a Python branch on a size, or {left}."


def _check_contract(io: IOContract, case: Case, outputs: Mapping[str, Array], varied: str | Guard | None) -> None:
    """Raises ExportError where the module gives an output of another shape than the contract says."""
    why, hint = "", _CONTRADICTED
    if varied is not None and not isinstance(varied, str):
        why, hint = (
            f". The contract is that of {varied.text}, which the module's code decides{varied.place}",
            _remedy(io, varied),
        )
    sizes = check_feeds(io, case.feeds)
    for spec in io.outputs:
        shape = outputs[spec.name].shape
        if not spec.fits(shape, sizes):
            stated = list(spec.shape(sizes)) if UNKNOWN_SIZE not in spec.dims else "others"
            raise ExportError(
                f"output {spec.name!r}: at {case.name} the module gives shape {list(shape)}; the contract {spec} says "
                f"{stated}{why}.",
                hint=hint,
                dims=_varied_dims(varied) if (one_way := _one_way(io, varied, sizes)) else (),
                one_way=one_way,
            )


def _refuse_nothing(
    io: IOContract, case: Case, varied: str | Guard | None, sizes: Mapping[str, int], eager: Run, problem: str
) -> None:
    """Raises ExportError for a size at which the module gives an empty output, and the graph does not run, if larger
    ones of the dim give something: a quarter of 3 tokens are none."""
    for name in _varied_dims(varied):
        dim = io.dim(name)
        for size in range(sizes[name] + dim.step, min(dim.max, sizes[name] + _FURTHER * dim.step) + 1, dim.step):
            if all(array.size for array in eager(full_case(io, {**sizes, name: size}).feeds).values()):
                raise ExportError(
                    f"dim {name!r}: at {case.name} the module gives an empty output, and {problem}.",
                    hint=f"Leave it out: {advised('dims', [_from(dim, size)])}",
                    one_way=[(_from(dim, size),)],
                )


def _what_froze(
    io: IOContract,
    varied: str | Guard | None,
    decided: Sequence[str],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> str:
    if varied is None:
        return f"the graph has one of two ways {decided[0]}" if decided else "the exported graph is not the module"
    places = [
        f"{name!r} of input {', '.join(repr(spec.name) for spec in io.inputs if name in spec.dims)}"
        for name in _varied_dims(varied)
    ]
    if _is_one(varied, sizes):
        return f"dim {places[0]}: the module treats a size of 1 apart, and the graph is that of other sizes"
    froze = f"dim {' and '.join(places)} froze"
    if isinstance(varied, str):
        return froze
    return f"{froze}: the graph is that of {varied.text}, which the module's code decides{varied.place}"


def _varied_dims(varied: str | Guard | None) -> tuple[str, ...]:
    return () if varied is None else (varied,) if isinstance(varied, str) else tuple(varied.sizes)


def _checker(io: IOContract, model: Path, case: Case) -> tuple[str, Session]:
    """The first runtime that runs the exported graph; ONNX Runtime refuses some masks that the standard broadcasts."""
    problems = []
    for name in _CHECKERS:
        runtime = base.get(name)
        if not runtime.probe().available:
            continue
        try:
            session = runtime.open(Opening(io, model=model, lean=True))
        except AttnportError as err:
            problems.append(f"{name}: {err.message}")
            continue
        got = _outputs(session, case)
        if not isinstance(got, str):
            return name, session
        problems.append(f"{name}: {got}")
        session.close()
    beyond = next(filter(None, map(_BEYOND.search, problems)), None)
    if beyond and (limited := [f"{spec.name}:high={spec.high}" for spec in io.inputs if spec.high]):
        raise ExportError(
            f"a table has fewer rows than an input has values: at {case.name}, row {beyond[1]} of a table of "
            f"{int(beyond[2]) + 1} was read.",
            hint=f"Declare as many values as the table has rows; declared is {', '.join(limited)}.",
        )
    raise ExportError(f"the exported graph runs nowhere, at {case.name}: {'; '.join(problems)}")


def _outputs(session: Session, case: Case) -> dict[str, Array] | str:
    """The outputs of a case, or why there are none."""
    try:
        return session.run(case.feeds)
    except AttnportError as err:
        return err.message


def _problem(case: Case, errors: Mapping[str, Errors], own: Mapping[str, Errors]) -> str:
    wrong = [result for result in _failing(case, errors, own) if not within_rounding(result)]
    return "; ".join(f"{result.output}: {result.reason}" for result in wrong)


def _jumps(
    case: Case,
    errors: Mapping[str, Errors],
    own: Mapping[str, Errors],
    moved: Callable[[int], Session],
    expected: Mapping[str, Array],
    io: IOContract,
) -> bool:
    """Whether PyTorch itself is as far off as the graph where weights and inputs are moved by one rounding."""
    if any(error.problem or error.rms is None for error in errors.values()):
        return False
    worst = dict(own)
    for seed in range(JUMPS):
        with contextlib.closing(moved(seed)) as session:
            found = measure_all(session.run(case.feeds), expected, case, io)
        worst = {output: worse(worst[output], error) for output, error in found.items()}
        if not _failing(case, errors, worst):
            return True
    return False


def _failing(case: Case, errors: Mapping[str, Errors], own: Mapping[str, Errors]) -> list[CaseResult]:
    by = Yardstick("fp32", {case.name: own})
    results = [judge(case.name, output, error, by) for output, error in errors.items()]
    return [result for result in results if result.verdict == "FAIL"]
