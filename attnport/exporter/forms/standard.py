"""Attention in operators of the standard: one `Attention` (opset 23 or later), or the products and the softmax that
every opset has. TensorRT has products of its own: see `targets/tensorrt.py`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.forms.blocks import Local, local, window_of
from attnport.exporter.forms.operands import MaskWriter, key_of, operands, repeated, scaled, sink_bias
from attnport.exporter.fusion.formula import is_of_keys
from attnport.exporter.fusion.recognise import Attention, largest
from attnport.onnx_graph import ir

MaskStyle = Literal["bool", "bool_full", "float_full"]


def attention_op(
    build: Builder, masks: MaskWriter, attention: Attention, style: MaskStyle, *, compute: ir.DataType | None = None
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Attention(q, k, v, mask)`; returns its output, `[B,H,S,Dv]`, and a tuple with the node's name.

    Args:
        style: The mask that the runtime takes: bool broadcast over queries (`[B,1,1,T]`, as the standard allows), or
            bool or float (zero and -inf) at `[B,1,S,T]`. In every style, biases make it float and are added to it.
        compute: The dtype to compute in (q, k, v are cast to it, the output back); None = the dtype of q.
    """
    causal = attention.mask.is_causal_only
    assert attention.q.dtype is not None
    compute = compute or attention.q.dtype
    mask = None if causal else _mask(build, masks, attention, style, compute)
    # With half precision around attention alone, q is scaled before its cast, where the scale is not rounded.
    on_q, scale = (attention.scale, 1.0) if compute != attention.q.dtype else (1.0, attention.scale)
    q = build.cast(scaled(build, attention.q, on_q), compute)
    k, v = (build.cast(value, compute) for value in (key_of(build, attention), attention.v))
    attributes: dict[str, Any] = {"scale": scale, "is_causal": int(causal)}
    if attention.softcap:
        attributes["softcap"] = attention.softcap
    output = build.op("Attention", q, k, v, mask, name="Attention", dtype=compute, **attributes)
    anchor = node_name(output)
    return build.cast(output, attention.q.dtype, "out_cast"), (anchor,)


_STYLES = {"bool": "bool mask broadcast", "bool_full": "bool mask [B,1,S,T]", "float_full": "float mask [B,1,S,T]"}


def form_name(attention: Attention, style: MaskStyle) -> str:
    """The name, for reports, of what `attention_op` writes."""
    if attention.mask.is_causal_only:
        return "Attention, is_causal"
    if attention.mask.biases or attention.sink is not None:
        return "Attention, float mask"
    return f"Attention, {_STYLES[style]}" if attention.mask.factors else "Attention"


def _mask(
    build: Builder, masks: MaskWriter, attention: Attention, style: MaskStyle, compute: ir.DataType
) -> ir.Value | None:
    bias = masks.bias(attention, compute)
    sink = sink_bias(build, masks, attention, compute)
    if bias is not None and sink is not None:
        bias = build.op("Add", bias, sink, name="mask/with_sink")
    bias = bias if bias is not None else sink
    keep = masks.keep(attention) if style == "bool" and bias is None else masks.full(attention)
    if bias is not None and style != "bool":
        bias = masks.full_bias(attention, bias)
    if keep is None or (bias is None and style != "float_full"):
        return keep if bias is None else bias
    additive = masks.additive(keep, compute)
    return additive if bias is None else build.op("Add", additive, bias, name="mask/with_bias")


def in_blocks(
    build: Builder, masks: MaskWriter, attention: Attention, style: MaskStyle
) -> tuple[ir.Value, tuple[str, ...], str, Local] | str:
    """As `attention_op`, for a window that is to be computed in blocks: its output, anchors, form name and blocks.

    Returns:
        Otherwise why not; "" for an attention without a window.
    """
    window, why_not = window_of(attention, build.usual_size(attention.v, 2))
    if window is None:
        return why_not
    if not all(masks.is_apart(factor, attention) for factor in attention.mask.factors if is_of_keys(factor.keep)):
        return "its condition on keys is only known together with its window"
    output, anchors = attention_op(build, masks, attention, style)
    blocks = local(masks, attention, output, window, additive=style == "float_full")
    name = f"Attention, blocks of {window.block} queries from {window.short + 1} tokens on"
    return output, anchors, name, blocks


def decomposed(build: Builder, masks: MaskWriter, attention: Attention) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Where(mask, (q scale) k^T, low) -> Softmax -> v` with its guard.

    Masks are merged into one `Where`, and q is scaled, also by the division of a soft-cap. Keys are hidden with the
    type's lowest number. A row with no allowed key is set to zero after the product with v, on a tensor of S x D and
    not of S x T. OpenVINO does not fuse if there is an operator between softmax and v, or one between the product and
    the mask that is not a soft-cap's.

    Returns:
        The output and the names of the QK^T product, the softmax and the PV product.
    """
    dtype = attention.q.dtype
    assert dtype is not None
    q, k_transposed, v = operands(build, attention, dtype, attention.scale / (attention.softcap or 1.0), repeated)
    scores = build.op("MatMul", q, k_transposed, name="qk")
    anchors = [scores]
    if attention.softcap:
        capped = build.op("Tanh", scores, name="softcap_tanh")
        scores = build.op("Mul", capped, build.like(attention.softcap, scores), name="softcap")
    for bias in (masks.bias(attention, dtype), sink_bias(build, masks, attention, dtype)):
        if bias is not None:
            scores = build.op("Add", scores, bias, name="bias")
    keep = masks.keep(attention)
    may_hide = any(can_hide(bias.at.value) for bias in attention.mask.biases)
    if keep is not None:
        # A bias of -inf is below the lowest number, so masked scores need -inf too.
        # In float64 the number is that of float32, as a runtime may compute in that type all the same.
        number = -largest(ir.DataType.FLOAT if dtype == ir.DataType.DOUBLE else dtype)
        low = build.like(-np.inf if may_hide else number, scores)
        scores = build.op("Where", keep, scores, low, name="mask", dtype=dtype)
    weights = build.op("Softmax", scores, name="softmax", axis=-1)
    anchors.append(weights)
    output = build.op("MatMul", weights, v, name="pv")
    anchors.append(output)
    if may_hide:
        output = build.without_nan(output)
    elif keep is not None:
        output = build.op("Where", masks.any_key(keep), output, build.like(0.0, output), name="guard", dtype=dtype)
    return output, tuple(map(node_name, anchors))


def can_hide(bias: ir.Value) -> bool:
    """Whether a bias may contain -inf: of a float input, a constant or a logarithm, and not through a product."""
    pending, seen = [bias], set()
    while pending:
        value = pending.pop()
        if value in seen or (value.dtype is not None and not value.dtype.is_floating_point()):
            continue
        seen.add(value)
        number = value.const_value.numpy().min() if value.const_value is not None and value.const_value.size else 0.0
        node = value.producer()
        if value.is_graph_input() or float(number) == -np.inf or (node is not None and node.op_type == "Log"):
            return True
        if node is not None and node.op_type not in ("MatMul", "Gemm", "Einsum", "LayerNormalization", "Softmax"):
            pending.extend(part for part in node.inputs if part is not None)
    return False
