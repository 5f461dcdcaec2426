"""OpenVINO: the standard `Attention` operator with the mask broadcast over queries, which its CPU plugin fuses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.contrib.parts import places, seen, unsqueezed
from attnport.exporter.forms.operands import MaskWriter, repeated, scaled
from attnport.exporter.forms.standard import attention_op, form_name, in_blocks
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.graph.sizes import infer_sizes
from attnport.exporter.targets.base import Lowering, Written
from attnport.onnx_graph import attribute, ir, is_constant, known_size, perm_of, rank_of, scalar


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
        """As every target, with the head count a number in every `Reshape`, and operators written out.

        With fewer heads of keys than of queries, the plugin repeats keys only where it knows both counts as it loads
        the graph; it fails on the graph where it does not.
        """
        infer_sizes(model)
        _number_reshapes(model)
        mask_any_number_of_keys(model)
        scale_behind_transposes(model)
        write_out_soft_caps(model)
        write_out_softplus(model)
        write_out_antialias(model)
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


def _number_reshapes(model: ir.Model) -> None:
    """Writes the number in place of -1 in targets of `Reshape` such as `Concat(batch, seq, -1, 16)`, where it is known.

    A runtime that does not know batch and seq when it loads a graph finds no number for -1 either, so that it knows no
    head count. Shapes are those that `infer_sizes` wrote.
    """
    build = Builder(model)
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
            if scalar(part) == -1 and isinstance(size, int)
        ]
        if not known:
            continue
        for at in known:
            parts[at] = build.const(np.array([shape[at]], np.int64))
        build.before, build.scope = node, str(node.name)
        node.replace_input_with(1, build.op("Concat", *parts, name="target", axis=0))


def mask_any_number_of_keys(model: ir.Model) -> None:
    """Gives attention without a mask one of zeros, as long as its keys, unless the graph says how many keys there are.

    The plugin compiles products around a softmax as one kernel. Without a second operand as long as the keys, that
    kernel is wrong at 16 keys and more once it has run with one: it leaves out the sum of the softmax (2026.4).
    """
    build = Builder(model)

    def zeros(keys: ir.Value, axis: int) -> ir.Value:
        return build.op("ConstantOfShape", build.size(keys, axis), name="any_key", dtype=ir.DataType.FLOAT)

    for node in list(model.graph):
        build.before, build.scope = node, str(node.name)
        if node.op_type == "Softmax" and (scores := node.inputs[0]) is not None and _is_bare(scores):
            last = len(scores.shape or ()) - 1
            node.replace_input_with(0, build.op("Add", scores, zeros(scores, last), name="scores", dtype=scores.dtype))
        if node.op_type != "Attention" or node.domain or attribute(node, "is_causal", 0):
            continue
        k, mask = node.inputs[1], node.inputs[3] if len(node.inputs) > 3 else None
        if mask is None and k is not None and rank_of(k) == 4 and not isinstance(known_size(k, 2), int):
            node.resize_inputs(max(4, len(node.inputs)))
            row = build.op("Unsqueeze", zeros(k, 2), build.const([0], np.int64), name="any_row")
            node.replace_input_with(3, build.cast(row, k.dtype or ir.DataType.FLOAT))


def _is_bare(scores: ir.Value) -> bool:
    """Whether scores `[...,S,T]` of floats are a product that only constants and functions of one number changed."""
    if (
        scores.dtype != ir.DataType.FLOAT
        or not rank_of(scores)
        or isinstance(known_size(scores, (rank_of(scores) or 1) - 1), int)
    ):
        return False
    at: ir.Value | None = scores
    while (node := at.producer() if at is not None else None) is not None and node.op_type != "MatMul":
        changing = [value for value in node.inputs if value is not None and not is_constant(value)]
        at = changing[0] if len(changing) == 1 and len(node.outputs) == 1 else None
    return node is not None


def scale_behind_transposes(model: ir.Model) -> None:
    """Scales q after the transpose of its last two axes, where the module scales it before, as YOLO's attention.

    The plugin takes such a transpose into the product with k where it stands right before it, and then has no kernel
    for the attention (2026.4).
    """
    build = Builder(model)
    for node in list(model.graph):
        q = node.inputs[0] if node.op_type == "Attention" and not node.domain else None
        turned = q.producer() if q is not None else None
        if q is None or turned is None or turned.op_type != "Transpose" or perm_of(turned, 4)[2:] != [3, 2]:
            continue
        product = turned.inputs[0].producer() if turned.inputs[0] is not None else None
        if product is None or product.op_type != "Mul":
            continue
        numbers = [value for value in product.inputs if scalar(value) is not None]
        others = [value for value in product.inputs if scalar(value) is None]
        if len(numbers) == len(others) == 1:
            build.before, build.scope = node, str(node.name)
            bare = build.op("Transpose", others[0], name="q_turned", dtype=q.dtype, perm=perm_of(turned, 4))
            node.replace_input_with(0, build.op("Mul", bare, numbers[0], name="q_scaled", dtype=q.dtype))


def write_out_soft_caps(model: ir.Model) -> int:
    """Replaces `Attention` with a soft-cap by products, `Tanh` and a softmax, which the plugin computes in one kernel.

    It writes the operator out itself, with a scale that it computes from sizes, and then fuses nothing (2026.4). The
    product with v has the operator's name. The cap's division is part of the scale of q, as the plugin would else take
    it for a part of the product of q and k, whose name is then lost.

    Returns:
        How many were replaced.
    """
    build, count = Builder(model), 0
    for node in list(model.graph):
        cap = float(attribute(node, "softcap", 0.0)) if node.op_type == "Attention" and not node.domain else 0.0
        scale = attribute(node, "scale", None)
        more = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        if not cap or scale is None or len(node.inputs) > 4 or more:
            continue
        q, k, v, mask = (*node.inputs, None)[:4]
        if q is None or k is None or rank_of(q) != 4 or (mask is not None and attribute(node, "is_causal", 0)):
            continue  # of a graph made elsewhere
        if known_size(k, 1) is None or known_size(q, 1) != known_size(k, 1) != 1:
            continue  # grouped heads in a number that the graph does not say
        build.before, build.scope, name = node, str(node.name), node.name
        turned = build.op("Transpose", k, name="k_transposed", perm=[0, 1, 3, 2])
        scores = build.op("MatMul", scaled(build, q, scale / cap), turned, name="qk")
        scores = build.op("Mul", build.op("Tanh", scores, name="softcap_tanh"), build.like(cap, q), name="softcap")
        if attribute(node, "is_causal", 0):
            own = unsqueezed(build, places(build, build.size(q, 2)), 1)
            mask = seen(build, own, places(build, build.size(k, 2)), -1)
        if mask is not None and mask.dtype == ir.DataType.BOOL:
            scores = build.op("Where", mask, scores, build.like(-np.inf, q), name="mask", dtype=q.dtype)
        elif mask is not None:
            scores = build.op("Add", scores, mask, name="mask")
        node.name = f"{name}/replaced"
        output = build.op("MatMul", build.op("Softmax", scores, name="softmax", axis=-1), v)
        product = output.producer()
        assert product is not None
        product.name = name
        if mask is not None:  # a row with no allowed key gives zero
            output = build.without_nan(output)
        build.replace(node.outputs[0], output)
        model.graph.remove(node, safe=True)
        count += 1
    return count


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


def write_out_antialias(model: ir.Model) -> None:
    """Replaces a `Resize` of pictures with `antialias`, as PyTorch's `interpolate` is exported, by two products.

    The plugin computes them as if `antialias` and `exclude_outside` were not there (2026.4): a smaller picture is off
    by half of its values. Along each axis, a new pixel is the mean of the old ones, with weights by their distance.
    """
    build = Builder(model)
    for node in list(model.graph):
        if node.op_type != "Resize" or node.domain or len(node.inputs) < 4 or not attribute(node, "antialias", 0):
            continue
        x, sizes, mode = node.inputs[0], node.inputs[3], str(attribute(node, "mode", ""))
        halves = str(attribute(node, "coordinate_transformation_mode", "half_pixel")).endswith("half_pixel")
        plain = attribute(node, "exclude_outside", 0) and "axes" not in node.attributes
        plain = plain and attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
        if x is None or x.dtype != ir.DataType.FLOAT or rank_of(x) != 4 or sizes is None or not (halves and plain):
            continue
        build.before, build.scope = node, str(node.name)
        kernel = partial(_cubic, build, float(attribute(node, "cubic_coeff_a", -0.75))) if mode == "cubic" else None
        rows, columns = (_weights(build, x, sizes, axis, kernel or partial(_linear, build)) for axis in (2, 3))
        columns = build.op("Transpose", columns, name="columns", perm=[1, 0])
        build.replace(node.outputs[0], build.op("MatMul", build.op("MatMul", rows, x, name="down"), columns))
        model.graph.remove(node, safe=True)


def _weights(
    build: Builder, x: ir.Value, sizes: ir.Value, axis: int, kernel: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """What each new place along an axis, a row, takes of each old one, a column."""
    op, at = build.op, build.const([axis], np.int64)
    one, half = build.const([1.0], np.float32), build.const(0.5, np.float32)
    old = build.cast(build.size(x, axis), ir.DataType.FLOAT)
    new = build.cast(op("Gather", sizes, at, axis=0, name="new"), ir.DataType.FLOAT)
    step = op("Div", old, new, name="step")

    def middles(count: ir.Value, along: int) -> ir.Value:
        """The middle of each place."""
        zero, end = build.const(0.0, np.float32), op("Squeeze", count, name="count")
        places = op("Range", zero, end, build.const(1.0, np.float32), name="places")
        return op("Add", op("Unsqueeze", places, build.const([along], np.int64)), half, name="middles")

    apart = op("Sub", op("Mul", middles(new, 1), step), middles(old, 0), name="apart")
    weights = kernel(op("Div", op("Abs", apart), op("Max", step, one, name="wide"), name="distance"))
    return op("Div", weights, op("ReduceSum", weights, build.const([1], np.int64), keepdims=1), name="weights")


def _linear(build: Builder, distance: ir.Value) -> ir.Value:
    return build.op("Relu", build.op("Sub", build.const(1.0, np.float32), distance), name="linear")


def _cubic(build: Builder, a: float, distance: ir.Value) -> ir.Value:
    """The weight at a distance: one polynomial up to 1, whose value there is 0, and one from 1 to 2, where it is 0."""
    op = build.op
    one, two = build.const(1.0, np.float32), build.const(2.0, np.float32)
    near, far = op("Min", distance, one, name="near"), op("Clip", distance, one, two, name="far")

    def polynomial(at: ir.Value, *factors: float) -> ir.Value:
        total = build.const(factors[0], np.float32)
        for factor in factors[1:]:
            total = op("Add", op("Mul", at, total), build.const(factor, np.float32), name="cubic")
        return total

    return op("Add", polynomial(near, a + 2, -a - 3, 0, 1), polynomial(far, a, -5 * a, 8 * a, -4 * a), name="cubic")


LOWERING = OpenVino()
