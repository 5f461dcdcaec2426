"""ONNX Runtime on CPU: the standard's `Attention`, or the runtime's own operators where they are faster.

Measured by `python benchmarks/ort_forms.py`: medians of interleaved runs on one thread (ONNX Runtime 1.31.1, AMD Zen 5,
12 heads, 4 at T=4096, D 32 and 64). The table has the time divided by that of the standard's operator in its best form,
`is_causal` or a float mask:

| T | no mask, `MultiHeadAttention` | causal, `GroupQueryAttention` | padding, key column | other masks, bias |
|-|-|-|-|-|
| 64 | 1.00-1.02 | 1.02-1.06 | 1.12-1.14 | 1.08-1.21 |
| 128 | 0.97-1.00 | 0.97-1.01 | 1.00-1.04 | 1.06-1.12 |
| 8 x 128 | | | 0.93-0.96 | 1.13 |
| 256 | 0.81-0.88 | 0.94-0.95 | 0.95-0.98 | 0.97-0.98 |
| 512 | 0.83-0.89 | 0.93-0.94 | 0.86-0.92 | 0.93 |
| 1024 | 0.92-0.95 | 0.85-0.86 | 0.79-0.87 | 0.91-0.94 |
| 2048 | 0.85-0.86 | 0.77-0.86 | 0.70-0.77 | 0.88-0.89 |
| 4096 (D=32) | 0.83 | 0.77 | | 0.81 |

The key column (see `contrib.multi_head`) is what lets padding reach the flash kernel: at T=8192 (D=64) one attention
takes 0.70 of the time of the standard's operator, and 181 MB in place of 4162. Grouped heads, repeated for
`MultiHeadAttention`, take 0.79-0.97 without a mask from 256 on, and 0.87-0.92 with padding from 1024 on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.contrib.group_query import group_query_attention, why_not_group_query
from attnport.exporter.contrib.multi_head import hides_keys_alone, multi_head_attention, why_not_multi_head
from attnport.exporter.forms.attention_op import attention_op, form_name, in_blocks
from attnport.exporter.forms.in_place import update_in_place
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.lowering.base import Lowering, Written

if TYPE_CHECKING:
    import onnx_ir as ir

LONG, LONG_MASKED = 256, 1024
"""Usual key lengths from which the runtime's own operators are used: the first with the causal mask, and where only
keys are hidden, or nothing, which the flash kernel computes in memory that is linear in the length; the second with any
other mask (at 512 the gain is within the variation between runs) or with grouped heads, which are repeated."""


class OrtCpu(Lowering):
    """The form measured fastest for the model's usual key length."""

    name = "ort_cpu"
    opset = 23
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cpu",)
    integers: ClassVar[tuple[str, ...]] = ("int8", "int4")
    real_tokens: ClassVar[bool] = True
    widens: ClassVar[bool] = True

    def typed(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """As every target; then a decoder's steps write to its cache in place."""
        super().typed(model, plan, islands)
        update_in_place(model)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`Attention` with one additive mask that all layers share, unless the usual length is known to be large."""
        blocks = in_blocks(build, masks, attention, "float_full")
        if not isinstance(blocks, str):
            output, anchors, name, local = blocks
            return Written(output, name, anchors, local=local)
        note = blocks and f"not in blocks: {blocks}"
        length = build.usual_size(attention.v, 2) or 0
        if length >= LONG and not why_not_group_query(attention):
            output, anchors = group_query_attention(build, masks, attention)
            return Written(output, f"GroupQueryAttention (keys: {length})", anchors, note)
        heads, key_heads = attention.head_counts()
        alone = heads == key_heads and hides_keys_alone(attention)
        if length >= (LONG if alone else LONG_MASKED) and not why_not_multi_head(attention):
            output, anchors = multi_head_attention(build, masks, attention, key_column=True)
            return Written(output, f"MultiHeadAttention (keys: {length})", anchors, note)
        output, anchors = attention_op(build, masks, attention, "float_full")
        return Written(output, form_name(attention, "float_full"), anchors, note)


LOWERING = OrtCpu()
