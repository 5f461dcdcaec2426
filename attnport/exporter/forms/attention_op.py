"""Writes one standard `Attention` operator (opset 23 or later) for each attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.forms.blocks import Local, local, window_of
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.operands import key_of, scaled
from attnport.exporter.forms.sinks import sink_bias
from attnport.exporter.fusion.attention import Attention

if TYPE_CHECKING:
    import onnx_ir as ir

MaskStyle = Literal["bool", "bool_full", "float_full"]


def attention_op(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    style: MaskStyle,
    *,
    compute: ir.DataType | None = None,
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Attention(q, k, v, mask)`; returns its output, shaped as `attention.output`, and the node's name.

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
    output, anchors = attention_op(build, masks, attention, style)
    blocks = local(masks, attention, output, window, additive=style == "float_full")
    name = f"Attention, blocks of {window.block} queries from {window.short + 1} tokens on"
    return output, anchors, name, blocks
