"""q, k and v of a self-attention by one matrix product, packed as `MultiHeadAttention` of ONNX Runtime takes them.

Three products and three additions become one product, and the operator adds the biases. On an H200, BERT base in fp16
takes 0.82 of the time at 1 x 128 and 0.96 at 8 x 512 (docs/gpu.md). Its kernels on CPU do not take packed q, k and v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.moves import dims_of, known_size

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class _Projection:
    """`source @ weight + bias`, `[B,S,H*D]`: a weight of `[K,H*D]` and a bias of `[H*D]`, or none."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def one_product(build: Builder, attention: Attention) -> tuple[ir.Value, ir.Value | None] | None:
    """q, k and v as `[B,S,H,3,D]` without their biases, and the biases, `[3*H*D]`.

    None where they are not three linear layers of one value with constant weights and as many heads.
    """
    heads, key_heads = attention.head_counts()
    if heads is None or heads != key_heads or attention.k is None:
        return None
    values = attention.q, attention.k, attention.v
    depths = {known_size(value, 3) for value in values}
    found = [_projection(value) for value in values]
    parts = [part for part in found if part is not None]
    if len(parts) < 3 or len({part.source for part in parts}) > 1 or len(depths) > 1:
        return None
    depth = depths.pop()
    assert isinstance(depth, int)
    key = heads, *((part.weight, part.bias) for part in parts)

    def weight() -> ir.Value:
        each = [_array(part.weight).reshape(-1, heads, depth) for part in parts]
        return build.stored("qkv/weight", np.stack(each, axis=2).reshape(len(each[0]), -1))

    def bias() -> ir.Value:
        dtype = _array(parts[0].weight).dtype
        each = [np.zeros(heads * depth, dtype) if part.bias is None else _array(part.bias) for part in parts]
        return build.stored("qkv/bias", np.concatenate(each))

    product = build.op("MatMul", parts[0].source, build.once(("weight of q, k and v", *key), weight), name="qkv")
    packed = build.op("Reshape", product, build.const([0, 0, heads, 3, depth], np.int64), name="qkv_BSH3D")
    if all(part.bias is None for part in parts):
        return packed, None
    return packed, build.once(("bias of q, k and v", *key), bias)


def _projection(value: ir.Value) -> _Projection | None:
    """The linear layer whose outputs, split into heads, are a value `[B,H,S,D]`; None if it is another value."""
    transpose = value.producer()
    if transpose is None or transpose.op_type != "Transpose" or transpose.inputs[0] is None:
        return None
    reshape = transpose.inputs[0].producer()
    perm = transpose.attributes["perm"].as_ints() if "perm" in transpose.attributes else ()
    if list(perm) != [0, 2, 1, 3] or reshape is None or reshape.op_type != "Reshape":
        return None
    linear, apart = reshape.inputs[0], reshape.outputs[0]
    before, after = dims_of(linear), dims_of(apart)
    if linear is None or before is None or after is None or len(before) != 3 or None in (*before, *after):
        return None
    batch, length, width = before
    heads, depth = after[2:]
    if after[:2] != [batch, length] or not isinstance(heads, int) or not isinstance(depth, int):
        return None
    if width != heads * depth or linear.is_graph_output() or len(linear.uses()) > 1:
        return None
    return _linear_layer(linear, heads * depth)


def _linear_layer(value: ir.Value, width: int) -> _Projection | None:
    """A value as `MatMul`, with or without an `Add` behind it, by constants; None if it is another value."""
    node, bias = value.producer(), None
    if node is not None and node.op_type == "Add":
        biases = [given for given in node.inputs if _is_constant(given, [width])]
        products = [given for given in node.inputs if given not in biases]
        if len(biases) != 1 or products[0] is None:
            return None
        bias, node = biases[0], products[0].producer()
    if node is None or node.op_type != "MatMul" or node.domain:
        return None
    source, weight = node.inputs
    if source is None or weight is None or source.shape is None or len(source.shape) != 3:
        return None
    return _Projection(source, weight, bias) if _is_constant(weight, [known_size(source, 2), width]) else None


def _is_constant(value: ir.Value | None, shape: list[int | str | None]) -> bool:
    return value is not None and value.const_value is not None and dims_of(value) == shape


def _array(value: ir.Value) -> np.ndarray[Any, Any]:
    assert value.const_value is not None
    return value.const_value.numpy()
