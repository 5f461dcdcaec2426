"""Rewrites `(a - c b) v`, with a and b the probabilities of two attentions that share v, to `a v - c (b v)`.

The differential transformer (Ye et al. 2024, arXiv 2410.05258) has such an attention. Each part is then an attention
that a kernel can compute: the product with v is computed twice, but the scores are never stored in memory.
"""

from __future__ import annotations

from attnport.exporter.builder import Builder
from attnport.onnx_graph import dims_of, ir

_SAME = {"Cast", "Identity", "Dropout"}


def apply(model: ir.Model) -> int:
    """Distributes each product with v over such a sum; returns how many products were rewritten."""
    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "MatMul" and node.domain == ""]:
        total = _sum(node.inputs[0])
        if total is None or node.inputs[1] is None:
            continue
        build.before, build.scope = node, node.name or "difference"
        parts = [_part(build, value, node) for value in total.inputs]
        difference = build.op(total.op_type, *parts, name="parts", shape=dims_of(node.outputs[0]))
        build.replace(node.outputs[0], difference)
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _sum(value: ir.Value | None) -> ir.Node | None:
    """The node behind a value if it is a sum or difference of two softmaxes, each with or without a factor."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in _SAME:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type not in ("Add", "Sub") or node.domain != "":
        return None
    return node if all(_weighted(part) is not None for part in node.inputs) else None


def _weighted(value: ir.Value | None) -> tuple[ir.Value, ir.Value | None, str] | None:
    """A softmax, its factor (None = no factor) and the operator between them; None for any other value."""
    node = value.producer() if value is not None else None
    if node is None or value is None:
        return None
    if node.op_type == "Softmax":
        return value, None, ""
    if node.op_type in _SAME:
        return _weighted(node.inputs[0])
    if node.op_type in ("Mul", "Div"):
        sides = (0, 1) if node.op_type == "Mul" else (0,)
        for on, by in ((node.inputs[side], node.inputs[1 - side]) for side in sides):
            inner = _weighted(on)
            if inner is not None and inner[1] is None and by is not None and _same_for_every_key(by):
                return inner[0], by, node.op_type
    return None


def _same_for_every_key(factor: ir.Value) -> bool:
    dims = dims_of(factor)
    return dims is not None and (not dims or dims[-1] == 1)


def _part(build: Builder, value: ir.Value | None, product: ir.Node) -> ir.Value:
    weighted = _weighted(value)
    assert weighted is not None
    probabilities, factor, operator = weighted
    v, output = product.inputs[1], product.outputs[0]
    assert v is not None
    if v.dtype is not None:
        probabilities = build.cast(probabilities, v.dtype)
    product_with_v = build.op("MatMul", probabilities, v, name="part", shape=dims_of(output))
    if factor is None:
        return product_with_v
    if v.dtype is not None:
        factor = build.cast(factor, v.dtype)
    return build.op(operator, product_with_v, factor, name="weighted", shape=dims_of(output))
