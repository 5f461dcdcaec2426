"""Attention written out as the products and the softmax that every opset has.

Masks are merged into one `Where`, and q is scaled. Keys are hidden with the type's lowest number. A row with no allowed
key is set to zero after the product with v, on a tensor of S x D instead of S x T. OpenVINO does not fuse if there is
an operator between softmax and v, or between the product and the mask. For TensorRT see `forms/tiled.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.float_limits import lowest
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.operands import operands, repeated
from attnport.exporter.forms.sinks import sink_bias
from attnport.exporter.fusion.attention import Attention

if TYPE_CHECKING:
    import onnx_ir as ir


def decomposed(
    build: Builder, masks: MaskWriter, attention: Attention, *, compute: ir.DataType | None = None
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Where(mask, (q scale) k^T, low) -> Softmax -> v` with its guard.

    Args:
        compute: The dtype to compute in (q, k, v are cast to it, the output back); None = the dtype of q.

    Returns:
        The output and the names of the QK^T product, the softmax and the PV product.
    """
    import onnx_ir as ir

    dtype = attention.q.dtype
    assert dtype is not None
    compute = compute or dtype
    q, k_transposed, v = operands(build, attention, compute, attention.scale, repeated)
    scores = build.op("MatMul", q, k_transposed, name="qk")
    anchors = [scores]
    if attention.softcap:
        cap = build.like(attention.softcap, scores)
        capped = build.op("Tanh", build.op("Div", scores, cap, name="softcap_in"), name="softcap_tanh")
        scores = build.op("Mul", capped, cap, name="softcap")
    for bias in (masks.bias(attention, compute), sink_bias(build, masks, attention, compute)):
        if bias is not None:
            scores = build.op("Add", scores, bias, name="bias")
    keep = masks.keep(attention)
    may_hide = any(can_hide(bias.at.value) for bias in attention.mask.biases)
    if keep is not None:
        # A bias of -inf is below the lowest number, so masked scores need -inf too.
        # In float64 the number is that of float32, as a runtime may compute in that type all the same.
        number = lowest(ir.DataType.FLOAT if compute == ir.DataType.DOUBLE else compute)
        low = build.like(-np.inf if may_hide else number, scores)
        scores = build.op("Where", keep, scores, low, name="mask", dtype=compute)
    weights = build.op("Softmax", scores, name="softmax", axis=-1)
    anchors.append(weights)
    output = build.op("MatMul", weights, v, name="pv")
    anchors.append(output)
    if may_hide:
        empty = build.op("IsNaN", output, name="no_key", dtype=ir.DataType.BOOL)
        output = build.op("Where", empty, build.like(0.0, output), output, name="guard", dtype=compute)
    elif keep is not None:
        output = build.op("Where", masks.any_key(keep), output, build.like(0.0, output), name="guard", dtype=compute)
    return build.cast(output, dtype, "out_cast"), tuple(map(node_name, anchors))


def can_hide(bias: ir.Value) -> bool:
    """Whether a bias may contain -inf: it comes from a float input or a constant of -inf, and not through a product."""
    pending, seen = [bias], set()
    while pending:
        value = pending.pop()
        if value in seen or (value.dtype is not None and not value.dtype.is_floating_point()):
            continue
        seen.add(value)
        number = value.const_value.numpy().min() if value.const_value is not None and value.const_value.size else 0.0
        if value.is_graph_input() or float(number) == -np.inf:
            return True
        node = value.producer()
        if node is not None and node.op_type not in ("MatMul", "Gemm", "Einsum", "LayerNormalization", "Softmax"):
            pending.extend(part for part in node.inputs if part is not None)
    return False
