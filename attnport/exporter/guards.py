"""What a trace took for granted about sizes: torch's guards, the code that made them, and sizes that violate them.

torch.export refuses dims of a declared range unless it can prove every guard for all of it, although most are true for
the sizes that matter, or make no difference. If torch chooses the dims itself, it returns the graph with its guards. A
graph that also computes the right numbers at sizes at which a guard is false has no frozen dim there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Guard:
    """A condition on sizes that held in the trace and that the graph may need. At `sizes` it does not hold.

    Attributes:
        text: The condition in names of dims.
        place: Where the code made it, as ` (model.py, line 7: y = x.view(n))`, or "".
        sizes: A size for each dim of the condition.
        special: Whether the condition is an equality, which few sizes fulfil, such as that of whole chunks.
        within: By dim, the largest size up to which the condition has the same answer as at the usual sizes, as for
            `past + seq <= 2048`; none = it is no such bound.
        usual: Whether it is true at the usual sizes.
        least: By dim, the size from which on the condition has the same answer as at the usual size, as for
            `seq // 4 != 1`; none = there is no such size, or the condition is one on several dims.
    """

    text: str
    place: str
    sizes: Mapping[str, int]
    special: bool = False
    within: Mapping[str, int] = field(default_factory=dict)
    usual: bool = True
    least: Mapping[str, int] = field(default_factory=dict)


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
    return any(  # what equals 0 is the remainder of a size; a size that is not computed is a dim
        any(side.is_number and side > 1 for side in each.args)
        and not any(side.is_Symbol for side in each.args)
        and (not each.free_symbols <= dims.keys() or any(_violations(each, sorted(each.free_symbols, key=str), dims)))
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
        used = sorted((symbol for symbol in guard.expr.free_symbols), key=str)
        if not used or any(symbol not in dims for symbol in used):
            continue
        text = str(guard.expr.subs({symbol: _name(dims[symbol], factors) for symbol in used}))
        if len(text) > _LONG:
            text = f"a condition on {' and '.join(sorted({dims[symbol].name for symbol in used}))}"
        special = isinstance(guard.expr, sympy.Eq)
        usual, within = _within(guard.expr, used, dims)
        within = {} if special else within
        bounds = {name: size * factors[name] for name, size in within.items()}
        begins = {} if special or len(used) > 1 else _least(guard.expr, used[0], dims[used[0]])
        least = {name: size * factors[name] for name, size in begins.items()}
        for multiples in _violations(guard.expr, used, dims):
            sizes = {name: size * factors[name] for name, size in multiples.items()}
            found = Guard(text, _place(guard.sloc), sizes, special, bounds, usual, least)
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
        values = {sizes: int(computed(*sizes)) for sizes in _some_sizes(used, dims)}
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


def _name(dim: Dim, factors: Mapping[str, int]) -> Any:
    factor = factors[dim.name]
    return sympy.Symbol(dim.name if factor == 1 else f"({dim.name}//{factor})", integer=True, positive=True)


def _violations(condition: Any, used: Sequence[Any], dims: Mapping[Any, Dim]) -> Iterator[dict[str, int]]:
    """The smallest sizes at which a condition is false, and the smallest of them without a size of 0 or 1."""
    with_few = False
    holds = _as_function(condition, used)
    for sizes in _some_sizes(used, dims):
        if (min(sizes) < 2 and with_few) or holds(*sizes):
            continue
        yield {dims[symbol].name: size for symbol, size in zip(used, sizes, strict=True)}
        if min(sizes) >= 2:
            return
        with_few = True


def _some_sizes(used: Sequence[Any], dims: Mapping[Any, Dim]) -> Iterator[tuple[int, ...]]:
    """Sizes of some symbols, the smallest first: all but very large ones of one, fewer of several."""
    ranges = []
    for dim in (dims[symbol] for symbol in used):
        most = _SCANNED if len(used) == 1 else _COMBINED
        first = range(dim.min, min(dim.max, dim.min + most * dim.step) + 1, dim.step)
        ranges.append(sorted({*first, dim.opt, dim.max}))
    return itertools.islice(itertools.product(*ranges), 4 * _SCANNED)


def _within(condition: Any, used: Sequence[Any], dims: Mapping[Any, Dim]) -> tuple[bool, dict[str, int]]:
    """What a condition is at the usual sizes, and the largest sizes, halved until it is the same of them and of the
    smallest; none below the usual ones."""
    holds, ranges = _as_function(condition, used), [dims[symbol] for symbol in used]
    most, usual = [dim.max for dim in ranges], holds(*(dim.opt for dim in ranges))
    while all(size >= dim.opt for dim, size in zip(ranges, most, strict=True)):
        corners = itertools.product(*zip((dim.min for dim in ranges), most, strict=True))
        if all(holds(*each) == usual for each in corners):
            return usual, {dim.name: size for dim, size in zip(ranges, most, strict=True)}
        most = [size // 2 // dim.step * dim.step for dim, size in zip(ranges, most, strict=True)]
    return usual, {}


def _least(condition: Any, symbol: Any, dim: Dim) -> dict[str, int]:
    """The size from which on a condition is what it is at the usual size; none if that is its smallest, or above it."""
    holds = _as_function(condition, [symbol])
    usual, scanned = holds(dim.opt), range(dim.min, min(dim.max, dim.min + _SCANNED * dim.step) + 1, dim.step)
    other = max((size for size in scanned if holds(size) != usual), default=dim.max)
    return {dim.name: other + dim.step} if other < dim.opt else {}


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
