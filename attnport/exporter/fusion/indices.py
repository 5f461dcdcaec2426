"""Indices of elements: their arithmetic in a reshape, and what operators that only move elements do with them.

`Join(a, b, n)` is `a n + b` with `b` below `n`: the index of two axes merged into one, the second of size n. `FloorDiv`
and `FloorMod` split it again. Merging and splitting by the same size cancel out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, Size, op
from attnport.onnx_graph import constant_of, dims_of, perm_of

if TYPE_CHECKING:
    import onnx_ir as ir

Dims = Sequence[int | str | None]
Index = tuple[Expr, ...]


def join(high: Expr, low: Expr, size: Expr) -> Expr:
    """`high size + low`."""
    if size == Const(1):
        return high
    if isinstance(high, Const) and isinstance(low, Const) and isinstance(size, Const):
        return Const(int(high.value) * int(size.value) + int(low.value))
    if high == ZERO:
        return low
    parts = [part for part in (high, low) if isinstance(part, Op)]
    if [part.name for part in parts] == ["FloorDiv", "FloorMod"] and parts[0].args == parts[1].args == (
        parts[0].args[0],
        size,
    ):
        return parts[0].args[0]
    return Op("Join", (high, low, size))


def split(index: Expr, size: Expr) -> tuple[Expr, Expr]:
    """The quotient and the remainder of an index by a size."""
    if size == Const(1):
        return index, ZERO
    if isinstance(index, Const) and isinstance(size, Const):
        whole, rest = divmod(int(index.value), int(size.value))
        return Const(whole), Const(rest)
    if isinstance(index, Op) and index.name == "Join":
        high, low, inner = index.args
        if inner == size:
            return high, low
        if isinstance(inner, Const) and isinstance(size, Const):
            ours, theirs = int(size.value), int(inner.value)
            if theirs % ours == 0:
                quotient, remainder = split(low, size)
                return join(high, quotient, Const(theirs // ours)), remainder
            if ours % theirs == 0:
                quotient, remainder = split(high, Const(ours // theirs))
                return quotient, join(remainder, low, inner)
    return Op("FloorDiv", (index, size)), Op("FloorMod", (index, size))


def reshaped(index: Index, after: Dims, before: Dims) -> Index | None:
    """The index, in a tensor of dims `before`, of the element at `index` of the tensor reshaped to `after`.

    None if the dims do not determine how the axes are merged and split.
    """
    if len(after) != len(index) or None in after or None in before:
        return None
    new = [(dim, at) for dim, at in zip(after, index, strict=True) if dim != 1]
    old = [dim for dim in before if dim != 1]
    head: list[Expr] = []
    tail: list[Expr] = []
    while new and old and new[0][0] == old[0]:
        head.append(new.pop(0)[1])
        old.pop(0)
    while new and old:
        size = _common_tail(new, old)
        if size is None:
            break
        theirs, ours = size
        merged = _joined(new[len(new) - theirs :])
        tail[:0] = _taken_apart(merged, old[len(old) - ours :])
        del new[len(new) - theirs :], old[len(old) - ours :]
    if bool(new) != bool(old):
        return None
    if new:  # the axes that are left have the same number of elements on both sides
        tail[:0] = _taken_apart(_joined(new), old)
    rest = iter(head + tail)
    return tuple(ZERO if dim == 1 else next(rest) for dim in before)


def _common_tail(new: list[tuple[int | str | None, Expr]], old: list[int | str | None]) -> tuple[int, int] | None:
    """How many axes at the end of each have the same number of elements; None if the dims do not tell."""
    if new[-1][0] == old[-1]:
        return 1, 1
    theirs = ours = 0
    product_new = product_old = 1
    while True:
        if theirs and product_new == product_old:
            return theirs, ours
        from_new = product_new <= product_old
        at = len(new) - 1 - theirs if from_new else len(old) - 1 - ours
        dim = (new[at][0] if from_new else old[at]) if at >= 0 else None
        if not isinstance(dim, int):
            return None
        if from_new:
            product_new, theirs = product_new * dim, theirs + 1
        else:
            product_old, ours = product_old * dim, ours + 1


def _joined(axes: Sequence[tuple[int | str | None, Expr]]) -> Expr:
    total = axes[0][1]
    for dim, at in axes[1:]:
        total = join(total, at, size_of(dim))
    return total


def _taken_apart(index: Expr, dims: Sequence[int | str | None]) -> list[Expr]:
    remainders: list[Expr] = []
    for dim in reversed(dims[1:]):
        index, remainder = split(index, size_of(dim))
        remainders.insert(0, remainder)
    return [index, *remainders]


def size_of(dim: int | str | None) -> Expr:
    """A dim as a formula."""
    assert dim is not None
    return Const(dim) if isinstance(dim, int) else Size(dim)


def components(index: Index) -> tuple[Expr, ...] | None:
    """The index variables of a tensor from its slowest to its fastest, with merged axes split; None for other indices.

    Two tensors with equal components hold the same numbers in the same order: a reshape turns one into the other.
    """
    variables: list[Expr] = []
    for at in index:
        for part in _parts(at):
            last = variables[-1] if variables else None
            if isinstance(part, Op) and part.name == "FloorMod":
                if not (isinstance(last, Op) and last.name == "FloorDiv" and last.args == part.args):
                    return None
                variables[-1] = part.args[0]
            elif isinstance(part, Axis) or (isinstance(part, Op) and part.name == "FloorDiv"):
                variables.append(part)
            elif part != ZERO:
                return None
    return tuple(variables) if all(isinstance(part, Axis) for part in variables) else None


def _parts(at: Expr) -> list[Expr]:
    if isinstance(at, Op) and at.name == "Join":
        return [*_parts(at.args[0]), *_parts(at.args[1])]
    return [at]


# --- operators that only move elements: from the index in their output to that in their input ----------------------


Source = tuple["ir.Value", Index]


def source_of(node: ir.Node, index: Index) -> Source | None:
    """The input, and the index in it, of the element at `index` of a node's output; None for other operators.

    Sizes may differ: a slice that starts at 0 moves nothing.
    """
    rule = _MOVES.get(node.op_type) if node.domain == "" else None
    source = node.inputs[0] if node.inputs else None
    if rule is None or source is None:
        return None
    moved = rule(node, index)
    return None if moved is None else (source, moved)


def relaid(value: ir.Value, index: Index) -> Source | None:
    """As `source_of` for the value's producer, if that keeps every element at least once (a slice does not)."""
    node = value.producer()
    return source_of(node, index) if node is not None and node.op_type in LAYOUT else None


