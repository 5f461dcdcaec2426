"""What a trace took for granted about sizes: torch's guards, the code that made them, and sizes that violate them.

torch.export refuses dims of a declared range unless it can prove every guard for all of it, although most are true for
the sizes that matter, or make no difference. If torch chooses the dims itself, it returns the graph with its guards. A
graph that also computes the right numbers at sizes at which a guard is false has no frozen dim there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]  # sympy has no type hints
import torch
from torch.utils._sympy.printers import PythonPrinter

from attnport.artifacts import Dim, IOContract
from attnport.exporter.output_sizes import as_multiple
from attnport.user_code import is_users

_SCANNED = 2048
_COMBINED = 24
_LONG = 160
"""A longer condition is nothing to read."""
_LONGEST_STEP = 64


@dataclass(frozen=True)
class Guard:
    """A condition on sizes that held in the trace and that the graph may need. At `sizes` it does not hold.

    Attributes:
        text: The condition in names of dims.
        place: Where the code made it, as ` (model.py, line 7: y = x.view(n))`, or "".
        sizes: A size for each dim of the condition.
        special: Whether the condition is an equality, which few sizes fulfil, such as that of whole chunks.
        holds: Whether the condition is true at a size for each dim of the contract.
        one_way: Ranges of the dims of the condition in each of which it has one answer, the best first: as from 33 on,
            and up to 32, for `seq > 32`, and even sizes for `seq % 2 == 0`.
    """

    text: str
    place: str
    sizes: Mapping[str, int]
    special: bool
    holds: Callable[[Mapping[str, int]], bool]
    one_way: tuple[tuple[Dim, ...], ...]


def constants(program: torch.export.ExportedProgram, contract: IOContract) -> dict[str, tuple[int, str]]:
    """The dims that became constants, by name: the constant, and the code that made it so."""
    symbols = getattr(_environment(program), "replacements", {})
    places = getattr(_environment(program), "replacements_slocs", {})
    ranges = {dim.name: dim for dim in contract.dims}
    frozen: dict[str, tuple[int, str]] = {}
    for spec, shape in zip(contract.inputs, _input_shapes(program), strict=True):
        for dim, size in zip(spec.dims, shape, strict=True):
            is_constant = not isinstance(size, torch.SymInt) or size.node.expr.is_number
            if dim in ranges and is_constant and ranges[dim].min < ranges[dim].max:
                # `traced_sizes` gives each dim another size, so the size tells which symbol was replaced.
                values = (size, size // ranges[dim].step)
                symbol = next((known for known, value in symbols.items() if value in values), None)
                frozen.setdefault(dim, (int(size), _place(places.get(symbol))))
    return frozen


def pinned(program: torch.export.ExportedProgram, contract: IOContract) -> bool:
    """Whether the graph needs a size that the code computes to be one number, as after `int(x.shape[1] / 64)`, and it
    is another one at some sizes: of whole windows of 4, `size // (size // 4)` is 4 at all of them."""
    equal = [guard.expr for guard in getattr(_environment(program), "guards", ()) if isinstance(guard.expr, sympy.Eq)]
    dims, _ = _dims(program, contract)

    def is_violated(condition: Any) -> bool:
        used = sorted(condition.free_symbols, key=str)
        if any(symbol not in dims for symbol in used):
            return True
        return any(_violations(_as_function(condition, used), [dims[symbol] for symbol in used]))

    return any(  # what equals 0 is the remainder of a size; a size that is not computed is a dim
        any(side.is_number and side > 1 for side in each.args)
        and not any(side.is_Symbol for side in each.args)
        and is_violated(each)
        for each in equal
    )


def _dims(program: torch.export.ExportedProgram, contract: IOContract) -> tuple[dict[Any, Dim], dict[str, int]]:
    """The dims of a trace's symbols, and by name how many times its symbol each is."""
    ranges = {dim.name: dim for dim in contract.dims}
    dims: dict[Any, Dim] = {}
    factors: dict[str, int] = {}
    for spec, shape in zip(contract.inputs, _input_shapes(program), strict=True):
        for dim, size in zip(spec.dims, shape, strict=True):
            own = ranges.get(dim) if isinstance(dim, str) and isinstance(size, torch.SymInt) else None
            for step in {1, own.step} if own is not None else ():
                symbol = as_multiple(size.node.expr, step)
                if symbol is not None and own is not None:
                    dims[symbol], factors[own.name] = _divided(own, step), step
    return dims, factors


