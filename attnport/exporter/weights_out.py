"""Finds the outputs of a graph that are attention weights: they show which inputs a model looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attnport.exporter.counting import ONNX, SOFTMAX_NODES, counts
from attnport.exporter.naming import all_nodes, branches, upstream
from attnport.onnx_graph import ir, is_constant, passes

_SCORES = 3
"""The output of an attention operator (ONNX's, and those of com.microsoft) that holds scores or weights."""
_PASSES = ONNX.layout | {"Where", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "Exp", "Log", "Neg"}
_ARITHMETIC = frozenset(("Mul", "Div", "Add", "Sub"))


def weights_out(model: ir.Model) -> tuple[str, ...]:
    """The names of the graph's outputs that are weights or scores of an attention, whole or averaged.

    The search starts at the scores that an attention operator returns, at each softmax that counts as an attention, and
    at each softmax over products of an input with itself (if a model returns nothing but weights, its product with the
    values is gone). It follows every operator that leaves weights readable, also out of branches, and ends at a
    product.

    Args:
        model: Without functions of its own (see `builder.inline_functions`).
    """
    returned = _returned(model)
    pending = [value for node in all_nodes(model) if _attends(node) for value in _weights_of(node)]
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
    """Removes outputs from a graph, with the nodes that nothing else uses."""
    kept = [output for output in model.graph.outputs if output.name not in names]
    model.graph.outputs.clear()
    model.graph.outputs.extend(kept)
    passes.RemoveUnusedNodesPass()(model)


def _attends(node: ir.Node) -> bool:
    is_softmax = node.domain == "" and node.op_type in SOFTMAX_NODES
    return counts(node) or (is_softmax and any(_compares(value) for value in _products_behind(node)))


def _products_behind(node: ir.Node) -> Iterator[ir.Node]:
    """The products from which a softmax's scores are computed, through masks, scales and changes of layout."""
    through = _PASSES | _ARITHMETIC
    walk = upstream(node.inputs, lambda _, node: node.domain == "" and node.op_type in through)
    makers = (value.producer() for value in walk)
    return (maker for maker in makers if maker is not None and not maker.domain and maker.op_type in ONNX.products)


def _compares(product: ir.Node) -> bool:
    """Whether both sides of a product come from one input of the graph."""
    sides = [{before.name for before in upstream([value]) if before.is_graph_input() and before.name}
             for value in product.inputs[:2] if value is not None]  # fmt: skip
    return len(sides) > 1 and bool(sides[0] & sides[1])


def _weights_of(node: ir.Node) -> list[ir.Value]:
    outputs = list(node.outputs)
    return outputs[:1] if node.op_type in SOFTMAX_NODES else [value for value in outputs[_SCORES:] if value.name]


def _is_readable(value: ir.Value, user: ir.Node) -> bool:
    """Whether the weights can still be read from what a node computes of them."""
    if user.domain != "":
        return False
    if user.op_type in _PASSES:
        return True
    if user.op_type not in _ARITHMETIC:
        return False
    others = [other for other in user.inputs if other is not None and other is not value]
    return all(is_constant(other) or _is_mask(other) for other in others)


def _is_mask(value: ir.Value) -> bool:
    """Whether a value is broadcast over the weights, as a head mask `[H,1,1]`; features that weights gate are not."""
    return value.shape is not None and any(dim == 1 for dim in value.shape)


def _returned(model: ir.Model) -> dict[int, list[ir.Value]]:
    """For each value that a branch or loop body returns, by id: the outputs of the nodes around it that carry it."""
    returned: dict[int, list[ir.Value]] = {}
    for node in all_nodes(model):
        for graph in branches(node):
            # The first output of a loop body is the loop's condition.
            inner = list(graph.outputs)[1:] if node.op_type == "Loop" else list(graph.outputs)
            for value, outer in zip(inner, node.outputs, strict=False):
                returned.setdefault(id(value), []).append(outer)
    return returned
