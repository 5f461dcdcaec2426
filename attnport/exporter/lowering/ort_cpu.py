"""ONNX Runtime on CPU: the standard's `Attention`, or the runtime's own operators where they are faster."""

from __future__ import annotations

from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op
from attnport.exporter.forms.contrib import (
    group_query_attention,
    multi_head_attention,
    why_not_group_query,
    why_not_multi_head,
)
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.lowering.base import Lowering, Written

LONG, LONG_MASKED = 256, 1024
"""Usual key lengths from which the runtime's own operators are taken: without a mask or with the causal one, and with
any other mask."""


class OrtCpu(Lowering):
    """The form measured fastest for the model's usual key length."""

    name = "ort_cpu"
    opset = 23
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cpu",)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`Attention` with one additive mask that all layers share, unless the length is known to be great."""
        length = build.usual_size(attention.v, 2) or 0
        masked = bool(attention.mask.factors or attention.mask.biases)
        if length >= LONG and not why_not_group_query(attention):
            output, anchors = group_query_attention(build, masks, attention)
            return Written(output, f"GroupQueryAttention (keys: {length})", anchors)
        if length >= (LONG_MASKED if masked else LONG) and not why_not_multi_head(attention):
            output, anchors = multi_head_attention(build, masks, attention, key_padding=True)
            return Written(output, f"MultiHeadAttention (keys: {length})", anchors)
        output, anchors = attention_op(build, masks, attention, "float_full")
        return Written(output, "Attention, float mask [B,1,S,T]", anchors)


LOWERING = OrtCpu()