def guards(program: torch.export.ExportedProgram, contract: IOContract) -> tuple[Guard, ...]:
    """The guards that some sizes of the contract violate, one for each set of such sizes."""
    dims, factors = _dims(program, contract)
    violated: dict[tuple[tuple[str, int], ...], Guard] = {}
    for guard in getattr(_environment(program), "guards", ()):
        used = sorted(guard.expr.free_symbols, key=str)
        if not used or any(symbol not in dims for symbol in used):
            continue
        text = str(guard.expr.subs({symbol: _name(dims[symbol], factors) for symbol in used}))
        if len(text) > _LONG:
            text = f"a condition on {' and '.join(sorted({dims[symbol].name for symbol in used}))}"
        special, ranges = isinstance(guard.expr, sympy.Eq), [dims[symbol] for symbol in used]
        holds = _as_function(guard.expr, used)
        parts = [[dim] for dim in _parts(holds, ranges[0])] if len(used) == 1 else [_below(holds, ranges)]
        one_way = tuple(tuple(_multiplied(dim, factors[dim.name]) for dim in part) for part in parts if part)
        by_name = _by_name(holds, [(dim.name, factors[dim.name]) for dim in ranges])
        for multiples in _violations(holds, ranges):
            sizes = {name: size * factors[name] for name, size in multiples.items()}
            found = Guard(text, _place(guard.sloc), sizes, special, by_name, one_way)
            violated.setdefault(tuple(sorted(sizes.items())), found)
    return tuple(violated.values())


def is_guarded(size: Any, contract: IOContract, program: torch.export.ExportedProgram) -> bool:
    """Whether the module's code branches where a size is 0, as `if n > 0` does around `x[:, :-n]`.

    Args:
        size: Negative in the trace, and never positive if this is true; at some sizes of the dims it is 0.
    """
    dims, _ = _dims(program, contract)
    expression = size.node.expr
    used = sorted(expression.free_symbols, key=str)
    if any(symbol not in dims for symbol in used):
        return False
    computed = _compiled(expression, used)
    try:
        values = {sizes: int(computed(*sizes)) for sizes in _some_sizes([dims[symbol] for symbol in used])}
    except (ZeroDivisionError, ValueError, TypeError):
        return False
    ways = [
        _as_function(guard.expr, used)
        for guard in getattr(_environment(program), "guards", ())
        if guard.expr.free_symbols <= set(used) and is_users(_file(guard.sloc.framework_loc))
    ]
    zero = [sizes for sizes, value in values.items() if not value]
    return bool(zero) and max(values.values()) == 0 and not any(all(way(*sizes) for way in ways) for sizes in zero)


