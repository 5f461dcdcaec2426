"""TensorRT (data centre): strongly typed, half precision around attention, the leanest spelling for each mask."""

from __future__ import annotations

from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op
from attnport.exporter.forms.decomposed import decomposed
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.formula import axes_of
from attnport.exporter.fusion.mask import Mask
from attnport.exporter.lowering.base import Lowering, Written


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
        query_heads, key_heads = attention.head_counts()
        if plan != "fp32" and (query_heads != key_heads or _leanest_as_operator(attention.mask)):
            output, anchors = attention_op(build, masks, attention, "bool", compute=islands)
            return Written(output, "Attention", anchors, note)
        output, anchors = decomposed(build, masks, attention, spelling="tiled", compute=islands)
        return Written(output, "MatMul, Where(-inf), Softmax, MatMul", anchors, note)


def _leanest_as_operator(mask: Mask) -> bool:
    by_key_alone = all(axes_of(factor.keep) <= {"b", "j"} for factor in mask.factors)
    return not mask.biases and (by_key_alone or mask.is_causal_only)


LOWERING = TensorRt()
