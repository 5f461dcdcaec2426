"""Masks of positions: causal, windows, prefixes, documents, lengths, global tokens; and a cache of keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.dims import TensorSpec
from attnport.masks import MaskSpec
from spellings.case import (
    MEMORY,
    PADDED,
    PLAIN,
    SDPA,
    Case,
    Projected,
    X,
    contract,
    grid,
    heads,
    projected,
    scores,
)


def _is_causal(q: Any, k: Any, v: Any) -> Any:
    return sdpa(q, k, v, is_causal=True)


def _causal_triu(q: Any, k: Any, v: Any) -> Any:
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return scores(q, k).masked_fill(later, -math.inf).softmax(-1) @ v


def _causal_arange(q: Any, k: Any, v: Any) -> Any:
    i, j = grid(q, k)
    return torch.where(j <= i, scores(q, k), float("-inf")).softmax(-1) @ v


def _causal_square_subsequent(q: Any, k: Any, v: Any) -> Any:
    """torch's `generate_square_subsequent_mask`, added."""
    later = torch.triu(torch.full((q.shape[2], q.shape[2]), float("-inf"), dtype=q.dtype), diagonal=1)
    return (scores(q, k) + later).softmax(-1) @ v


def _causal_subsequent_numpy(q: Any, k: Any, v: Any) -> Any:
    """The annotated transformer's `subsequent_mask`."""
    later = torch.triu(torch.ones((1, q.size(-2), q.size(-2))), diagonal=1).type(torch.uint8)
    return scores(q, k).masked_fill((later == 0) == 0, -1e9).softmax(dim=-1) @ v


