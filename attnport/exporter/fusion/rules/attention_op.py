"""The standard's `Attention` operator (opset 23 up), as torch exports scaled_dot_product_attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnport.exporter.fusion.attention import Attention, Context, NotRecognised
from attnport.exporter.fusion.mask import MaskReader

if TYPE_CHECKING:
    import onnx_ir as ir

OP_TYPE = "Attention"
_OPTIONAL_INPUTS = {4: "past_key", 5: "past_value", 6: "nonpad_kv_seqlen"}


def applies(node: ir.Node) -> bool:
    """Every `Attention` node stands for an attention."""
    return True


def match(node: ir.Node, context: Context) -> Attention:
    """Reads an `Attention` node.

    Raises:
        NotRecognised: it uses a cache, soft-cap or a second output, or its inputs are not `[B,H,S,D]`.
    """
    for at, name in _OPTIONAL_INPUTS.items():
        if len(node.inputs) > at and node.inputs[at] is not None:
            raise NotRecognised(f"the Attention operator uses {name}; it stays as it is")
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise NotRecognised("a second output of the Attention operator is used; it stays as it is")
    if _number(node, "softcap", 0.0):
        raise NotRecognised("the Attention operator has a soft-cap; it stays as it is")
    q, k, v = node.inputs[:3]
    if q is None or k is None or v is None or q.shape is None or len(q.shape) != 4:
        raise NotRecognised("the inputs of the Attention operator are not of rank 4; it stays as it is")
    depth = q.shape[3]
    default = 1.0 / math.sqrt(depth) if isinstance(depth, int) else math.nan
    scale = _number(node, "scale", default)
    if math.isnan(scale):
        raise NotRecognised("the head dim is not fixed, so the default scale is not known; it stays as it is")
    reader = MaskReader(4, context.keep_inputs)
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is not None:
        if mask.dtype is not None and mask.dtype.name == "BOOL":
            reader.where(mask, hides=False)
        else:
            reader.add(mask)
    if _number(node, "is_causal", 0):
        reader.causal()
    return Attention("", node, node, q, k, None, v, scale, reader.read(), node.outputs[0])


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes[name].value) if name in node.attributes else default
