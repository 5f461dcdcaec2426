"""Rewrites a softmax that is written out as the operator.

`e / sum(e)`, with `e = exp(x)` where some elements may be replaced by zero, and `exp(x - logsumexp(x))`, where sums are
over the last axis, and `exp(log_softmax(x))`. The division may also come after the product: `(e v) / sum(e)`.
"""

from __future__ import annotations

import math

from attnport.exporter.builder import Builder
from attnport.onnx_graph import attribute, dims_of, ir, made_by, reduced, scalar


def apply(model: ir.Model) -> int:
    """Replaces each softmax that is written out; returns how many were replaced."""
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Div", "Exp"):
            continue
        build.before, build.scope = node, node.name or ""
        result = _from_division(build, node) if node.op_type == "Div" else _from_logarithm(build, node)
        if result is not None:
            build.replace(node.outputs[0], result)
            replaced += 1
    return replaced


def _from_division(build: Builder, node: ir.Node) -> ir.Value | None:
    upper, total = node.inputs
    summed = reduced(total, "ReduceSum")
    if upper is None or summed is None:
        return None
    if upper is summed:
        return _softmax(build, summed)
    product = made_by(upper, "MatMul")
    if product is None or product.inputs[0] is not summed:
        return None
    softmax = _softmax(build, summed)
    return build.op("MatMul", softmax, product.inputs[1], name="product") if softmax is not None else None


def _from_logarithm(build: Builder, node: ir.Node) -> ir.Value | None:
    whole = made_by(node.inputs[0], "LogSoftmax")
    if whole is not None:
        build.scope = whole.name or ""
        return build.op("Softmax", whole.inputs[0], name="softmax", axis=attribute(whole, "axis", -1))
    difference = made_by(node.inputs[0], "Sub")
    if difference is None:
        return None
    x, logarithm = difference.inputs
    if x is None or reduced(logarithm, "ReduceLogSumExp") is not x:
        return None
    return _of(build, x)


def _softmax(build: Builder, exponential: ir.Value) -> ir.Value | None:
    """The softmax whose numerators are `exponential`; None if that is no exponential of anything."""
    node = exponential.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Exp":
        return _of(build, node.inputs[0])
    if node.op_type != "Where":
        return None
    condition, *either = node.inputs
    zero = next((at for at, value in enumerate(either) if value is not None and scalar(value) == 0), None)
    if zero is None or (kept := either[1 - zero]) is None:
        return None
    inner = made_by(kept, "Exp")
    if inner is None or exponential.dtype is None:
        return None
    hidden, x = build.like(-math.inf, exponential), inner.inputs[0]
    assert x is not None
    chosen = (hidden, x) if zero == 0 else (x, hidden)
    return _of(build, build.op("Where", condition, *chosen, name="scores", dtype=x.dtype, shape=dims_of(exponential)))


def _of(build: Builder, scores: ir.Value | None) -> ir.Value:
    assert scores is not None
    return build.op("Softmax", scores, name="softmax", shape=dims_of(scores), axis=-1)
