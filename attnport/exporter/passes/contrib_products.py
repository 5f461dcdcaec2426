"""ONNX Runtime's products of matrices in ONNX's operators: `FusedMatMul`, and `MatMulNBits` with its weight widened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.passes.contrib_parts import attribute, given, rank, summed

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]


def fused_matmul(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """A product of two tensors, of which each may be transposed, or have its first axis behind those of the batch."""
    factors = []
    for value, side in zip(node.inputs[:2], "AB", strict=True):
        assert value is not None
        axes = rank(value)
        turns, moves = attribute(node, f"trans{side}", 0), attribute(node, f"transBatch{side}", 0)
        if (turns or moves) and axes is None:
            return None
        order = list(range(axes or 0))
        order = [*order[1:-1], order[0], order[-1]] if moves else order
        order = [*order[:-2], order[-1], order[-2]] if turns else order
        factors.append(build.op("Transpose", value, name="turned", perm=order) if turns or moves else value)
    found = build.op("MatMul", *factors, name="product")
    alpha = attribute(node, "alpha", 1.0)
    return [found if alpha == 1.0 else build.op("Mul", found, build.like(alpha, found), name="scaled")]


def matmul_n_bits(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """A product by a weight of a few bits, which becomes one of float32; not with blocks in an order of their own."""
    x, weight, scales, zeros, order, bias = (given(node, at) for at in range(6))
    arrays = [None if value is None or value.const_value is None else value.const_value.numpy()
              for value in (weight, scales, zeros)]  # fmt: skip
    if order is not None or arrays[0] is None or arrays[1] is None or (zeros is not None and arrays[2] is None):
        return None
    bits, width = attribute(node, "bits", 4), attribute(node, "K", 0)
    wide = _widened(arrays[0], arrays[1], arrays[2], bits)[:, :width]
    assert weight is not None
    key = "wide", weight, scales, zeros, bits, width
    stored = build.once(key, lambda: build.stored(f"{weight.name}/wide", np.ascontiguousarray(wide.T)))
    return [summed(build, build.op("MatMul", x, stored, name="product"), bias)]


def _widened(weight: Array, scales: Array, zeros: Array | None, bits: int) -> Array:
    """A weight as float32 `[N, blocks * width of one]`, of whole numbers that are packed in bytes."""
    count, blocks = weight.shape[:2]
    middle: Array | float = 2.0 ** (bits - 1)
    if zeros is not None:
        whole = zeros if zeros.dtype.kind == "f" else _whole(zeros.reshape(count, -1), bits)
        middle = whole.reshape(count, -1)[:, :blocks, None].astype(np.float32)
    wide = (_whole(weight, bits).astype(np.float32) - middle) * scales.reshape(count, blocks, 1)
    return wide.reshape(count, -1).astype(np.float32)


def _whole(packed: Array, bits: int) -> Array:
    """Numbers along the last axis, the first of a byte in its lowest bits."""
    parts = [(packed >> low) & (2**bits - 1) for low in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)
