"""OpenVINO: the standard `Attention` operator with the mask broadcast over queries, which its CPU plugin fuses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import MaskWriter, repeated
from attnport.exporter.forms.standard import attention_op, form_name, in_blocks
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.graph.sizes import infer_sizes
from attnport.exporter.targets.base import Lowering, Written
from attnport.onnx_graph import ir


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

    def finish(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """As every target, with the head count a number in every `Reshape`, and every digit of `Softplus`.

        With fewer heads of keys than of queries, the plugin repeats keys only where it knows both counts as it loads
        the graph; it fails on the graph where it does not.
        """
        infer_sizes(model)
        _number_reshapes(model)
        write_out_softplus(model)
        super().finish(model, plan, islands)

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


def _number_reshapes(model: ir.Model) -> int:
    """Writes the number in place of -1 in targets of `Reshape` such as `Concat(batch, seq, -1, 16)`, where it is known.

    A runtime that does not know batch and seq when it loads a graph finds no number for -1 either, so that it knows no
    head count. Shapes are those that `infer_sizes` wrote.

    Returns how many targets changed.
    """
    build, changed = Builder(model), 0
    for node in list(model.graph):
        target = node.inputs[1] if node.op_type == "Reshape" and len(node.inputs) > 1 else None
        made = target.producer() if target is not None else None
        shape = node.outputs[0].shape
        if made is None or made.op_type != "Concat" or shape is None or len(made.inputs) != len(shape):
            continue
        parts = list(made.inputs)
        known = [
            at
            for at, (part, size) in enumerate(zip(parts, shape, strict=True))
            if _is_open(part) and isinstance(size, int)
        ]
        if not known:
            continue
        for at in known:
            parts[at] = build.const(np.array([shape[at]], np.int64))
        build.before, build.scope = node, str(node.name)
        node.replace_input_with(1, build.op("Concat", *parts, name="target", axis=0))
        changed += 1
    return changed


def _is_open(part: ir.Value | None) -> bool:
    """Whether a part of a target is the constant -1."""
    tensor = None if part is None else part.const_value
    return tensor is not None and tensor.size == 1 and int(tensor.numpy().reshape(-1)[0]) == -1


def write_out_softplus(model: ir.Model) -> int:
    """Replaces `Softplus(x)` by `Relu(x) + log1p(exp(-|x|))`.

    A kernel that computes `log(1 + exp(x))` as it stands loses the digits of a small `exp(x)` in the sum: that of
    OpenVINO 2026.4 is off by more than 1e-3 of the result at x = -12, where the steps of state spaces are. There is no
    operator for log1p; `log(u) z / (u - 1)` with `u = 1 + z` is as exact (Kahan, HP-15C Advanced Functions Handbook,
    1982). The sum is written as `z - (-1)`, as OpenVINO takes `log(z + 1)` for a `Softplus` again.

    Returns how many were replaced.
    """
    build, count = Builder(model), 0
    for node in list(model.graph):
        x, old = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Softplus" or node.domain or x is None or old.dtype != ir.DataType.FLOAT:
            continue
        x.dtype = old.dtype
        build.before, build.scope = node, str(node.name)
        minus_one = build.like(-1.0, x)
        z = build.op("Exp", build.op("Neg", build.op("Abs", x)))
        u = build.op("Sub", z, minus_one)
        rest = build.op("Add", u, minus_one)
        none = build.op("Equal", rest, build.like(0.0, x), dtype=ir.DataType.BOOL)
        log1p = build.op("Where", none, z, build.op("Div", build.op("Mul", build.op("Log", u), z), rest), dtype=x.dtype)
        build.replace(old, build.op("Add", build.op("Relu", x), log1p))
        model.graph.remove(node, safe=True)
        count += 1
    return count


LOWERING = OpenVino()
