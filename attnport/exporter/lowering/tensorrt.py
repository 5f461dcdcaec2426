"""TensorRT (data centre): strongly typed, half precision around attention, the leanest spelling for each mask."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op
from attnport.exporter.forms.decomposed import decomposed
from attnport.exporter.forms.depth import head_dims, narrowed, widened
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.formula import axes_of
from attnport.exporter.fusion.mask import Mask
from attnport.exporter.lowering.base import Lowering, Written

LEAST_DEPTH = 16
"""The smallest head dim with a fused kernel; at 8 the operator does not build and products are not fused (measured)."""


class TensorRt(Lowering):
    """Fused kernels exist in half precision only, so fp32 models get it as islands around attention."""

    name = "tensorrt"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp16_islands", "bf16_islands", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("engine",)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """The `Attention` operator for no mask, padding or causal alone; products with one `Where` otherwise.

        Measured as scratch memory at T=4096: with a padding mask of `[B,1,1,T]` the operator takes 0.89 of the `Where`
        form's, with the same run-time map of tiles; a mask that depends on queries and keys it writes out whole.
        """
        import onnx_ir as ir

        islands = {"fp16_islands": ir.DataType.FLOAT16, "bf16_islands": ir.DataType.BFLOAT16}.get(plan)
        note = "fp32 attention has no fused kernel; use fp16, bf16 or their islands" if plan == "fp32" else ""
        depth, value_depth = head_dims(attention)
        if plan != "fp32" and depth is not None and depth == value_depth and depth < LEAST_DEPTH:
            wide = self.write(build, masks, widened(build, attention, LEAST_DEPTH), plan)
            narrow = narrowed(build, wide.output, depth)
            return replace(wide, output=narrow, form=f"{wide.form}, head dim {depth} padded to {LEAST_DEPTH}")
        query_heads, key_heads = attention.head_counts()
        # Of one head the builder takes the operator without a mask only: with one it refuses or crashes (1.7.1).
        takes_mask = query_heads != 1 or not attention.mask.factors or attention.mask.is_causal_only
        lean = _leanest_as_operator(attention.mask) and takes_mask
        if plan != "fp32" and (query_heads != key_heads or lean):
            output, anchors = attention_op(build, masks, attention, "bool", compute=islands)
            return Written(output, "Attention", anchors, note)
        output, anchors = decomposed(build, masks, attention, spelling="tiled", compute=islands)
        return Written(output, "MatMul, Where(-inf), Softmax, MatMul", anchors, note)


def _leanest_as_operator(mask: Mask) -> bool:
    by_key_alone = all(axes_of(factor.keep) <= {"b", "j"} for factor in mask.factors)
    return not mask.biases and (by_key_alone or mask.is_causal_only)


LOWERING = TensorRt()
