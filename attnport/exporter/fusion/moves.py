"""Operators that only move elements: maps the index of an output's element to the index in their input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnport.exporter.fusion.formula import ZERO, Const, Expr, op
from attnport.exporter.fusion.indices import Index, reshaped, size_of, split

if TYPE_CHECKING:
    import onnx_ir as ir

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


def const_value(value: ir.Value | None) -> Any | None:
    """The NumPy array of a constant value of at most 4096 elements, else None."""
    from onnx_ir.convenience import get_const_tensor

    if value is None:
        return None
    tensor = get_const_tensor(value)
    return tensor.numpy() if tensor is not None and tensor.size <= 4096 else None


def dims_of(value: ir.Value | None) -> list[int | str | None] | None:
    """A value's shape as sizes, dim names and None, or None if its rank is unknown."""
    if value is None or value.shape is None:
        return None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def known_size(value: ir.Value, axis: int) -> int | str | None:
    """The size of one axis: a number, the name of a dim, or None where it is not known or there is no such axis."""
    dims = dims_of(value)
    return None if dims is None or axis >= len(dims) else dims[axis]


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
    dims, repeats = dims_of(node.inputs[0]), const_value(node.inputs[1])
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
    axes = const_value(node.inputs[1])
    if axes is None:
        return None
    removed = {int(axis) % len(index) for axis in axes.reshape(-1)}
    return tuple(at for axis, at in enumerate(index) if axis not in removed)


def _squeeze(node: ir.Node, index: Index) -> Index | None:
    dims = dims_of(node.inputs[0])
    if dims is None:
        return None
    axes = const_value(node.inputs[1]) if len(node.inputs) > 1 else None
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


def perm_of(transpose: ir.Node, rank: int) -> list[int]:
    """The permutation of a `Transpose`; without one it reverses the axes."""
    return list(transpose.attributes["perm"].as_ints()) if "perm" in transpose.attributes else [*reversed(range(rank))]


def _slice(node: ir.Node, index: Index) -> Index | None:
    starts = const_value(node.inputs[1])
    inputs = [*node.inputs, None, None]
    axes, steps = const_value(inputs[3]), const_value(inputs[4])
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
