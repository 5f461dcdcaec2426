"""Graphs of one of ONNX Runtime's own operators, with inputs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]
B, T, S, E, H, D, G = 2, 5, 7, 48, 3, 16, 1


@dataclass(frozen=True)
class Node:
    """An operator, its inputs in order (None = left out), its attributes, the outputs that are asked for,
    and how many it has at least.

    `lengths` are the rows of the first output that mean something: those of padding are whatever a kernel leaves there.
    """

    operator: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    least: int = 1
    domain: str = "com.microsoft"
    lengths: tuple[int, ...] = ()

    @property
    def feeds(self) -> dict[str, Array]:
        """By name, the inputs that are given."""
        return {f"in{at}": array for at, array in enumerate(self.inputs) if array is not None}

    def model(self, opset: int = 17) -> onnx.ModelProto:
        """The graph."""
        names = ["" if array is None else f"in{at}" for at, array in enumerate(self.inputs)]
        given = [
            onnx.helper.make_tensor_value_info(
                name,
                onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
                list(map(_named(name, array), range(array.ndim))),
            )
            for name, array in self.feeds.items()
        ]
        wanted = [f"out{at}" for at in self.outputs]
        made_by_node = [f"out{at}" for at in range(max(max(self.outputs) + 1, self.least))]
        node = onnx.helper.make_node(
            self.operator, names, made_by_node, domain=self.domain, name="node", **self.attributes
        )
        made = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in wanted]
        graph = onnx.helper.make_graph([node], "graph", given, made)
        opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def same(node: Node, got: list[Array], wanted: list[Array]) -> None:
    """That outputs are those that are wanted, but for rows of padding."""
    for at, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        if at == 0 and node.lengths:
            ours = np.stack([np.concatenate([own[:length], other[length:]])
                             for own, other, length in zip(ours, theirs, node.lengths, strict=True)])  # fmt: skip
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=5e-5)


def _named(name: str, array: Array) -> Callable[[int], int | str]:
    """The size of an axis, or a name for those of masks and ids, which vary."""
    return lambda axis: f"{name}_{axis}" if array.ndim > 1 and array.dtype != np.float32 else array.shape[axis]


def _floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _ids(high: int, *shape: int) -> Array:
    return np.random.default_rng(high).integers(0, high, shape).astype(np.int32)


def _kept(*shape: int) -> Array:
    mask = np.ones(shape, np.int32)
    mask[0, ..., -2:] = 0
    return mask


LAST = np.full((B,), T - 1, np.int32)
TOTAL = np.array(T, np.int32)
ANGLES = (np.cos(_floats(16, D // 2)), np.sin(_floats(16, D // 2)))
QKV = (_floats(B, T, E), _floats(B, S, E), _floats(B, S, E))
GROUPED = (_floats(B, T, E), _floats(B, T, G * D), _floats(B, T, G * D))
EMBED = (_ids(9, B, T), _ids(2, B, T), _floats(9, E), _floats(16, E), _floats(2, E), _floats(E), _floats(E))
NODES: dict[str, Node] = {
    "gelu": Node("Gelu", (_floats(B, E),)),
    "bias_gelu": Node("BiasGelu", (_floats(B, E), _floats(E))),
    "fast_gelu": Node("FastGelu", (_floats(B, E), _floats(E))),
    "quick_gelu": Node("QuickGelu", (_floats(B, E),), {"alpha": 1.5}),
    "rotary_flat": Node("RotaryEmbedding", (_floats(B, T, E), _ids(16, B, T).astype(np.int64), *ANGLES)),
    "rotary_first": Node("RotaryEmbedding", (_floats(B, H, T, D), np.array([3], np.int64), *ANGLES)),
    "rotary_first_flat": Node("RotaryEmbedding", (_floats(B, T, E), np.array([3], np.int64), *ANGLES),
                              {"interleaved": 1}),
    "skip_rms_norm_added": Node("SkipSimplifiedLayerNormalization",
                                (_floats(B, T, E), _floats(B, T, E), _floats(E), _floats(E)), outputs=(0, 3)),
    "skip_norm_of_one_row": Node("SkipLayerNormalization", (_floats(B, T, E), _floats(T, E), _floats(E))),
    "fused_matmul": Node("FusedMatMul", (_floats(B, T, E), _floats(B, S, E)), {"transB": 1, "alpha": 0.5}),
    "fused_matmul_moved": Node("FusedMatMul", (_floats(T, B, H, D), _floats(B, H, D, T)),
                               {"transBatchA": 1}),
    "skip_norm": Node("SkipLayerNormalization", (_floats(B, T, E), _floats(B, T, E), _floats(E), _floats(E)),
                      {"epsilon": 1e-5}),
    "skip_norm_sum": Node("SkipLayerNormalization",
                          (_floats(B, T, E), _floats(B, T, E), _floats(E), _floats(E), _floats(E)), outputs=(0, 3)),
    "skip_rms_norm": Node("SkipSimplifiedLayerNormalization", (_floats(B, T, E), _floats(B, T, E), _floats(E)),
                          outputs=(0, 3)),
    "rms_norm": Node("SimplifiedLayerNormalization", (_floats(B, T, E), _floats(E)), {"axis": -1}, domain=""),
    "embed_norm": Node("EmbedLayerNormalization", EMBED, least=2),
    "rotary": Node("RotaryEmbedding", (_floats(B, H, T, D), _ids(16, B, T).astype(np.int64), *ANGLES)),
    "multi_head": Node("MultiHeadAttention", QKV, {"num_heads": H}),
    "multi_head_bias_mask": Node("MultiHeadAttention", (*QKV, _floats(3 * E), _kept(B, S)), {"num_heads": H}),
    "multi_head_added": Node("MultiHeadAttention", (*QKV, None, None, _floats(B, H, T, S)),
                             {"num_heads": H, "scale": 0.3}),
    "multi_head_causal": Node("MultiHeadAttention", (QKV[0], *(_floats(B, T, E),) * 2),
                              {"num_heads": H, "unidirectional": 1}),
    "multi_head_past": Node("MultiHeadAttention",
                            (*(_floats(B, T, E),) * 3, None, None, None, *(_floats(B, H, S, D),) * 2),
                            {"num_heads": H}, outputs=(0, 1, 2)),
    "packed": Node("Attention", (_floats(B, T, E), _floats(E, 3 * E), _floats(3 * E), _kept(B, T)), {"num_heads": H}),
    "packed_lengths": Node("Attention",
                           (_floats(B, T, E), _floats(E, 3 * E), _floats(3 * E), np.array([T, 3], np.int32)),
                           {"num_heads": H}),
    "grouped": Node("GroupQueryAttention", (*GROUPED, None, None, LAST, TOTAL), {"num_heads": H, "kv_num_heads": G}),
    "grouped_rotary": Node("GroupQueryAttention", (*GROUPED, None, None, LAST, TOTAL, *ANGLES),
                           {"num_heads": H, "kv_num_heads": G, "do_rotary": 1}),
    "grouped_window": Node("GroupQueryAttention", (*GROUPED, None, None, LAST, TOTAL),
                           {"num_heads": H, "kv_num_heads": G, "local_window_size": 2}),
}  # fmt: skip
