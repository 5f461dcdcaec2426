"""The pass: where one position of a sequence is all that is read, as that of [CLS], it alone is computed.

A pooler or a classifier reads one row of the last layer. The rest of that layer's queries, its output, its feed-forward
network and its norms are then computed for nobody. The pick moves up through what works on each position alone, and
through the queries of attention, as far as nothing else reads the other rows; keys and values stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.tokens.rows import DOMAINS, ELEMENTWISE, NORMS, SKIP_NORMS, SOFTMAXES, sizes_of
from attnport.onnx_graph import attribute, constant_of, ir, node_axes, node_axis, perm_of

_HEAVY = {"MatMul", "Gemm", "Attention", "MultiHeadAttention"}


class _Row(NamedTuple):
    """One place along an axis of a value, counted from the last where it is below 0."""

    axis: int
    place: int


_Operands = dict[int, int]
"""The operands of a node that have the row's axis, by their number, and where they have it; others are read whole."""


def compute_picked_rows(model: ir.Model, whole: Collection[str] = ()) -> None:
    """Rewrites a graph, in place, so that a layer of which one row is read computes that row only.

    Args:
        model: A graph as `infer_sizes` leaves it: equal sizes have equal names. What is computed for one row has other
            names afterwards, and nodes keep theirs.
        whole: The names of nodes that stay as they are.
    """
    picks = {node: row for node in model.graph if (row := _picked(node)) is not None}
    narrow = _read_alone(model.graph, picks, whole)
    if not any(node.op_type in _HEAVY for node in narrow):
        return
    build, entered = Builder(model), dict[tuple[ir.Value, _Row], ir.Value]()
    build.scope = "picked"
    for node, (row, operands) in narrow.items():
        build.before = node
        for at, axis in operands.items():
            value, part = node.inputs[at], _Row(axis, row.place)
            assert value is not None
            if value.producer() not in narrow:
                dims = [1 if other == axis else dim for other, dim in enumerate(sizes_of(value))]
                if (value, part) not in entered:
                    at_row = build.const([row.place], np.int64)
                    entered[value, part] = build.op("Gather", value, at_row, name="row", axis=axis, shape=dims)
                node.replace_input_with(at, entered[value, part])
        _narrow(build, node, row.axis)
    for node in picks:
        if (value := node.inputs[0]) is not None and value.producer() in narrow:
            if node.op_type == "Slice":
                build.replace(node.outputs[0], value)
            else:
                node.replace_input_with(1, build.const(np.zeros_like(constant_of(node.inputs[1]))))


def _read_alone(
    graph: ir.Graph, picks: Mapping[ir.Node, _Row], whole: Collection[str]
) -> dict[ir.Node, tuple[_Row, _Operands]]:
    """The nodes of whose results one row alone is read, in the order of the graph."""
    narrow: dict[ir.Node, tuple[_Row, _Operands]] = {}

    def read(value: ir.Value) -> _Row | None:
        """The row of a value that is all that is read of it."""
        rows: set[_Row | None] = {None} if value.is_graph_output() else set()
        for user, at in value.uses():
            if user in narrow:
                row, operands = narrow[user]
                rows.add(_Row(operands[at], row.place) if at in operands else None)
            else:
                rows.add(picks.get(user) if at == 0 else None)
        return rows.pop() if len(rows) == 1 else None

    for node in reversed(list(graph)):
        rule = _RULES.get(node.op_type) if node.domain in DOMAINS and node.name not in whole else None
        used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
        row = read(used[0]) if rule and used == [node.outputs[0]] else None
        if rule and row and (operands := rule(node, row.axis)):
            narrow[node] = row, operands
    return dict(reversed(narrow.items()))


def _picked(node: ir.Node) -> _Row | None:
    """The row that a node takes out: the only thing that it reads of its first input."""
    value = node.inputs[0] if node.inputs else None
    if node.domain or node.op_type not in ("Gather", "Slice") or not sizes_of(value):
        return None
    rank = len(sizes_of(value))
    if node.op_type == "Gather":
        places, axis = constant_of(node.inputs[1]), node_axis(node, rank, 0)
        return None if places is None or places.size != 1 else _Row(axis, int(places.reshape(-1)[0]))
    first, end, step = (constant_of(node.inputs[at]) if len(node.inputs) > at else np.ones(1) for at in (1, 2, 4))
    axes = node_axes(node, rank, 3) if len(node.inputs) > 3 else None
    if first is None or end is None or step is None or axes is None or len(axes) != 1:
        return None
    place, behind = int(first.reshape(-1)[0]), int(end.reshape(-1)[0])
    alone = behind == place + 1 if place != -1 else behind > 1 << 30
    return _Row(axes[0], place) if alone and step.reshape(-1)[0] == 1 and place in (0, -1) else None


