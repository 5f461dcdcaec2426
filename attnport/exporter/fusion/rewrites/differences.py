"""`(a - c b) v`, with a and b the probabilities of two attentions that share v, as `a v - c (b v)`.

The differential transformer (Ye et al. 2024, arXiv 2410.05258) writes its attention so. Each part is then an attention
of its own, which a kernel can compute; the product with v is done twice, the scores are never held in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir

_SAME = {"Cast", "Identity", "Dropout"}


def apply(model: ir.Model) -> int:
    """Distributes each product with v over such a sum; returns how many products there were."""
    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "MatMul" and node.domain == ""]:
        total = _sum(node.inputs[0])
        if total is None or node.inputs[1] is None:
            continue
        build.before, build.scope = node, node.name or "difference"
        parts = [_part(build, value, node) for value in total.inputs]
        made = build.op(total.op_type, *parts, name="parts", shape=dims_of(node.outputs[0]))
        build.replace(node.outputs[0], made)
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _sum(value: ir.Value | None) -> ir.Node | None:
    """The sum or difference of two softmaxes, each times a factor or not, that a value is."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in _SAME:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type not in ("Add", "Sub") or node.domain != "":
        return None
    return node if all(_weighted(part) is not None for part in node.inputs) else None


def _weighted(value: ir.Value | None) -> tuple[ir.Value, ir.Value | None, str] | None:
    """A softmax and its factor (None = one), with the operator that joins them; None where a value is no such thing."""
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
    found = _weighted(value)
    assert found is not None
    probabilities, factor, operator = found
    v, output = product.inputs[1], product.outputs[0]
    assert v is not None
    if v.dtype is not None:
        probabilities = build.cast(probabilities, v.dtype)
    made = build.op("MatMul", probabilities, v, name="part", shape=dims_of(output))
    if factor is None:
        return made
    if v.dtype is not None:
        factor = build.cast(factor, v.dtype)
    return build.op(operator, made, factor, name="weighted", shape=dims_of(output))
