"""Reads an element of a tensor as a formula over its indices.

A mask can be written in dozens of ways (GatherND over index grids, comparisons of Range, Where, sums of large negative
numbers), and every exporter has its own. Their *elements* are alike: `mask[b, j] != 0`, `j <= i`. So a graph value is
read as a formula: `element(value, (b, h, i, j))` walks the producers and moves the indices through them. An unknown
operator ends the walk, and its value stays a `Read`: a formula is always correct, but it may say little.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attnport.exporter.fusion.formula import (
    ELEMENTWISE,
    TRUE,
    ZERO,
    Axis,
    Const,
    Expr,
    Op,
    Read,
    Size,
    is_bool,
    linear,
    op,
    size_sum,
    written,
)
from attnport.exporter.fusion.indices import Index, broadcast_index, source_of
from attnport.onnx_graph import attribute, constant_of, dims_of, ir, node_axis, scalar

MAX_DEPTH = 100
MAX_STEPS = 20_000
"""Limits for one formula, which can grow exponentially if the graph shares its parts."""
MAX_ELEMENTS = 8192**2
"""Constants with more elements are data and are not examined."""
Array = Any


class Walk:
    """The current depth of a walk through the producers, and its steps so far."""

    def __init__(self) -> None:
        self.depth = self.steps = 0

    def __enter__(self) -> None:
        self.depth += 1
        self.steps += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def ends(self) -> bool:
        """Whether the walk stops here, so that the formula is a `Read` of the current value."""
        return self.depth >= MAX_DEPTH or self.steps >= MAX_STEPS


def element(value: ir.Value | None, index: tuple[Expr, ...], walk: Walk | None = None) -> Expr:
    """The formula of `value[index]`; `index` has one entry for each axis of `value`."""
    assert value is not None
    walk = walk or Walk()
    constant = constant_element(value, index)
    if constant is not None:
        return constant
    node = value.producer()
    rule = _RULES.get(node.op_type) if node is not None and node.domain == "" else None
    if node is not None and not walk.ends():
        with walk:
            found: Expr | None = None
            moved = source_of(node, index) if node.op_type != "Split" else _whole(node, value, index)
            if moved is not None:
                found = element(*moved, walk)
            elif rule is not None:
                found = rule(node, index, walk)
            elif node.op_type in ELEMENTWISE and node.domain == "":
                found = op(node.op_type, *(broadcast_element(arg, index, walk) for arg in node.inputs))
        if found is not None:
            return _rounded(found, value, index)
    return Read(value, index)


def _whole(node: ir.Node, part: ir.Value, index: tuple[Expr, ...]) -> tuple[ir.Value | None, tuple[Expr, ...]] | None:
    """What `Split` cuts, and the index there of an element of one of its parts; None if their sizes are not known."""
    axis = node_axis(node, len(index), 0)
    before = [dims_of(each) for each in node.outputs[: part.index()]]
    sizes = [dims[axis] if dims is not None else None for dims in before]
    offset = sum(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes) or node.domain:
        return None
    return node.inputs[0], (*index[:axis], op("Add", index[axis], Const(offset)), *index[axis + 1 :])


def _rounded(found: Expr, value: ir.Value, index: tuple[Expr, ...]) -> Expr:
    """A constant as `value`'s type stores it: 1.7 cast to an integer is 1, -3.4e38 in half precision is -inf."""
    import numpy as np

    if not isinstance(found, Const) or value.dtype is None:
        return found
    with np.errstate(all="ignore"):
        held = np.asarray(found.value).astype(value.dtype.numpy()).item()
    return Const(held) if held == held else Read(value, index)  # NaN equals nothing


def broadcast_element(value: ir.Value | None, index: tuple[Expr, ...], walk: Walk | None = None) -> Expr:
    """The element that takes part when `value` is broadcast to a tensor indexed by `index`."""
    if value is None:
        return Const(math.nan)
    own = broadcast_index(value, index)
    if own is None:
        dims = dims_of(value)
        return Read(value, index if dims is None else index[len(index) - len(dims) :])
    return element(value, own, walk)


