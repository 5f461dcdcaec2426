"""ONNX Runtime on CUDA: its own operators, whose kernels choose flash or memory-efficient attention at run time."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.contrib.group_query import group_query_attention, why_not_group_query
from attnport.exporter.contrib.layers import with_skip
from attnport.exporter.contrib.multi_head import (
    can_fold,
    folded_attention,
    multi_head_attention,
    one_product,
    why_not_multi_head,
)
from attnport.exporter.contrib.parts import guarded
from attnport.exporter.forms.attention_op import attention_op, form_name
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.lowering.base import Lowering, Written

if TYPE_CHECKING:
    import onnx_ir as ir


class CudaMaskWriter(MaskWriter):
    """Counts keys in float32: of integers and of maxima, reductions on CUDA are many times as slow."""

    counting: ClassVar[tuple[str, str]] = ("FLOAT", "ReduceSum")


class OrtCuda(Lowering):
    """The form for which ONNX Runtime chooses one kernel, as measured on an H200 with 1.31.1 (docs/gpu.md).

    In fp16 and bf16, `GroupQueryAttention` and `MultiHeadAttention` run as cuDNN's flash attention, with a bias too, at
    every length that was tried. The standard's `Attention` runs as flash attention without a mask, and with one as
    memory-efficient attention, or as several kernels where T is no multiple of 4. In fp32, for which
    `GroupQueryAttention` has no kernel (OperatorKernels.md), the others run as memory-efficient attention, but a single
    query of `MultiHeadAttention` as several kernels. Half precision is the default for that reason.

    In a row without an allowed key, some of these kernels give the mean of v and others NaN: each form sets it to zero.
    """

    name = "ort_cuda"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cuda",)

    def mask_writer(self, build: Builder) -> MaskWriter:
        """A writer whose reductions are quick on CUDA."""
        return CudaMaskWriter(build)

    def typed(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """As for any target, with sizes kept on the host, and with operators that one kernel computes."""
        from attnport.exporter.passes.cleanup import clean_up
        from attnport.exporter.passes.host_sizes import keep_sizes_on_host
        from attnport.exporter.passes.rotary_operator import as_operator

        keep_sizes_on_host(model)
        super().typed(model, plan, islands)
        as_operator(model)
        with_skip(model)
        clean_up(model)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`GroupQueryAttention` if it computes exactly this mask, else `MultiHeadAttention`, else the standard's."""
        if plan != "fp32" and not why_not_group_query(attention):
            output, anchors = group_query_attention(build, masks, attention)
            return Written(output, "GroupQueryAttention", anchors)
        reason = why_not_multi_head(attention)
        if not reason and can_fold(attention):
            output, anchors = folded_attention(build, masks, attention)
            return Written(output, "MultiHeadAttention, query heads folded", anchors)
        if not reason:
            packed = None if plan == "fp32" else one_product(build, attention)
            output, anchors = multi_head_attention(build, masks, attention, key_column=False, packed=packed)
            return Written(output, "MultiHeadAttention", anchors)
        output, anchors = attention_op(build, masks, attention, "bool_full")
        output = guarded(build, masks, attention, output)
        return Written(output, f"{form_name(attention, 'bool_full')} ({reason})", anchors)


LOWERING = OrtCuda()