LAYOUT = frozenset({"Identity", "Expand", "Tile", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"})


def broadcast_index(value: ir.Value, index: Index) -> Index | None:
    """The index of the element of `value` that is used if it is broadcast to a tensor indexed by `index`."""
    dims = dims_of(value)
    if dims is None or None in dims or len(dims) > len(index):  # an unknown size may be 1, and then the index is zero
        return None
    aligned = index[len(index) - len(dims) :]
    return tuple(ZERO if dim == 1 else at for dim, at in zip(dims, aligned, strict=True))


def _identity(node: ir.Node, index: Index) -> Index:
    return index


def _expand(node: ir.Node, index: Index) -> Index | None:
    assert node.inputs[0] is not None
    return broadcast_index(node.inputs[0], index)


def _tile(node: ir.Node, index: Index) -> Index | None:
    dims, repeats = dims_of(node.inputs[0]), constant_of(node.inputs[1])
    after = dims_of(node.outputs[0])
    if dims is None or None in dims:
        return None
    moved: list[Expr] = []
    for axis, (dim, at) in enumerate(zip(dims, index, strict=True)):
        same = (repeats is not None and repeats.reshape(-1)[axis] == 1) or (after is not None and after[axis] == dim)
        assert dim is not None
        moved.append(ZERO if dim == 1 else at if same else split(at, size_of(dim))[1])
    return tuple(moved)


def _unsqueeze(node: ir.Node, index: Index) -> Index | None:
    axes = constant_of(node.inputs[1])
    if axes is None:
        return None
    removed = {int(axis) % len(index) for axis in axes.reshape(-1)}
    return tuple(at for axis, at in enumerate(index) if axis not in removed)


def _squeeze(node: ir.Node, index: Index) -> Index | None:
    dims = dims_of(node.inputs[0])
    if dims is None:
        return None
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    gone = (
        {int(axis) % len(dims) for axis in axes.reshape(-1)}
        if axes is not None
        else {axis for axis, dim in enumerate(dims) if dim == 1}
    )
    if len(dims) - len(gone) != len(index):
        return None
    rest = iter(index)
    return tuple(ZERO if axis in gone else next(rest) for axis in range(len(dims)))


def _reshape(node: ir.Node, index: Index) -> Index | None:
    before, after = dims_of(node.inputs[0]), dims_of(node.outputs[0])
    return None if before is None or after is None else reshaped(index, after, before)


def _transpose(node: ir.Node, index: Index) -> Index:
    moved: list[Expr] = [ZERO] * len(index)
    for axis, source in enumerate(perm_of(node, len(index))):
        moved[source] = index[axis]
    return tuple(moved)


def _slice(node: ir.Node, index: Index) -> Index | None:
    starts = constant_of(node.inputs[1])
    inputs = [*node.inputs, None, None]
    axes, steps = constant_of(inputs[3]), constant_of(inputs[4])
    if any(value is not None and array is None for value, array in ((inputs[3], axes), (inputs[4], steps))):
        return None
    if starts is None or (steps is not None and (steps < 1).any()):
        return None
    moved, dims = list(index), dims_of(node.inputs[0])
    for at, start in enumerate(starts.reshape(-1)):
        axis = int(axes.reshape(-1)[at]) % len(index) if axes is not None else at
        step = int(steps.reshape(-1)[at]) if steps is not None else 1
        if start < 0:  # counted from the end
            size = dims[axis] if dims is not None else None
            if not isinstance(size, int):
                return None
            start = max(start + size, 0)
        moved[axis] = op("Add", op("Mul", moved[axis], Const(step)), Const(int(start)))
    return tuple(moved)


_MOVES: dict[str, Callable[[Any, Index], Index | None]] = {
    "Expand": _expand,
    "Flatten": _reshape,
    "Identity": _identity,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
