"""ONNX Runtime's own operators of transformers. Source: its documentation of contrib operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnport.sources.operators.attention import (
    merge_heads,
    repeated,
    rotated,
    scores,
    split_heads,
    visible,
    weights_of,
)
from attnport.sources.operators.base import CONTRIB, Call, operator
from attnport.sources.operators.reduction import layer_norm


@operator("SkipLayerNormalization", domain=CONTRIB)
def _skip_norm(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None, added: Tensor | None = None
) -> Any:
    return _skipped(call, x, skip, scale, bias, added, centred=True)


@operator("SkipSimplifiedLayerNormalization", domain=CONTRIB)
def _skip_rms_norm(call: Call, x: Tensor, skip: Tensor, scale: Tensor, added: Tensor | None = None) -> Any:
    return _skipped(call, x, skip, scale, None, added, centred=False)


def _skipped(
    call: Call, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None, added: Tensor | None, centred: bool
) -> Any:
    total = x + skip if added is None else x + skip + added
    found, mean, inverse = layer_norm(total, scale, bias, -1, call.get("epsilon", 1e-12), centred)
    return (found, mean, inverse, total) if call.outputs > 1 else found


@operator("EmbedLayerNormalization", domain=CONTRIB)
def _embed_norm(
    call: Call, ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None,
    scale: Tensor, bias: Tensor, mask: Tensor | None = None, positions: Tensor | None = None,
) -> Any:  # fmt: skip
    at = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0) if positions is None else positions.long()
    total = words[ids.long()] + places[at]
    if segments is not None and kinds is not None:
        total = total + kinds[segments.long()]
    found, _, _ = layer_norm(total, scale, bias, -1, call.get("epsilon", 1e-12))
    count = torch.zeros(ids.shape[0], dtype=torch.int32, device=ids.device)
    count = count if mask is None else mask.sum(1, dtype=torch.int32)
    return (found, count, total)[: call.outputs] if call.outputs > 1 else found


def _mask_bias(call: Call, mask: Tensor | None, keys: int, like: Tensor) -> Tensor | None:
    """What a mask of 0 and 1, [B,S] or [B,T,S], or lengths, [B], add to the products."""
    if mask is None:
        return None
    if mask.ndim == 1:
        mask = (torch.arange(keys, device=mask.device) < mask.reshape(-1, 1)).to(torch.int32)
        if mask.shape[0] != like.shape[0]:
            raise NotImplementedError("a mask of first and last positions")
    kept = mask.reshape(mask.shape[0], 1, -1, mask.shape[-1])
    excluded = call.get("mask_filter_value", -10000.0)
    return torch.zeros(kept.shape, dtype=like.dtype, device=like.device).masked_fill(kept == 0, excluded)


def _attend(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, before: int = 0
) -> Tensor:
    """Queries, keys and values [B,H,T,D] to [B,T,E]."""
    T, S = q.shape[2], k.shape[2]
    products = scores(q, k, call.get("scale") or None)
    added = _mask_bias(call, mask, S, products)
    products = products if added is None else products + added
    products = products if bias is None else products + bias
    seen = visible(T, S, before, -1, 0, q.device) if call.get("unidirectional") else None
    return merge_heads(torch.matmul(weights_of(products, seen), v))


@operator("MultiHeadAttention", domain=CONTRIB)
def _multi_head(
    call: Call, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, bias: Tensor | None = None,
    mask: Tensor | None = None, added: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, *rest: Tensor | None,
) -> Any:  # fmt: skip
    if any(one is not None for one in rest):
        raise NotImplementedError("MultiHeadAttention with a shared buffer or beams")
    heads = call.get("num_heads")
    if q.ndim == 5:  # [B,T,H,3,D]
        q, k, v = (one.flatten(2) for one in q.unbind(3))
    elif k is not None and k.ndim == 5:  # [B,S,H,2,D]
        k, v = (one.flatten(2) for one in k.unbind(3))
    if k is None or v is None:
        raise NotImplementedError("MultiHeadAttention without keys")
    if bias is not None:
        E = q.shape[-1]
        q = q + bias[:E]
        if k.ndim == 3:
            k, v = k + bias[E : 2 * E], v + bias[2 * E :]
    q = split_heads(q, heads)
    k, v = (split_heads(one, heads) if one.ndim == 3 else one for one in (k, v))
    if call.get("unidirectional") and q.shape[2] != k.shape[2]:
        raise NotImplementedError("MultiHeadAttention that is unidirectional, with more keys than queries or fewer")
    before = 0 if past_k is None else past_k.shape[2]
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    y = _attend(call, q, k, v, mask, added, before)
    return (y, k, v) if call.outputs > 1 else y


@operator("Attention", domain=CONTRIB)
def _packed_attention(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    past: Tensor | None = None, added: Tensor | None = None, *rest: Tensor | None,
) -> Any:  # fmt: skip
    if call.get("do_rotary") or any(one is not None for one in rest):
        raise NotImplementedError("com.microsoft Attention with a rotation or a shared buffer")
    packed = torch.matmul(x, weight)
    packed = packed if bias is None else packed + bias
    sizes = call.get("qkv_hidden_sizes") or [packed.shape[-1] // 3] * 3
    q, k, v = (split_heads(one, call.get("num_heads")) for one in torch.split(packed, list(sizes), -1))
    before = 0 if past is None else past.shape[3]
    if past is not None:  # [2,B,H,P,D]
        k, v = (torch.cat(both, 2) for both in ((past[0], k), (past[1], v)))
    y = _attend(call, q, k, v, mask, added, before)
    return (y, torch.stack([k, v])) if call.outputs > 1 else y


@operator("GroupQueryAttention", domain=CONTRIB)
def _grouped(
    call: Call, q: Tensor, k: Tensor | None, v: Tensor | None, past_k: Tensor | None, past_v: Tensor | None,
    last: Tensor, total: Tensor, cos: Tensor | None = None, sin: Tensor | None = None,
    positions: Tensor | None = None, added: Tensor | None = None, sink: Tensor | None = None, *rest: Tensor | None,
) -> Any:  # fmt: skip
    _refuse_variants(call, rest)
    heads, grouped = call.get("num_heads"), call.get("kv_num_heads")
    if k is None or v is None:
        D = q.shape[-1] // (heads + 2 * grouped)
        q, k, v = torch.split(q, [heads * D, grouped * D, grouped * D], -1)
    B, T = q.shape[:2]
    size = int(total.item())
    # A prompt begins at position 0; a later step begins behind what its row has kept.
    before = last.reshape(-1).long() + 1 - T if size != T else torch.zeros(B, dtype=torch.int64, device=q.device)
    q, k, v = (one.reshape(B, T, count, -1) for one, count in ((q, heads), (k, grouped), (v, grouped)))
    if call.get("do_rotary") and cos is not None and sin is not None:
        turned = _positions(before, T, positions, is_prompt=size == T)
        q, k = (rotated(one, cos[turned], sin[turned], bool(call.get("rotary_interleaved"))) for one in (q, k))
    k, v = (_kept(past, one, before, size) for past, one in ((past_k, k), (past_v, v)))
    window = call.get("local_window_size", -1)
    seen = visible(T, size, before, window - 1 if window > 0 else -1, 0, q.device)
    products = scores(q.transpose(1, 2), k[:, :, :size], call.get("scale") or None, call.get("softcap", 0.0))
    products = products if added is None else products + added
    if call.get("smooth_softmax") == 1 and sink is None:
        sink = products.new_zeros(heads)
    weights = weights_of(products, seen) if sink is None else _beside_sink(products, seen, sink)
    y = merge_heads(torch.matmul(weights, repeated(v[:, :, :size], heads)))
    return (y, k, v)[: call.outputs] if call.outputs > 1 else y


def _refuse_variants(call: Call, rest: tuple[Tensor | None, ...]) -> None:
    """Raises NotImplementedError for GroupQueryAttention with what it has got besides."""
    if any(one is not None for one in rest):
        raise NotImplementedError("GroupQueryAttention with norms, or a cache in whole numbers")
    if call.get("causal", 1) != 1 or call.get("sliding_window_cache"):
        raise NotImplementedError("GroupQueryAttention that is not causal, or with a cache that forgets")


def _beside_sink(scores_BHTS: Tensor, seen: Tensor, sink_H: Tensor) -> Tensor:
    """Softmax over the keys that are seen and a number for each head, whose own weight is dropped."""
    column = sink_H.reshape(1, -1, 1, 1).expand(*scores_BHTS.shape[:3], 1)
    return torch.softmax(torch.cat([scores_BHTS.masked_fill(~seen, -torch.inf), column], -1), -1)[..., :-1]


def _positions(before: Tensor, count: int, given: Tensor | None, *, is_prompt: bool) -> Tensor:
    """Where new tokens are, [B,T]; a prompt counts on from the first position that is given."""
    every = torch.arange(count, device=before.device)
    if given is None:
        return before.unsqueeze(1) + every
    return given.reshape(-1)[:1].long().unsqueeze(1) + every if is_prompt else given.long()


def _kept(past_BHSD: Tensor | None, new_BTHD: Tensor, before_B: Tensor, total: int) -> Tensor:
    """The cache, [B,H,S,D], with the new tokens behind those that each row keeps, and zeros behind them."""
    new_BHTD = new_BTHD.transpose(1, 2)
    B, H, T, D = new_BHTD.shape
    both, P = (new_BHTD, 0) if past_BHSD is None else (torch.cat([past_BHSD, new_BHTD], 2), past_BHSD.shape[2])
    every = torch.arange(max(total, P), device=both.device)
    behind = every - before_B.unsqueeze(1)
    chosen = torch.where(behind >= 0, (P + behind).clamp(max=P + T - 1), every)
    found = both.gather(2, chosen.reshape(B, 1, -1, 1).expand(B, H, len(every), D))
    return found.masked_fill((behind >= T).reshape(B, 1, -1, 1), 0.0)


@operator("RotaryEmbedding", domain=CONTRIB)
def _rotary(call: Call, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    flat = x.ndim == 3
    heads = call.get("num_heads") or (x.shape[-1] // (2 * cos.shape[-1]) if flat else 0)
    apart = x.reshape(*x.shape[:2], heads, -1) if flat else x.transpose(1, 2)
    if positions.ndim == 1:
        at = positions.long().reshape(1, 1) + torch.arange(apart.shape[1], device=x.device)
    else:
        at = positions.long()
    found = rotated(apart, cos[at], sin[at], bool(call.get("interleaved")))
    return found.flatten(2) if flat else found.transpose(1, 2)


@operator("MatMulNBits", domain=CONTRIB)
def _product(
    call: Call, x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None = None, order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if order is not None:
        raise NotImplementedError("MatMulNBits with an order of blocks")
    bits, width = call.get("bits", 4), call.get("K")
    blocks = _whole(weight, bits).to(scales.dtype)  # [N, blocks, width of one]
    count = blocks.shape[1]
    middle: Tensor | float = 2.0 ** (bits - 1)
    if zeros is not None:
        whole = zeros if zeros.is_floating_point() else _whole(zeros.reshape(len(blocks), -1), bits)
        middle = whole.reshape(len(blocks), -1)[:, :count].unsqueeze(-1).to(scales.dtype)
    wide = (blocks - middle) * scales.reshape(len(blocks), count, 1)
    found = torch.matmul(x, wide.flatten(1)[:, :width].T)
    return found if bias is None else found + bias


def _whole(bytes_: Tensor, bits: int) -> Tensor:
    """Numbers of 2, 4 or 8 bits that are packed in bytes along the last axis, the first in the lowest bits."""
    parts = [(bytes_ >> low) & (2**bits - 1) for low in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)
