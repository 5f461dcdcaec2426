"""The form for older consumers: opset 18, attention written out, guarded against rows with no allowed key."""

from __future__ import annotations

from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.forms.standard import decomposed
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.targets.base import Lowering, Written


class Onnx18(Lowering):
    """Opset 18, which has no attention operator; a runtime may still fuse the pattern, as OpenVINO does."""

    name = "onnx_18"
    opset = 18
    proved_by: ClassVar[tuple[str, ...]] = ("openvino",)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """Products, `Where` and a softmax; a row with no allowed key is set to zero after the product with v."""
        output, anchors = decomposed(build, masks, attention)
        return Written(output, "MatMul, Where, Softmax, MatMul", anchors)


LOWERING = Onnx18()
