"""OpenVINO: the standard `Attention` operator with the mask broadcast over queries, which its CPU plugin fuses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op, form_name, in_blocks
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.operands import repeated
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.lowering.base import Lowering, Written

if TYPE_CHECKING:
    import onnx_ir as ir


class OpenVino(Lowering):
    """OpenVINO takes a mask `[B,1,1,T]` as it is, so that padding needs no tensor of S x T.

    In bf16 the graph and its inputs and outputs stay float32: a setting makes the CPU plugin compute in bf16.
    """

    name = "openvino"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp32", "bf16")
    proved_by: ClassVar[tuple[str, ...]] = ("openvino",)
    integers: ClassVar[tuple[str, ...]] = ("int8_bf16", "int8", "int4_bf16", "int4")
    real_tokens: ClassVar[bool] = True
    widens: ClassVar[bool] = True

    def graph_plan(self, plan: str) -> str:
        """Always float32."""
        return "fp32"

    def typed(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """As every target, with the head count a number in every `Reshape`, and every digit of `Softplus`.

        With fewer heads of keys than of queries, the plugin repeats keys only where it knows both counts as it loads
        the graph; it fails on the graph where it does not.
        """
        from attnport.exporter.passes.reshapes import number_reshapes
        from attnport.exporter.passes.sizes import infer_sizes
        from attnport.exporter.passes.softplus import write_out_softplus

        infer_sizes(model)
        number_reshapes(model)
        write_out_softplus(model)
        super().typed(model, plan, islands)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`Attention` with a bool mask in its smallest shape, or in blocks."""
        blocks = in_blocks(build, masks, attention, "bool")
        if not isinstance(blocks, str):
            output, anchors, name, local = blocks
            return Written(output, name, anchors, local=local)
        output, anchors = attention_op(build, masks, _with_own_keys(build, attention), "bool")
        return Written(output, form_name(attention, "bool"), anchors, note=blocks and f"not in blocks: {blocks}")


def _with_own_keys(build: Builder, attention: Attention) -> Attention:
    """An attention with as many heads of keys as of queries, unless all queries share one.

    Given fewer, the plugin writes the attention out, and has no kernel that keeps a cache in place; of heads that are
    repeated in the graph, its kernel reads each once (2026.4, found in the types of its runtime model).
    """
    heads, groups = attention.head_counts()
    if attention.k is None or heads is None or groups is None or heads == groups or heads % groups:
        return attention
    return replace(attention, k=repeated(build, attention, attention.k), v=repeated(build, attention, attention.v))


LOWERING = OpenVino()