def _causal_padding(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() & mask.bool()[:, None, None, :]
    return sdpa(q, k, v, attn_mask=keep)


class Buffer(Projected):
    """nanoGPT's: a triangle of the largest size, kept and cut to the length at hand."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.register_buffer("bias", torch.tril(torch.ones(128, 128)).view(1, 1, 128, 128))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        length = q.size(2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        return nn.functional.softmax(att, dim=-1) @ v


class BoolBuffer(Projected):
    """GPT-2's: the kept triangle is boolean and chosen with `where`."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.register_buffer("bias", torch.tril(torch.ones((128, 128), dtype=torch.bool)).view(1, 1, 128, 128))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        query_length, key_length = q.size(-2), k.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
        attn = scores(q, k)
        mask_value = torch.full([], torch.finfo(attn.dtype).min, dtype=attn.dtype)
        return torch.where(causal_mask, attn, mask_value).softmax(-1) @ v


class Cached(nn.Module):
    """New queries over the keys kept so far and their own: causal from the lower right."""

    def forward(self, q: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> Any:
        k, v = torch.cat((past_k, k), dim=-2), torch.cat((past_v, v), dim=-2)
        query_length, key_length = q.shape[-2], k.shape[-2]
        keep = torch.ones(query_length, key_length, dtype=torch.bool).tril(diagonal=key_length - query_length)
        return scores(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


class CachedPositions(nn.Module):
    """The same by position numbers, to the operator."""

    def forward(self, q: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> Any:
        past = past_k.shape[2]
        k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
        cache_position = torch.arange(past, past + q.shape[2])
        keep = torch.arange(k.shape[2])[None, :] <= cache_position[:, None]
        return sdpa(q, k, v, attn_mask=keep[None, None])


class CachedBuffer(nn.Module):
    """GPT-2's kept triangle, cut at the length of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones((128, 128), dtype=torch.bool)).view(1, 1, 128, 128))

    def forward(self, q: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> Any:
        k, v = torch.cat((past_k, k), dim=-2), torch.cat((past_v, v), dim=-2)
        query_length, key_length = q.size(-2), k.size(-2)
        keep = self.bias[:, :, key_length - query_length : key_length, :key_length]
        return torch.where(keep, scores(q, k), -1e4).softmax(-1) @ v


def _window(q: Any, k: Any, v: Any) -> Any:
    i, j = grid(q, k)
    return scores(q, k).masked_fill((i - j > 2) | (j - i > 2), -math.inf).softmax(-1) @ v


def _window_abs(q: Any, k: Any, v: Any) -> Any:
    i, j = grid(q, k)
    return scores(q, k).masked_fill((i - j).abs() > 2, -math.inf).softmax(-1) @ v


def _window_causal(q: Any, k: Any, v: Any) -> Any:
    """Mistral's."""
    i, j = grid(q, k)
    return sdpa(q, k, v, attn_mask=(j <= i) & (j > i - 3))


def _window_causal_of_triangles(q: Any, k: Any, v: Any, mask: Any) -> Any:
    ones = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    keep = torch.tril(ones) & torch.triu(ones, diagonal=-2) & mask[:, None, None, :].bool()
    return scores(q, k).masked_fill(~keep, torch.finfo(q.dtype).min).softmax(-1) @ v


def _prefix(q: Any, k: Any, v: Any, prefix: Any) -> Any:
    """The prefix is seen by all, the rest is causal."""
    i, j = grid(q, k)
    keep = (j <= i)[None, None] | (j < prefix[:, None, None])[:, None]
    return scores(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


def _documents(q: Any, k: Any, v: Any, segments: Any) -> Any:
    same = segments[:, :, None] == segments[:, None, :]
    return sdpa(q, k, v, attn_mask=same[:, None])


def _documents_causal(q: Any, k: Any, v: Any, segments: Any) -> Any:
    same = segments.unsqueeze(-1) == segments.unsqueeze(-2)
    keep = torch.tril(same)[:, None]
    return scores(q, k).masked_fill(keep == 0, -1e9).softmax(-1) @ v


def _lengths(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """ESPnet's `make_pad_mask`."""
    seq_range = torch.arange(0, k.shape[2], dtype=torch.int64).unsqueeze(0)
    pad = seq_range >= lengths.unsqueeze(-1)
    return scores(q, k).masked_fill(pad[:, None, None, :], -1e9).softmax(-1) @ v


def _lengths_sdpa(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    keep = torch.arange(k.shape[2])[None, None, None, :] < lengths[:, None, None, None]
    return sdpa(q, k, v, attn_mask=keep.expand(-1, -1, q.shape[2], -1))


def _local_and_global(q: Any, k: Any, v: Any) -> Any:
    """Longformer's as one mask: neighbours, and one token that sees and is seen by all."""
    i, j = grid(q, k)
    keep = ((i - j).abs() <= 2) | (j < 1) | (i < 1)
    return scores(q, k).masked_fill(~keep, -math.inf).softmax(-1) @ v


def _strided(q: Any, k: Any, v: Any) -> Any:
    """The sparse transformer's: every third earlier key."""
    i, j = grid(q, k)
    keep = (j <= i) & ((i - j) % 3 == 0)
    return scores(q, k).masked_fill(~keep, -1e9).softmax(-1) @ v


def _chunked_causal(q: Any, k: Any, v: Any) -> Any:
    """Llama 4's: causal within chunks."""
    i, j = grid(q, k)
    keep = (j <= i) & (i // 4 == j // 4)
    return sdpa(q, k, v, attn_mask=keep[None, None])


_CACHED = contract(
    *(heads(name, "seq") for name in "qkv"),
    *(heads(name, "past") for name in ("past_k", "past_v")),
    outputs=(heads("y", "seq"),),
)
_SEGMENTS = contract(X, TensorSpec("segments", "int64", ("batch", "seq")))
_LENGTHS = contract(
    X, TensorSpec("lengths", "int64", ("batch",)), masks=(MaskSpec(("padding",), "lengths", carries="lengths"),)
)
_PREFIX = contract(X, TensorSpec("prefix", "int64", ("batch",)))
CASES: dict[str, Case] = {
    "is_causal": projected(_is_causal, PLAIN, "causal", call=SDPA),
    "cross_causal": projected(_is_causal, contract(X, MEMORY), "causal", call=SDPA),
    "causal_triu": projected(_causal_triu, PLAIN, "causal"),
    "causal_arange": projected(_causal_arange, PLAIN, "causal"),
    "causal_square_subsequent": projected(_causal_square_subsequent, PLAIN, "causal"),
    "causal_subsequent_bytes": projected(_causal_subsequent_numpy, PLAIN, "causal"),
    "causal_padding": projected(_causal_padding, PADDED, "causal+padding(mask)", call=SDPA),
    "causal_buffer": Case(Buffer, PLAIN, "causal"),
    "causal_bool_buffer": Case(BoolBuffer, PLAIN, "causal"),
    "cached": Case(Cached, _CACHED, "causal"),
    "cached_positions": Case(CachedPositions, _CACHED, "causal", SDPA),
    "cached_buffer": Case(CachedBuffer, _CACHED, "causal"),
    "window": projected(_window, PLAIN, "window"),
    "window_abs": projected(_window_abs, PLAIN, "window"),
    "window_causal": projected(_window_causal, PLAIN, "causal+window", call=SDPA),
    "window_of_triangles": projected(_window_causal_of_triangles, PADDED, "causal+window+padding(mask)"),
    "prefix": projected(_prefix, _PREFIX, "causal+prefix(prefix)"),
    "documents": projected(_documents, _SEGMENTS, "documents(segments)", call=SDPA),
    "documents_causal": projected(_documents_causal, _SEGMENTS, "causal+documents(segments)"),
    "lengths": projected(_lengths, _LENGTHS, "padding(lengths)"),
    "lengths_sdpa": projected(_lengths_sdpa, _LENGTHS, "padding(lengths)", call=SDPA),
    "local_and_global": projected(_local_and_global, PLAIN, "window+global"),
    "strided": projected(_strided, PLAIN, "causal+explicit"),
    "chunked_causal": projected(_chunked_causal, PLAIN, "causal+explicit", call=SDPA),
}