def _narrow(build: Builder, node: ir.Node, axis: int) -> None:
    """Gives the results of a node one row along an axis, and new names, as they are no longer what had these."""
    for value in node.outputs:
        dims = list(sizes_of(value))
        if len(dims) > axis:
            dims[axis] = 1
            value.shape = ir.Shape(dims)
        value.name = f"{value.name}/picked"
    if node.op_type == "Reshape":
        sizes = [-1 if isinstance(dim, str) else dim for dim in sizes_of(node.outputs[0])]
        node.replace_input_with(1, build.const(sizes, np.int64))
        node.attributes.pop("allowzero", None)


def _elementwise(node: ir.Node, axis: int) -> _Operands | None:
    dims, operands = sizes_of(node.outputs[0]), _Operands()
    for at, value in enumerate(node.inputs):
        own = axis - (len(dims) - len(sizes_of(value)))
        if value is None or own < 0:
            continue
        if sizes_of(value)[own] == dims[axis]:
            operands[at] = own
        elif sizes_of(value)[own] != 1:
            return None
    return operands if all(value is None or value.shape is not None for value in node.inputs) else None


def _first_alone(node: ir.Node, axis: int) -> _Operands | None:
    """A product: rows of the first operand are rows of the result."""
    left, right = node.inputs[:2]
    rank = len(sizes_of(left))
    fits = rank == len(sizes_of(node.outputs[0])) and (
        axis == rank - 2 or (axis < rank - 2 and len(sizes_of(right)) == 2)
    )
    more = sizes_of(node.inputs[2]) if len(node.inputs) > 2 else ()
    return {0: axis} if fits and not attribute(node, "transA", 0) and (len(more) < 2 or more[0] == 1) else None


def _before_axis(node: ir.Node, axis: int) -> _Operands | None:
    """Works along an axis, from which on those of the row may not be."""
    rank = len(sizes_of(node.inputs[0]))
    plain = all(len(sizes_of(value)) < rank - axis for value in node.inputs[1:])
    return {0: axis} if plain and node_axis(node, rank, -1) > axis else None


def _skip_norm(node: ir.Node, axis: int) -> _Operands | None:
    same = sizes_of(node.inputs[0]) == sizes_of(node.inputs[1])
    return {0: axis, 1: axis} if same and axis < len(sizes_of(node.inputs[0])) - 1 else None


def _transpose(node: ir.Node, axis: int) -> _Operands | None:
    return {0: perm_of(node, len(sizes_of(node.inputs[0])))[axis]}


def _reshape(node: ir.Node, axis: int) -> _Operands | None:
    """The axes up to the row's stay; one size alone, which is not the row's, may be no number."""
    before, after = sizes_of(node.inputs[0]), sizes_of(node.outputs[0])
    named = [at for at, dim in enumerate(after) if not isinstance(dim, int) and at != axis]
    same = before[: axis + 1] == after[: axis + 1] and None not in after
    return {0: axis} if same and len(named) < 2 and 0 not in after else None


def _attention(node: ir.Node, axis: int) -> _Operands | None:
    """The queries, and the rows of a mask that has one for each."""
    own = node.op_type == "Attention"
    q, mask_at, others = node.inputs[0], 3 if own else 5, node.inputs[4:] if own else node.inputs[6:]
    order = attribute(node, "is_causal", 0) or attribute(node, "unidirectional", 0)
    rank = len(sizes_of(q))
    if order or any(value is not None for value in others) or rank not in ((3, 4) if own else (3,)) or axis != rank - 2:
        return None
    if not own and (node.inputs[1] is None or node.inputs[2] is None or len(sizes_of(node.inputs[1])) == 5):
        return None  # queries, keys and values in one
    mask = node.inputs[mask_at] if len(node.inputs) > mask_at else None
    if mask is None:
        return {0: axis}
    dims = sizes_of(mask)
    if len(dims) < 2 or dims[-2] not in (1, sizes_of(q)[axis]):
        return None
    return {0: axis} if dims[-2] == 1 else {0: axis, mask_at: len(dims) - 2}


_RULES: dict[str, Callable[[ir.Node, int], _Operands | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys({*NORMS, *SOFTMAXES}, _before_axis),
    **dict.fromkeys(SKIP_NORMS, _skip_norm),
    **dict.fromkeys({"MatMul", "Gemm"}, _first_alone),
    **dict.fromkeys({"Attention", "MultiHeadAttention"}, _attention),
    "Transpose": _transpose,
    "Reshape": _reshape,
}
"""By operator, of which operands one row is enough for one row of the result; None = all rows are needed."""
