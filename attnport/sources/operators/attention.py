"""Attention as one operator: ONNX's own, and the rotation of its queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnport.sources.operators.base import Call, operator


def split_heads(x_BTE: Tensor, heads: int) -> Tensor:
    """[B,T,E] to [B,H,T,D]."""
    B, T, E = x_BTE.shape
    return x_BTE.reshape(B, T, heads, E // heads).transpose(1, 2)


def merge_heads(x_BHTD: Tensor) -> Tensor:
    """[B,H,T,D] to [B,T,E]."""
    return x_BHTD.transpose(1, 2).flatten(2)


def scores(q_BHTD: Tensor, k_BHSD: Tensor, scale: float | None, softcap: float = 0.0) -> Tensor:
    """Products of queries and keys, [B,H,T,S]; key heads are repeated where there are fewer of them."""
    k_BHSD = repeated(k_BHSD, q_BHTD.shape[1])
    scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
    found = torch.matmul(q_BHTD * scale, k_BHSD.transpose(-1, -2))
    return softcap * torch.tanh(found / softcap) if softcap else found


def repeated(x_BHSD: Tensor, heads: int) -> Tensor:
    """Each head as often as the queries' heads need it."""
    return x_BHSD.repeat_interleave(heads // x_BHSD.shape[1], dim=1)


def weights_of(scores_BHTS: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax over keys; a row whose keys are all excluded has weights of zero, as ONNX says."""
    if bias is None:
        return torch.softmax(scores_BHTS, -1)
    if bias.dtype == torch.bool:
        bias = torch.zeros(bias.shape, dtype=scores_BHTS.dtype, device=bias.device).masked_fill(~bias, -torch.inf)
    empty = torch.isneginf(bias.amax(-1, keepdim=True))
    return torch.softmax(scores_BHTS + bias, -1).masked_fill(empty, 0.0)


def visible(queries: int, keys: int, before: Tensor | int, left: int, right: int, device: torch.device) -> Tensor:
    """Whether a query sees a key, [T,S], or [B,1,T,S] where `before` differs by row.

    Args:
        before: How many keys precede the first query: a number, or one of each row, [B].
        left: How many keys before its own a query sees; -1 = all.
        right: How many keys after its own; -1 = all, 0 = causal.
    """
    at_T1 = torch.arange(queries, device=device).unsqueeze(1)
    at_T1 = at_T1 + (before.reshape(-1, 1, 1, 1) if isinstance(before, Tensor) else before)
    apart = at_T1 - torch.arange(keys, device=device)
    seen = torch.ones_like(apart, dtype=torch.bool)
    if left >= 0:
        seen &= apart <= left
    if right >= 0:
        seen &= -apart <= right
    return seen


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


def rotated(x_BTHD: Tensor, cos_BTR: Tensor, sin_BTR: Tensor, interleaved: bool) -> Tensor:
    """Queries or keys with their first 2R values turned by the angles of their positions."""
    size = 2 * cos_BTR.shape[-1]
    cos, sin = cos_BTR.unsqueeze(2), sin_BTR.unsqueeze(2)
    turned, rest = x_BTHD[..., :size], x_BTHD[..., size:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    found = torch.stack([real, imaginary], -1).flatten(-2) if interleaved else torch.cat([real, imaginary], -1)
    return torch.cat([found, rest], -1)


@operator("RotaryEmbedding")
def _rotary(call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    flat = x.ndim == 3
    apart = x.reshape(*x.shape[:2], call.get("num_heads"), -1) if flat else x.transpose(1, 2)
    found = rotated(apart, cos, sin, bool(call.get("interleaved")))
    return found.flatten(2) if flat else found.transpose(1, 2)
