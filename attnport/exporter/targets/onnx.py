"""The portable form: one standard `Attention` operator each, with its mask at full size for every runtime."""

from __future__ import annotations

from typing import ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.forms.standard import attention_op, form_name
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.targets.base import Lowering, Written


class Onnx(Lowering):
    """Opset 23, nothing outside the standard."""

    name = "onnx"
    opset = 23
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cpu",)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`Attention` with a bool mask `[B,1,S,T]` (ONNX Runtime's kernel does not broadcast the S axis)."""
        output, anchors = attention_op(build, masks, attention, "bool_full")
        return Written(output, form_name(attention, "bool_full"), anchors)


LOWERING = Onnx()
