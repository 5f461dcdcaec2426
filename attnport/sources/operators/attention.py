"""Attention as one operator: ONNX's own, and the rotation of its queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnport.contrib import merge_heads, repeated, rotated, scores, split_heads, visible, weights_of
from attnport.sources.operators.base import Call, operator


@operator("Attention")
def _attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, lengths: Tensor | None = None,
) -> Any:  # fmt: skip
    flat = q.ndim == 3
    if flat:
        q = split_heads(q, call.get("q_num_heads"))
        k, v = (split_heads(x, call.get("kv_num_heads")) for x in (k, v))
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    T, S = q.shape[2], k.shape[2]
    before: Tensor | int = past_k.shape[2] if past_k is not None else 0 if lengths is None else lengths - T
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    right = 0 if call.get("is_causal") else right
    bias = mask
    if mask is not None and mask.shape[-1] < S:
        short = S - mask.shape[-1]
        bias = functional.pad(mask, (0, short), value=False if mask.dtype == torch.bool else -torch.inf)
    seen = visible(T, S, before, left, right, q.device) if max(left, right) >= 0 else None
    if lengths is not None:
        kept = (torch.arange(S, device=q.device) < lengths.reshape(-1, 1)).reshape(-1, 1, 1, S)
        seen = kept if seen is None else seen & kept
    if seen is not None:
        if bias is None:
            bias = seen
        elif bias.dtype == torch.bool:
            bias = bias & seen
        else:
            bias = torch.where(seen, bias, -torch.inf)
    products = scores(q, k, call.get("scale"), call.get("softcap", 0.0))
    weights = weights_of(products, bias)
    y = torch.matmul(weights, repeated(v, q.shape[1]))
    y = merge_heads(y) if flat else y
    if call.outputs == 1:
        return y
    if call.outputs == 4 and call.get("qk_matmul_output_mode", 0) not in (1, 3):
        raise NotImplementedError("Attention that gives its products before the mask")
    return y, k, v, weights if call.get("qk_matmul_output_mode", 0) == 3 else products


@operator("RotaryEmbedding")
def _rotary(call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    flat = x.ndim == 3
    apart = x.reshape(*x.shape[:2], call.get("num_heads"), -1) if flat else x.transpose(1, 2)
    found = rotated(apart, cos, sin, bool(call.get("interleaved")))
    return found.flatten(2) if flat else found.transpose(1, 2)
