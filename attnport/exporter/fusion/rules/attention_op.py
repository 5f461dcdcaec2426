"""Reads the standard's `Attention` operator (opset 23 or later), as torch exports scaled_dot_product_attention."""

from __future__ import annotations

import math
from collections.abc import Collection

from attnport.exporter.fusion.formula import Axis, Const
from attnport.exporter.fusion.indices import (
    DEPTH,
    KEY,
    ROW,
    Layout,
    Lead,
    Located,
    bringable,
    broadcast_index,
    key_and_value,
    query,
    split,
)
from attnport.exporter.fusion.mask import MaskReader
from attnport.exporter.fusion.recognise import NotRecognised, Recognised
from attnport.masks import MaskSpec
from attnport.onnx_graph import attribute, dims_of, ir

OP_TYPE = "Attention"
_OPTIONAL_INPUTS = {4: "past_key", 5: "past_value", 6: "nonpad_kv_seqlen"}


def applies(node: ir.Node) -> bool:
    """Every `Attention` node stands for an attention."""
    return True


def match(node: ir.Node, masks: Collection[MaskSpec]) -> Recognised:
    """Reads an `Attention` node.

    Raises:
        NotRecognised: it uses a cache or a second output, or its inputs are not `[B,H,S,D]`.
    """
    for at, name in _OPTIONAL_INPUTS.items():
        if len(node.inputs) > at and node.inputs[at] is not None:
            raise NotRecognised(
                f"the Attention operator uses {name}; it stays as it is", "join the cache with Concat before it"
            )
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise NotRecognised(
            "a second output of the Attention operator is used; it stays as it is", "compute the weights separately"
        )
    q_dims, k_dims, v_dims = (dims_of(value) for value in node.inputs[:3])
    if not (q_dims and k_dims and v_dims) or not len(q_dims) == len(k_dims) == len(v_dims) == 4:
        raise NotRecognised("the inputs of the Attention operator are not of rank 4; it stays as it is")
    default = 1.0 / math.sqrt(q_dims[3]) if isinstance(q_dims[3], int) else math.nan
    scale = attribute(node, "scale", default)
    if math.isnan(scale):
        raise NotRecognised(
            "the head dim is not fixed, so the default scale is not known; it stays as it is", "give the scale"
        )
    batch, head = Lead(Axis("l0"), q_dims[0]), Lead(Axis("l1"), q_dims[1])
    layout = Layout((batch,), (head,), (batch.axis, head.axis))
    q = Located(node.inputs[0], (batch.axis, head.axis, ROW, DEPTH))  # type: ignore[arg-type]  # has dims, so is there
    k, v = (_keys(layout, value, dims) for value, dims in zip(node.inputs[1:3], (k_dims, v_dims), strict=True))
    k, v = key_and_value(layout, k, v)
    reader = MaskReader(layout, masks)
    _read_mask(node, layout, reader)
    output = Located(node.outputs[0], (batch.axis, head.axis, ROW, DEPTH))
    mask, softcap = reader.read(q, k), attribute(node, "softcap", 0.0)
    return Recognised("", node, node, layout, query(layout, q), k, v, scale, mask, output, softcap)


def _keys(layout: Layout, value: ir.Value | None, dims: list[int | str | None]) -> Located:
    """k or v of an operator, which may have fewer heads than the queries."""
    assert value is not None
    heads, groups = layout.head_count, dims[1]
    head = layout.head_index
    if isinstance(heads, int) and isinstance(groups, int) and groups and heads % groups == 0:
        head = split(head, Const(heads // groups))[0]
    return Located(value, (layout.batch_index, head, KEY, DEPTH))


def _read_mask(node: ir.Node, layout: Layout, reader: MaskReader) -> None:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is not None:
        index = broadcast_index(mask, (*layout.raw, ROW, KEY))
        if index is None or not bringable(layout, Located(mask, index), ROW, KEY):
            raise NotRecognised("the sizes of the mask of the Attention operator are not known; it stays as it is")
        if mask.dtype is not None and mask.dtype.name == "BOOL":
            reader.where(Located(mask, index), -math.inf, hides=False)
        else:
            reader.add(Located(mask, index))
    if attribute(node, "is_causal", 0):
        reader.causal()
