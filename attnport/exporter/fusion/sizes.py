"""Sizes of axes as formulas: the dim of a Concat's output is the sum of its parts, `|past| + |seq|`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.exporter.fusion.comparisons import Linear, linear, plus
from attnport.exporter.fusion.formula import Axis, Const, Expr, Size, op

if TYPE_CHECKING:
    import onnx_ir as ir


def size_along(value: ir.Value, index: Sequence[Expr], axis: Axis) -> Expr | None:
    """As `size_sum`, for the axis of `value` that has the index variable `axis` in `index`."""
    return size_sum(value, list(index).index(axis)) if axis in index else None


def size_sum(value: ir.Value | None, axis: int) -> Expr | None:
    """The size of one axis, as a sum of dims of the graph's inputs if the graph shows that; None = unknown.

    A name that no input has may be the exporter's name for a sum. The expression is lost at capture, so the sum is read
    from the first Concat whose output has the name.
    """
    return _sum(value, axis, frozenset())


def same(one: Expr | None, other: Expr | None) -> bool:
    """Whether two sizes may be taken for the same: they are, or one of them is unknown."""
    return one is None or other is None or one == other or terms(one) == terms(other)


def terms(size: Expr) -> Linear | None:
    """A size as a sum, also where an input's dim is called by one, such as `past+seq`."""
    read = linear(size)
    if read is None:
        return None
    total: Linear = {}
    for atom, by in read.items():
        terms: list[Expr] = [*map(Size, atom.dim.split("+"))] if isinstance(atom, Size) else [atom]
        for term in terms:
            total = plus(total, {term: by})
    return total


def _sum(value: ir.Value | None, axis: int, seen: frozenset[str]) -> Expr | None:
    if value is None or value.shape is None:
        return None
    dim = value.shape[axis]
    if isinstance(dim, int):
        return Const(dim)
    name = dim.value
    if name is None or name in seen:  # a dim cannot be a part of itself
        return None
    producer = value.producer()
    graph = producer.graph if producer is not None else value.graph
    if graph is None or _is_input_dim(graph, name):
        return Size(name)
    for node in graph:
        if node.op_type == "Concat" and node.domain == "" and node.outputs[0].shape is not None:
            at = node.attributes["axis"].as_int()
            joined = node.outputs[0].shape[at]
            if not isinstance(joined, int) and joined.value == name:
                parts = [_sum(part, at, seen | {name}) for part in node.inputs]
                known = [part for part in parts if part is not None]
                if len(known) == len(parts):
                    total = known[0]
                    for part in known[1:]:
                        total = op("Add", total, part)
                    return total
    return Size(name)


def _is_input_dim(graph: ir.Graph | ir.Function, name: str) -> bool:
    return any(not isinstance(dim, int) and dim.value == name for value in graph.inputs for dim in value.shape or ())
