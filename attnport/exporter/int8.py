"""Writes linear layers as integer products, by the ranges that their inputs had on a user's own data.

Weights are int8 with a scale for each output channel, activations uint8 with one scale and zero point, both as
`QuantizeLinear` and `DequantizeLinear`, which ONNX Runtime and OpenVINO compute as integer products. Attention, norms
and sums stay as they are. Two well-known steps keep the numbers: channels with large activations are scaled down, and
their weights up (SmoothQuant, Xiao et al. 2023), and the mean error that rounding weights makes is taken out of the
bias. On MiniLM this is nearer to float32 than the tools that could do it instead: see docs/adr/0021-int8.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.linear import Layer, layers, nodes_of, sizes_of, weight_of
from attnport.exporter.passes.cleanup import clean_up

if TYPE_CHECKING:
    import onnx_ir as ir

PREFIX = "seen/"
KINDS = ("ReduceMin", "ReduceMax", "ReduceMean")
SMOOTHING = 0.75
"""How much of a channel's range goes from activations to weights. On MiniLM the least cosine is 0.942 with 0.5, 0.976
with 0.75 and 0.920 with 0.95; the mean is best at 0.75 too."""
_TINY = 1e-9
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Seen:
    """The input of a layer over all tokens that were run, by channel, each `[K]`."""

    least: Array
    largest: Array
    mean: Array


def observe(model: ir.Model, chosen: Collection[Layer]) -> tuple[str, ...]:
    """Adds, in place, outputs that say what each layer reads: `seen/KIND/NAME` of shape `[K]` for each of `KINDS`.

    Returns:
        The names of the outputs.
    """
    build, added = Builder(model), []
    for layer in chosen:
        value, nodes = nodes_of(model, layer)
        build.before, build.scope = nodes[0], "seen"
        rows = build.op("Reshape", value, build.const([-1, sizes_of(nodes[0])[0]]))
        for kind in KINDS:
            seen = build.op(kind, rows, build.const([0]), keepdims=0)
            seen.name = f"{PREFIX}{kind}/{layer.reads}"
            model.graph.outputs.append(seen)
            added.append(seen.name)
    return tuple(added)


def quantize(model: ir.Model, seen: Mapping[str, Seen], kept: Collection[str] = ()) -> None:
    """Writes every layer in int8, in place, but those whose name is among `kept`.

    Args:
        model: As lowered, in float32.
        seen: What each layer reads, by `Layer.reads`.
    """
    build = Builder(model)
    build.scope = "int8"
    for layer in layers(model):
        if layer.name not in kept:
            _quantize(build, layer, seen[layer.reads])
    clean_up(model)


def _quantize(build: Builder, layer: Layer, seen: Seen) -> None:
    import onnx_ir as ir

    value, nodes = nodes_of(build.model, layer)
    weights = [weight_of(node).astype(np.float64) for node in nodes]
    smooth_K = _smoothing(seen, weights)
    least = min(float((seen.least / smooth_K).min()), 0.0)
    largest = max(float((seen.largest / smooth_K).max()), _TINY)
    step = (largest - least) / 255
    ends = build.const(step, np.float32), build.const(np.clip(round(-least / step), 0, 255), np.uint8)
    build.before = nodes[0]
    smoothed = build.op("Mul", value, build.const(1 / smooth_K, np.float32))
    whole = build.op("QuantizeLinear", smoothed, *ends, dtype=ir.DataType.UINT8)
    read = build.op("DequantizeLinear", whole, *ends, dtype=ir.DataType.FLOAT)
    for node, weight_KN in zip(nodes, weights, strict=True):
        smoothed_KN = weight_KN * smooth_K[:, None]
        step_N = np.maximum(np.abs(smoothed_KN).max(0), _TINY) / 127
        whole_KN = np.clip(np.rint(smoothed_KN / step_N), -127, 127)
        missing_N = (seen.mean / smooth_K) @ (smoothed_KN - whole_KN * step_N)
        build.before = node
        weight = build.op(
            "DequantizeLinear",
            build.const(whole_KN, np.int8),
            build.const(step_N, np.float32),
            build.const(np.zeros(len(step_N)), np.int8),
            dtype=ir.DataType.FLOAT,
            axis=1,
        )
        _replace(build, node, read, weight, missing_N)


def _replace(build: Builder, node: ir.Node, read: ir.Value, weight: ir.Value, missing_N: Array) -> None:
    """Writes a layer's product anew, with its bias corrected by what rounding the weights takes away on average.

    A product without a bias gets none.
    """
    product = build.op("MatMul", read, weight)
    product.shape = node.outputs[0].shape
    if node.op_type == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        known = bias.const_value.numpy() if bias is not None and bias.const_value is not None else 0
        build.replace(node.outputs[0], build.op("Add", product, build.const(known + missing_N, np.float32)))
        return
    uses = tuple(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add":
        bias = uses[0].node.inputs[1 - uses[0].idx]
        if bias is not None and bias.const_value is not None and tuple(bias.const_value.shape) == missing_N.shape:
            corrected = build.const(bias.const_value.numpy() + missing_N, np.float32)
            uses[0].node.replace_input_with(1 - uses[0].idx, corrected)
    build.replace(node.outputs[0], product)


def _smoothing(seen: Seen, weights: list[Array]) -> Array:
    """By how much each channel of the activations is divided, `[K]`, with a geometric mean of 1."""
    activations = np.maximum(np.maximum(-seen.least, seen.largest), _TINY)
    largest = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], axis=0), _TINY)
    factor = activations**SMOOTHING / largest ** (1 - SMOOTHING)
    smooth: Array = factor / np.exp(np.log(factor).mean())
    return smooth