def _divided(dim: Dim, step: int) -> Dim:
    """The range of the symbol that a dim is `step` times."""
    return dim if step == 1 else Dim(dim.name, dim.min // step, dim.opt // step, dim.max // step)


def _multiplied(dim: Dim, step: int) -> Dim:
    """The range of a dim that is `step` times the symbol of a given range."""
    return Dim(dim.name, *(step * size for size in (dim.min, dim.opt, dim.max, dim.step)))


def _by_name(holds: Callable[..., bool], factors: Sequence[tuple[str, int]]) -> Callable[[Mapping[str, int]], bool]:
    """A condition on symbols as one on sizes by dim; `factors` says how many times its symbol each dim is."""
    return lambda sizes: holds(*(sizes[name] // factor for name, factor in factors))


def _name(dim: Dim, factors: Mapping[str, int]) -> Any:
    factor = factors[dim.name]
    return sympy.Symbol(dim.name if factor == 1 else f"({dim.name}//{factor})", integer=True, positive=True)


def _violations(holds: Callable[..., bool], ranges: Sequence[Dim]) -> Iterator[dict[str, int]]:
    """The smallest sizes at which a condition is false, and the smallest of them without a size of 0 or 1."""
    with_few = False
    for sizes in _some_sizes(ranges):
        if (min(sizes) < 2 and with_few) or holds(*sizes):
            continue
        yield {dim.name: size for dim, size in zip(ranges, sizes, strict=True)}
        if min(sizes) >= 2:
            return
        with_few = True


def _some_sizes(dims: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
    """Sizes of some dims, the smallest first: of one dim all but very large ones, of several fewer."""
    ranges = []
    for dim in dims:
        most = _SCANNED if len(dims) == 1 else _COMBINED
        first = range(dim.min, min(dim.max, dim.min + most * dim.step) + 1, dim.step)
        ranges.append(sorted({*first, dim.opt, dim.max}))
    return itertools.islice(itertools.product(*ranges), 4 * _SCANNED)


def _parts(holds: Callable[..., bool], dim: Dim) -> list[Dim]:
    """Ranges in which a condition has one answer: the first and the last run of equal answers, the longer first.

    If there are more runs than two, also the multiples of the smallest step that have one answer. Ranges of one size
    are left out.
    """
    answers = {size: holds(size) for (size,) in _some_sizes([dim])}
    runs = [list(run) for _, run in itertools.groupby(answers, key=answers.__getitem__)]
    parts = [(run, run[-1], dim.step) for run in sorted((runs[0], runs[-1]), key=len, reverse=True)]
    for step in range(2 * dim.step, (_LONGEST_STEP + 1) * dim.step, dim.step) if len(runs) > 2 else ():
        multiples = [size for size in answers if size % step == 0]
        if len({answers[size] for size in multiples}) == 1:
            parts.append((multiples, dim.max // step * step, step))
            break
    return [
        Dim(dim.name, sizes[0], max(sizes[0], min(dim.opt, most) // step * step), most, step)
        for sizes, most, step in parts
        if len(sizes) > 1
    ]


def _below(holds: Callable[..., bool], ranges: Sequence[Dim]) -> tuple[Dim, ...]:
    """Ranges of smaller sizes, halved until a condition on several dims is the same at the largest, the smallest and
    the usual ones, as for `past + seq <= 2048`; none below the usual ones."""
    most, usual = [dim.max for dim in ranges], holds(*(dim.opt for dim in ranges))
    while True:
        most = [size // 2 // dim.step * dim.step for dim, size in zip(ranges, most, strict=True)]
        if any(size < dim.opt for dim, size in zip(ranges, most, strict=True)):
            return ()
        corners = itertools.product(*zip((dim.min for dim in ranges), most, strict=True))
        if all(holds(*each) == usual for each in corners):
            return tuple(replace(dim, max=size) for dim, size in zip(ranges, most, strict=True))


def _as_function(condition: Any, used: Sequence[Any]) -> Callable[..., bool]:
    """A condition as a function of the sizes `used`."""
    compiled = _compiled(condition, used)

    def holds(*sizes: int) -> bool:
        try:
            return bool(compiled(*sizes))
        except (ZeroDivisionError, ValueError, TypeError):
            return False

    return holds


def _compiled(expression: Any, used: Sequence[Any]) -> Callable[..., Any]:
    """An expression as a function of the sizes `used`. sympy's own substitution takes a thousand times as long."""
    # sympy's default printer prints torch's Mod as `a % b`, without parentheses around a difference.
    compiled: Callable[..., Any] = sympy.lambdify(
        used, expression, modules=[{"torch": torch, "math": math}], printer=PythonPrinter
    )
    return compiled


def _environment(program: torch.export.ExportedProgram) -> Any:
    """The ShapeEnv of a trace; None if no size stayed dynamic."""
    for shape in _input_shapes(program):
        for size in shape:
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _input_shapes(program: torch.export.ExportedProgram) -> list[Sequence[Any]]:
    names = program.graph_signature.user_inputs
    shapes = {node.name: node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder"}
    return [shapes[name] for name in names if isinstance(name, str) and name in shapes]


def _file(place: Any) -> str:
    """The file of a frame, or of a place as `FILE:LINE`."""
    return str(getattr(place, "filename", place))


def _place(sloc: Any) -> str:
    return str(getattr(sloc, "maybe_user_loc", None) or "")
