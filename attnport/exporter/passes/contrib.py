"""Writes out ONNX Runtime's own operators in ONNX's, so that every runtime has them and recognition reads attention.

What cannot be written out is left as it is. Source: ONNX Runtime's documentation of contrib operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.moves import known_size
from attnport.exporter.passes.contrib_groups import grouped
from attnport.exporter.passes.contrib_heads import multi_head, packed
from attnport.exporter.passes.contrib_parts import attribute, given, places, rank, summed
from attnport.exporter.passes.contrib_products import fused_matmul, matmul_n_bits
from attnport.exporter.passes.sizes import settle_sizes

if TYPE_CHECKING:
    import onnx_ir as ir

DOMAIN = "com.microsoft"
Writer = Callable[[Builder, "ir.Node"], "list[ir.Value | None] | None"]
"""Builds what replaces a node's outputs; None in place of one that nobody reads, or of them all: it cannot."""


def write_out_contrib(model: ir.Model) -> int:
    """Replaces the operators that have a form in ONNX's own; returns how many.

    Args:
        model: At the opset of exports, without functions of its own.
    """
    import onnx_ir as ir

    if not any(node.domain == DOMAIN for node in model.graph):
        return 0
    settle_sizes(model)
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        writer = _WRITERS.get(node.op_type) if node.domain == DOMAIN else None
        if writer is None:
            continue
        build.before, build.scope = node, node.name or node.op_type
        for value in node.inputs:
            if value is not None and value.dtype is None:
                value.dtype = ir.DataType.FLOAT  # inference stops at operators that are not ONNX's
        made = writer(build, node)
        if made is None or any(out.uses() or out.is_graph_output() for out, new in _pairs(node, made) if new is None):
            continue
        for out, new in _pairs(node, made):
            if new is not None:
                build.replace(out, new)
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _pairs(node: ir.Node, made: list[ir.Value | None]) -> list[tuple[ir.Value, ir.Value | None]]:
    return list(zip(node.outputs, [*made, *[None] * len(node.outputs)], strict=False))


def _skip_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = summed(build, node.inputs[0], node.inputs[1], given(node, 4))
    norm = build.op("LayerNormalization", total, node.inputs[2], given(node, 3), name="norm", axis=-1,
                    epsilon=attribute(node, "epsilon", 1e-12))  # fmt: skip
    return [norm, None, None, total]


def _skip_rms_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = summed(build, node.inputs[0], node.inputs[1], given(node, 3))
    epsilon = attribute(node, "epsilon", 1e-12)
    return [build.op("RMSNormalization", total, node.inputs[2], name="norm", axis=-1, epsilon=epsilon), None, None,
            total]  # fmt: skip


def _rms_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    return [build.op("RMSNormalization", *node.inputs[:2], name="norm", axis=attribute(node, "axis", -1),
                     epsilon=attribute(node, "epsilon", 1e-5))]  # fmt: skip


def _embed_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    ids, segments, words, spots, kinds, scale, bias = node.inputs[:7]
    assert ids is not None
    assert words is not None
    positions = given(node, 8)
    if positions is None:
        positions = places(build, build.size(ids, 1))
    rows = [build.op("Gather", table, at, name="rows", dtype=words.dtype, axis=0)
            for table, at in ((words, ids), (spots, positions), (kinds, segments)) if at is not None]  # fmt: skip
    total = summed(build, rows[0], *rows[1:])
    norm = build.op("LayerNormalization", total, scale, bias, name="norm", axis=-1,
                    epsilon=attribute(node, "epsilon", 1e-12))  # fmt: skip
    mask = given(node, 7)
    if mask is None:
        return [norm, None, total]
    count = build.op("ReduceSum", mask, build.const([1], np.int64), name="lengths", keepdims=0)
    return [norm, count, total]


def _gelu(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = summed(build, node.inputs[0], given(node, 1))
    approximate = "tanh" if node.op_type == "FastGelu" else "none"
    return [build.op("Gelu", total, name="gelu", approximate=approximate)]


def _quick_gelu(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x = node.inputs[0]
    assert x is not None
    scaled = build.op("Mul", x, build.like(attribute(node, "alpha", 1.702), x), name="scaled")
    return [build.op("Mul", x, build.op("Sigmoid", scaled, name="gate"), name="gelu")]


def _rotary(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x, positions, cos, sin = node.inputs[:4]
    if x is None or positions is None or cos is None or attribute(node, "is_packed_batching", 0):
        return None
    attributes = {name: attribute(node, name, 0) for name in ("interleaved", "num_heads", "rotary_embedding_dim")}
    axes, width, half = rank(x), known_size(x, 2), known_size(cos, 1)
    if axes == 3 and not attributes["num_heads"]:
        if not isinstance(width, int) or not isinstance(half, int):
            return None
        attributes["num_heads"] = width // (2 * half)
    if rank(positions) == 1 and axes is not None:  # the position of the first token
        every = build.op("Add", positions, places(build, build.size(x, axes - 2)), name="positions")
        rows = build.op("Concat", build.size(x, 0), build.size(x, axes - 2), name="rows", axis=0)
        positions = build.op("Expand", every, rows, name="positions_of_rows", dtype=every.dtype)
    if rank(positions) != 2 and positions.shape is not None:
        return None
    return [build.op("RotaryEmbedding", x, cos, sin, positions, name="rotated", **attributes)]


_WRITERS: dict[str, Writer] = {
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "EmbedLayerNormalization": _embed_norm,
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": fused_matmul,
    "RotaryEmbedding": _rotary,
    "MatMulNBits": matmul_n_bits,
    "MultiHeadAttention": multi_head,
    "Attention": packed,
    "GroupQueryAttention": grouped,
}
