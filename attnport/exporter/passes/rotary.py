"""Writes out rotary embeddings whose caches the standard does not allow.

torch's exporter uses the standard's operator with caches of `[1,S,D/2]`, but the standard requires `[B,S,D/2]`: ONNX
Runtime refuses such a graph at run time, TensorRT when it parses it. Written out, the caches broadcast, every opset has
the operators, and the attention after them still fuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder

if TYPE_CHECKING:
    import onnx_ir as ir


def write_out(model: ir.Model) -> int:
    """Replaces every `RotaryEmbedding` on `[B,H,S,D]` whose caches may have another batch than x; returns how many.

    Source: the definition of RotaryEmbedding in the ONNX standard, opset 23: the halves (or, interleaved, the pairs) of
    x are rotated by the angle of each position.
    """
    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "RotaryEmbedding" and node.domain == ""]:
        if not _has_refused_caches(node):
            continue
        build.before, build.scope = node, node.name or "rotary"
        build.replace(node.outputs[0], _rotated(build, node))
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _has_refused_caches(node: ir.Node) -> bool:
    x, cosines = node.inputs[0], node.inputs[1]
    if x is None or cosines is None or x.shape is None or len(x.shape) != 4:
        return False
    depth = x.shape[3]
    part = node.attributes["rotary_embedding_dim"].as_int() if "rotary_embedding_dim" in node.attributes else 0
    with_positions = len(node.inputs) > 3 and node.inputs[3] is not None
    if not isinstance(depth, int) or depth % 2 or part not in (0, depth) or with_positions:
        return False
    return cosines.shape is None or len(cosines.shape) != 3 or cosines.shape[0] != x.shape[0]


def _rotated(build: Builder, node: ir.Node) -> ir.Value:
    import onnx_ir as ir

    x, cosines, sines = node.inputs[:3]
    assert x is not None
    assert x.shape is not None
    half = int(str(x.shape[3])) // 2
    interleaved = "interleaved" in node.attributes and node.attributes["interleaved"].as_int() == 1
    axis = build.const([1], np.int64)
    cos = build.op("Unsqueeze", cosines, axis, name="cos")
    sin = build.op("Unsqueeze", sines, axis, name="sin")
    first, second = _parts(build, x, half, interleaved)
    turned = [
        build.op("Sub", build.op("Mul", first, cos), build.op("Mul", second, sin), name="first"),
        build.op("Add", build.op("Mul", second, cos), build.op("Mul", first, sin), name="second"),
    ]
    if not interleaved:
        return build.op("Concat", *turned, name="rotated", axis=-1)
    pairs = [build.op("Unsqueeze", part, build.const([-1], np.int64), name="pair") for part in turned]
    stacked = build.op("Concat", *pairs, name="pairs", axis=-1)
    return build.op("Reshape", stacked, build.op("Shape", x, name="shape", dtype=ir.DataType.INT64), name="rotated")


def _parts(build: Builder, x: ir.Value, half: int, interleaved: bool) -> tuple[ir.Value, ir.Value]:
    """The two numbers of each rotated pair: the halves of the last axis, or its even and odd places."""
    axis = build.const([-1], np.int64)
    starts, ends, step = ((0, 1), (2 * half, 2 * half), 2) if interleaved else ((0, half), (half, 2 * half), 1)
    first, second = (
        build.op("Slice", x, *(build.const([n], np.int64) for n in (start, end)), axis, build.const([step], np.int64))
        for start, end in zip(starts, ends, strict=True)
    )
    return first, second
