"""ONNX Runtime on CUDA: its own operators, whose kernels choose flash or memory-efficient attention at run time."""

from __future__ import annotations

from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op, form_name
from attnport.exporter.forms.contrib import (
    group_query_attention,
    multi_head_attention,
    why_not_group_query,
    why_not_multi_head,
)
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.lowering.base import Lowering, Written


class OrtCuda(Lowering):
    """The kernels' types are from ONNX Runtime's source (read, not run): `GroupQueryAttention` in fp16 and bf16,
    `MultiHeadAttention` in fp32 and fp16. Half precision is the default, since the flash kernels need it."""

    name = "ort_cuda"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cuda",)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`GroupQueryAttention` if it computes exactly this mask, else `MultiHeadAttention`, else the standard's."""
        if plan != "fp32" and not why_not_group_query(attention):
            output, anchors = group_query_attention(build, masks, attention)
            return Written(output, "GroupQueryAttention", anchors)
        reason = why_not_multi_head(attention)
        if plan == "bf16":
            reason = "MultiHeadAttention has no bf16 kernel"
        if not reason:
            output, anchors = multi_head_attention(build, masks, attention, key_column=False)
            return Written(output, "MultiHeadAttention", anchors)
        output, anchors = attention_op(build, masks, attention, "bool_full")
        return Written(output, f"{form_name(attention, 'bool_full')} ({reason})", anchors)


LOWERING = OrtCuda()
