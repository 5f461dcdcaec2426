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

# --- attentions behind a cache ----------------------------------------------------------------------------------------

P = 7
"""Places of the cache."""
OUTPUTS = (0, 1, 2)
SELF = (_floats(B, T, E),) * 3
PAST = (_floats(B, H, S, D), _floats(B, H, S, D) + 1)
OF_ALL = _kept(B, S + T)
X = (_floats(B, T, E), _floats(E, 3 * E), _floats(3 * E))


def grouped(
    new: int, past: int | None = P, total: int | None = None, lengths: tuple[int, ...] = (), *, batch: int = B,
    packed: bool = False, turned: bool = False, positions: list[list[int]] | None = None,
    added: tuple[int, ...] = (), more: tuple[Any, ...] = (), **options: Any,
) -> Node:  # fmt: skip
    """A pass of GroupQueryAttention.

    Args:
        past: The cache's places; None = without a cache.
        total: The most keys of a row; by default cache and new tokens.
        lengths: The keys of each row; by default the most.
        turned: Whether it turns queries and keys.
        added: The shape of a bias; none = no bias.
        more: Further inputs behind it.
        options: Attributes.
    """
    total = new + (past or 0) if total is None else total
    q, k, v = (_floats(batch, new, heads * D) + shift for heads, shift in ((H, 0), (G, 0.1), (G, 0.2)))
    flat = (np.concatenate([q, k, v], -1), None, None) if packed else (q, k, v)
    caches = (None, None) if past is None else (_floats(batch, G, past, D), _floats(batch, G, past, D) + 1)
    last = np.array(lengths or [total] * batch, np.int32) - 1
    optional = [*(ANGLES if turned else (None, None)),
                None if positions is None else np.array(positions, np.int64),
                _floats(*added) if added else None, *more]  # fmt: skip
    while optional and optional[-1] is None:
        optional.pop()
    attributes = {"num_heads": H, "kv_num_heads": G, "do_rotary": int(turned), **options}
    rows = lengths if new == total else ()
    return Node("GroupQueryAttention", (*flat, *caches, last, np.array(total, np.int32), *optional), attributes,
                OUTPUTS, lengths=rows)  # fmt: skip


def heads(*inputs: Any, outputs: tuple[int, ...] = OUTPUTS, **attributes: Any) -> Node:
    return Node("MultiHeadAttention", inputs, {"num_heads": H, **attributes}, outputs)


def whole(*inputs: Any, outputs: tuple[int, ...] = (0, 1), **attributes: Any) -> Node:
    return Node("Attention", (*X, *inputs), {"num_heads": H, **attributes}, outputs)


CACHED: dict[str, Node] = {
    "heads_past_bias_mask": heads(*SELF, _floats(3 * E), OF_ALL, None, *PAST),
    "heads_past_causal": heads(*SELF, None, None, None, *PAST, unidirectional=1),
    "heads_past_causal_mask_added": heads(*SELF, None, OF_ALL, _floats(B, H, T, S + T), *PAST, unidirectional=1),
    "heads_empty_past": heads(*SELF, None, None, None, *(_floats(B, H, 0, D),) * 2, unidirectional=1),
    "heads_by_head": heads(QKV[0], *PAST, outputs=(0,)),
    "heads_by_head_bias": heads(QKV[0], *PAST, _floats(3 * E), outputs=(0,)),
    "heads_lengths": heads(*QKV, None, np.array([S, 4], np.int32), outputs=(0,)),
    "heads_wide_values": heads(QKV[0], QKV[1], _floats(B, S, 24), _floats(2 * E + 24), outputs=(0,)),
    "whole_past": whole(None, _floats(2, B, H, S, D)),
    "whole_past_causal_mask": whole(OF_ALL, _floats(2, B, H, S, D), unidirectional=1),
    "whole_present": whole(),
    "prompt": grouped(5, 0),
    "prompt_padded": grouped(5, 0, lengths=(5, 3)),
    "prompt_in_a_buffer": grouped(5, 9, 5, lengths=(5, 3), turned=True),
    "prompt_of_one": grouped(1, 0),
    "prompt_packed": grouped(5, 0, packed=True, turned=True),
    "prompt_padded_without_cache": grouped(5, None, lengths=(5, 3), turned=True),
    "prompt_positions": grouped(5, 0, turned=True, positions=[[3, 4, 5, 6, 7], [0, 0, 1, 2, 3]]),
    "prompt_positions_without_cache": grouped(5, None, turned=True, positions=[[3, 4, 5, 6, 7], [0, 0, 1, 2, 3]]),
    "prompt_added": grouped(5, None, added=(1, H, 5, 5)),
    "step": grouped(1),
    "step_lengths": grouped(1, lengths=(8, 5)),
    "step_first": grouped(1, lengths=(8, 1)),
    "step_in_a_buffer": grouped(1, 9, 6, lengths=(6, 4)),
    "step_packed": grouped(1, lengths=(8, 5), packed=True, turned=True),
    "step_interleaved": grouped(1, lengths=(8, 5), turned=True, rotary_interleaved=1),
    "step_positions": grouped(1, turned=True, positions=[[3], [9]]),
    "step_added": grouped(1, added=(1, H, 1, 8), lengths=(8, 5)),
    "step_added_to_each": grouped(1, added=(B, 1, 1, 8)),
    "step_added_in_a_buffer": grouped(1, 9, 6, added=(1, 1, 1, 6)),
    "step_softcap_window": grouped(1, added=(1, H, 1, 8), softcap=4.0, local_window_size=3, scale=0.3),
    "step_window": grouped(1, lengths=(8, 5), local_window_size=3),
    "window_of_one": grouped(5, 0, local_window_size=1),
    "window_beyond": grouped(5, 0, local_window_size=20),
    "several": grouped(3, batch=1, turned=True),
    "several_short": grouped(3, batch=1, lengths=(6,), local_window_size=2),
    "several_positions": grouped(3, batch=1, turned=True, positions=[[3, 9, 1]]),
    "several_in_a_buffer": grouped(3, 12, 8, batch=1),
}  # fmt: skip
COMPUTED: dict[str, Node] = {
    "sink": grouped(1, lengths=(8, 5), more=(_floats(H),)),
    "smooth": grouped(5, 0, smooth_softmax=1),
}
"""What PyTorch computes, and stays as it is."""
LEFT: dict[str, Node] = {
    "heads_causal_of_other_lengths": heads(*QKV, outputs=(0,), unidirectional=1),
    "heads_begin_and_end": heads(*QKV, None, np.array([S, 4, 0, 5, 10, 0, 7, 14], np.int32), outputs=(0,)),
    "grouped_of_both_sides": grouped(5, 0, causal=0),
}
"""What nothing computes but ONNX Runtime."""
