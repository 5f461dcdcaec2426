"""Rewrites a softmax that is written out as the operator.

`e / sum(e)`, with `e = exp(x)` where some elements may be replaced by zero, and `exp(x - logsumexp(x))`, where sums are
over the last axis. The division may also come after the product: `(e v) / sum(e)`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.elements import scalar
from attnport.exporter.fusion.moves import const_value, dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


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
    summed = _reduced(total, "ReduceSum")
    if upper is None or summed is None:
        return None
    if upper is summed:
        return _softmax(build, summed)
    product = upper.producer()
    if product is None or product.op_type != "MatMul" or product.inputs[0] is not summed:
        return None
    softmax = _softmax(build, summed)
    return build.op("MatMul", softmax, product.inputs[1], name="product") if softmax is not None else None


def _from_logarithm(build: Builder, node: ir.Node) -> ir.Value | None:
    difference = node.inputs[0].producer() if node.inputs[0] is not None else None
    if difference is None or difference.op_type != "Sub" or difference.domain:
        return None
    x, logarithm = difference.inputs
    if x is None or _reduced(logarithm, "ReduceLogSumExp") is not x:
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
    inner = kept.producer()
    if inner is None or inner.op_type != "Exp" or inner.domain or exponential.dtype is None:
        return None
    hidden, x = build.like(-math.inf, exponential), inner.inputs[0]
    assert x is not None
    chosen = (hidden, x) if zero == 0 else (x, hidden)
    return _of(build, build.op("Where", condition, *chosen, name="scores", dtype=x.dtype, shape=dims_of(exponential)))


def _of(build: Builder, scores: ir.Value | None) -> ir.Value:
    assert scores is not None
    return build.op("Softmax", scores, name="softmax", shape=dims_of(scores), axis=-1)


def _reduced(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """What `value` is the sum of over the last axis, which is kept; None if it is something else."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or node.domain:
        return None
    of = node.inputs[0]
    axes = const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None and "axes" in node.attributes:
        axes = node.attributes["axes"].as_ints()
    keeps = "keepdims" not in node.attributes or node.attributes["keepdims"].as_int() == 1
    if of is None or of.shape is None or axes is None or not keeps:
        return None
    return of if [int(axis) % len(of.shape) for axis in axes] == [len(of.shape) - 1] else None
