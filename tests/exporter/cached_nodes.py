"""ONNX Runtime's attentions behind a cache, with inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from contrib_nodes import ANGLES, QKV, B, D, E, G, H, Node, S, T, _floats, _kept

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
