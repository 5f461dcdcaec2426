"""TensorRT (data centre): strongly typed, half precision around attention, the leanest spelling for each mask."""

from __future__ import annotations

from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op
from attnport.exporter.forms.decomposed import decomposed
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.lowering.base import Lowering, Written


class TensorRt(Lowering):
    """Fused kernels exist in half precision only, so fp32 models get it as islands around attention."""

    name = "tensorrt"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp16_islands", "bf16_islands", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("engine",)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """The `Attention` operator without a mask or with the causal one alone, products with one `Where` otherwise."""
        import onnx_ir as ir

        islands = {"fp16_islands": ir.DataType.FLOAT16, "bf16_islands": ir.DataType.BFLOAT16}.get(plan)
        note = "fp32 attention has no fused kernel; use fp16, bf16 or their islands" if plan == "fp32" else ""
        plain = not attention.mask.biases and (not attention.mask.factors or attention.mask.is_causal_only)
        query_heads, key_heads = attention.head_counts()
        if (plain or query_heads != key_heads) and islands is None and plan != "fp32":
            output, anchors = attention_op(build, masks, attention, "bool")
            return Written(output, "Attention", anchors, note)
        output, anchors = decomposed(build, masks, attention, compute=islands)
        return Written(output, "MatMul, Where(-inf), Softmax, MatMul", anchors, note)


LOWERING = TensorRt()