def _cast(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    source = node.inputs[0]
    inner = element(source, index, walk)
    before, after = source.dtype if source is not None else None, node.outputs[0].dtype
    if before is None or after is None:
        return None
    if after.name == "BOOL":
        return op("Ne", inner, ZERO)
    if isinstance(inner, Op) and inner.name == "Where" and all(isinstance(part, Const) for part in inner.args[1:]):
        held = [_rounded(part, node.outputs[0], index) for part in inner.args[1:]]
        return op("Where", inner.args[0], *held) if all(isinstance(part, Const) for part in held) else None
    if isinstance(inner, Const) or before.name == "BOOL" or is_bool(inner):
        return Const(int(inner.value)) if isinstance(inner, Const) and isinstance(inner.value, bool) else inner
    if before.is_integer() and after.name in ("UINT8", "UINT16", "UINT32"):
        return Op("Wrapped", (inner, Const(after.bitwidth)))
    # A fraction (0.5) that is cast to an integer does not keep its value.
    keeps = after.is_floating_point() or (before.is_integer() and after.name in ("INT64", "INT32"))
    return inner if keeps and before.name != "UINT64" else None


def _range(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr:
    start, delta = element(node.inputs[0], (), walk), element(node.inputs[2], (), walk)
    return op("Add", op("Mul", index[0], delta), start) if start != ZERO else op("Mul", index[0], delta)


def _shape(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    dims = dims_of(node.inputs[0])
    if dims is None or not isinstance(index[0], Const):
        return None
    start = attribute(node, "start", 0)
    start = max(start + len(dims), 0) if start < 0 else start
    return size_sum(node.inputs[0], start + int(index[0].value))


def _gather(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    data, indices = dims_of(node.inputs[0]), dims_of(node.inputs[1])
    if data is None or indices is None:
        return None
    axis = attribute(node, "axis", 0) % len(data)
    chosen = element(node.inputs[1], index[axis : axis + len(indices)], walk)
    if not _never_negative(chosen):
        return None
    return element(node.inputs[0], (*index[:axis], chosen, *index[axis + len(indices) :]), walk)


def _never_negative(index: Expr) -> bool:
    """Whether an index is proved not to be negative; a negative one would count from the end."""
    if isinstance(index, Const):
        return index.value >= 0
    if isinstance(index, Op) and index.name in ("Add", "Mul", "Min", "Join", "FloorDiv", "FloorMod"):
        return all(map(_never_negative, index.args))
    if isinstance(index, Op) and index.name == "Max":
        return any(map(_never_negative, index.args))
    return isinstance(index, Axis | Size) or is_bool(index)


def _gather_nd(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    indices = dims_of(node.inputs[1])
    if indices is None or attribute(node, "batch_dims", 0) or not isinstance(indices[-1], int):
        return None
    outer, rest = index[: len(indices) - 1], index[len(indices) - 1 :]
    chosen = tuple(element(node.inputs[1], (*outer, Const(at)), walk) for at in range(indices[-1]))
    if not all(map(_never_negative, chosen)):
        return None
    return element(node.inputs[0], (*chosen, *rest), walk)


def _slice_from(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    """A slice whose start is computed, such as that of a stored mask's rows after a cache."""
    given = [*node.inputs, None, None]
    axes, steps = constant_of(given[3]), constant_of(given[4])
    dims = dims_of(node.inputs[1])
    if axes is None or dims is None or (given[4] is not None and (steps is None or (steps != 1).any())):
        return None
    moved = list(index)
    for at, axis in enumerate(axes.reshape(-1)):
        start = linear(element(node.inputs[1], (Const(at),) if dims else (), walk))
        if start is None or any(by < 0 or isinstance(atom, Op | Read) for atom, by in start.items()):
            return None  # below zero it would count from the end
        moved[int(axis) % len(index)] = op("Add", moved[int(axis) % len(index)], written(start))
    return element(node.inputs[0], tuple(moved), walk)


def _concat(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    axis = attribute(node, "axis", 0) % len(index)
    at = index[axis]
    if not isinstance(at, Const):
        return None
    offset = int(at.value)
    for part in node.inputs:
        dims = dims_of(part)
        size = dims[axis] if dims is not None else None
        if not isinstance(size, int):
            return None
        if offset < size:
            return element(part, (*index[:axis], Const(offset), *index[axis + 1 :]), walk)
        offset -= size
    return None


def _trilu(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    shift = element(node.inputs[1], (), walk) if len(node.inputs) > 1 and node.inputs[1] is not None else ZERO
    i, j = index[-2], op("Sub", index[-1], shift)
    kept = op("LessOrEqual", i, j) if attribute(node, "upper", 1) else op("LessOrEqual", j, i)
    inner = element(node.inputs[0], index, walk)
    return op("And", kept, inner) if is_bool(inner) else op("Where", kept, inner, ZERO)


def _cumulated(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    """Sums of equal numbers, by which tf2onnx counts: of ones, before each, the index itself."""
    inner, axis = element(node.inputs[0], index, walk), scalar(node.inputs[1])
    is_whole = node.outputs[0].dtype is not None and node.outputs[0].dtype.is_integer()
    if axis is None or not isinstance(inner, Const) or not is_whole or attribute(node, "reverse", 0):
        return None
    at = index[int(axis) % len(index)]
    return op("Mul", at if attribute(node, "exclusive", 0) else op("Add", at, Const(1)), inner)


def _divided(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr | None:
    """A quotient or a remainder of an index of merged axes by the size of the second."""
    whole, by = (broadcast_element(value, index, walk) for value in node.inputs)
    if node.outputs[0].dtype is None or not node.outputs[0].dtype.is_integer():
        return None
    if isinstance(whole, Op) and whole.name == "Join" and whole.args[2] == by:
        return whole.args[node.op_type == "Mod"]
    return None


def _constant_of_shape(node: ir.Node, index: tuple[Expr, ...], walk: Walk) -> Expr:
    fill = node.attributes["value"].as_tensor().numpy().reshape(-1)[0].item() if "value" in node.attributes else 0.0
    return Const(fill)


_RULES: dict[str, Callable[[Any, tuple[Expr, ...], Walk], Expr | None]] = {
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulated,
    "Div": _divided,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Mod": _divided,
    "Range": _range,
    "Shape": _shape,
    "Slice": _slice_from,
    "Trilu": _trilu,
}


# --- constants: masks and positions that an exporter or a module stored as a tensor ---------------------------------


def constant_element(value: ir.Value, index: Index) -> Expr | None:
    """The formula of `value[index]`; None if the value is not constant or follows no simple rule."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not 0 < tensor.size <= MAX_ELEMENTS:
        return None
    array = tensor.numpy()
    first = array.reshape(-1)[0].item()
    if array.reshape(-1)[-1].item() == first and (array == first).all():
        return Const(first)
    if all(isinstance(entry, Const) for entry in index):
        number = array[tuple(int(entry.value) for entry in index if isinstance(entry, Const))].item()
        return Const(number) if not (isinstance(number, float) and math.isnan(number)) else None
    return _steps(array, index) or _band(array, index)


def _steps(array: Array, index: Index) -> Expr | None:
    """Whole numbers that grow by the same step along each axis, as positions do."""
    import numpy as np

    if array.dtype.kind not in "iu":
        return None
    start = int(array.reshape(-1)[0])
    expected: Array = np.full([1] * array.ndim, start, np.int64)
    total: Expr = Const(start)
    for axis, size in enumerate(array.shape):
        if size < 2:
            continue
        step = int(array[tuple(int(at == axis) for at in range(array.ndim))]) - start
        along = np.arange(size, dtype=np.int64) * step
        expected = expected + along.reshape([size if at == axis else 1 for at in range(array.ndim)])
        total = op("Add", op("Mul", index[axis], Const(step)), total)
    return total if np.array_equal(array, expected) else None


def _band(array: Array, index: Index) -> Expr | None:
    """A matrix with one number on adjacent diagonals and another elsewhere, as a causal mask or a window has them."""
    import numpy as np

    if array.ndim < 2 or min(array.shape[-2:]) < 2 or any(size != 1 for size in array.shape[:-2]):
        return None
    rows, columns = array.shape[-2:]
    matrix = array.reshape(rows, columns)
    if len(np.unique(matrix[0])) > 2:
        return None
    # By diagonal, from the lower left corner to the upper right one.
    diagonals = np.concatenate((matrix[:0:-1, 0], matrix[0]))
    values = np.unique(diagonals)
    laid_out = np.lib.stride_tricks.sliding_window_view(diagonals, columns)[::-1]
    if len(values) != 2 or not np.array_equal(laid_out, matrix):
        return None
    main = diagonals[rows - 1]
    for inside in (main, values[values != main][0]):
        (where,) = np.nonzero(diagonals == inside)
        if where[-1] - where[0] + 1 == len(where):
            keep = _between(index, int(where[0]) - rows + 1, int(where[-1]) - rows + 1, rows, columns)
            outside = values[values != inside][0]
            return op("Where", keep, Const(inside.item()), Const(outside.item()))
    return None


def _between(index: Index, low: int, high: int, rows: int, columns: int) -> Expr:
    """`low <= column - row <= high`, without a bound that lies outside the matrix."""
    row, column = index[-2:]
    above = op("LessOrEqual", op("Sub", column, row), Const(high)) if high else op("LessOrEqual", column, row)
    below = op("LessOrEqual", op("Sub", row, column), Const(-low)) if low else op("LessOrEqual", row, column)
    return op("And", above if high < columns - 1 else TRUE, below if low > 1 - rows else TRUE)
