"""Which outputs of a graph are attention weights. They say which inputs a model looked at, and so reveal them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from attnport.exporter.counting import counts
from attnport.exporter.naming import all_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

_SOFTMAXES = frozenset(("Softmax", "LogSoftmax"))
_SCORES = 3
"""The output of an attention operator (ONNX's, and those of com.microsoft) that holds scores or weights."""
_PASSES = frozenset(
    (
        *("Reshape", "Transpose", "Flatten", "Unsqueeze", "Squeeze", "Expand", "Tile", "Slice", "Split", "Concat"),
        *("Pad", "Gather", "GatherElements", "GatherND", "Cast", "CastLike", "Identity", "Dropout", "Where"),
        *("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "Exp", "Log", "Neg"),
    )
)
_ARITHMETIC = frozenset(("Mul", "Div", "Add", "Sub"))


def weights_out(model: ir.Model) -> tuple[str, ...]:
    """The names of the graph's outputs that are weights or scores of an attention, whole or averaged.

    From each softmax that is an attention's by the rules of the count, and from the scores that an attention operator
    gives out, it goes forward through what leaves weights readable, out of branches too. A product ends it.

    Args:
        model: Without functions of its own (see `passes.cleanup.inline_functions`).
    """
    returned = _returned(model)
    pending = [value for node in all_nodes(model) if counts(node) for value in _weights_of(node)]
    seen = set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        pending += returned.get(id(value), ())
        pending += [out for user in value.consumers() if _is_readable(value, user) for out in user.outputs]
    return tuple(str(output.name) for output in model.graph.outputs if id(output) in seen)


def leave_out(model: ir.Model, names: Collection[str]) -> None:
    """Takes outputs off a graph, and what computed them alone."""
    import onnx_ir.passes.common as passes

    kept = [output for output in model.graph.outputs if output.name not in names]
    model.graph.outputs.clear()
    model.graph.outputs.extend(kept)
    passes.RemoveUnusedNodesPass()(model)


def _weights_of(node: ir.Node) -> list[ir.Value]:
    outputs = list(node.outputs)
    return outputs[:1] if node.op_type in _SOFTMAXES else [value for value in outputs[_SCORES:] if value.name]


def _is_readable(value: ir.Value, user: ir.Node) -> bool:
    """Whether what a node makes of weights still shows them."""
    if user.domain != "":
        return False
    if user.op_type in _PASSES:
        return True
    if user.op_type not in _ARITHMETIC:
        return False
    others = [other for other in user.inputs if other is not None and other is not value]
    if all(_is_constant(other) for other in others):
        return True
    # A gate over features has their width; one over weights (a head mask, a dropout) leaves that of the weights.
    return _width(value) is not None and _width(value) == _width(user.outputs[0])


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return value.const_value is not None or (node is not None and node.op_type == "Constant")


def _width(value: ir.Value) -> str | None:
    return str(value.shape[-1]) if value.shape is not None and len(value.shape) else None


def _returned(model: ir.Model) -> dict[int, list[ir.Value]]:
    """For each value that a branch or loop body returns: what the node around it gives out in its place."""
    found: dict[int, list[ir.Value]] = {}
    for node in all_nodes(model):
        for graph in _branches(node):
            inner = list(graph.outputs)[1:] if node.op_type == "Loop" else list(graph.outputs)  # first: go on or not
            for value, outer in zip(inner, node.outputs, strict=False):
                found.setdefault(id(value), []).append(outer)
    return found


def _branches(node: ir.Node) -> Iterator[ir.Graph]:
    import onnx_ir as ir

    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
