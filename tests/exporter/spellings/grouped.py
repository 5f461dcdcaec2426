"""Fewer key heads than query heads: repeated, expanded, broadcast, folded, or left to the operator."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from spellings.case import PADDED, PLAIN, SDPA, Case, D, E, H, projected, scores

G, R = 2, 2


def _keep(mask: Any, q: Any) -> Any:
    return mask.bool()[:, None, None, :].expand(-1, -1, q.shape[2], -1)


def _enable_gqa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v, attn_mask=_keep(mask, q), enable_gqa=True)


def _repeated_sdpa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k.repeat_interleave(R, 1), v.repeat_interleave(R, 1), attn_mask=_keep(mask, q))


def _repeated(q: Any, k: Any, v: Any, mask: Any) -> Any:
    k, v = torch.repeat_interleave(k, R, dim=1), torch.repeat_interleave(v, R, dim=1)
    return scores(q, k).masked_fill(mask[:, None, None, :] == 0, -1e9).softmax(-1) @ v


def repeat_kv(hidden_states: Any, n_rep: int) -> Any:
    """transformers'."""
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def _repeat_kv(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Llama's eager attention, with its mask."""
    k, v = repeat_kv(k, R), repeat_kv(v, R)
    low = torch.finfo(q.dtype).min
    causal = torch.full((q.shape[2], k.shape[2]), low, dtype=q.dtype).triu(1)[None, None]
    causal = causal.expand(q.shape[0], 1, -1, -1)
    causal = causal.masked_fill((mask[:, None, None, :] == 0) & (causal == 0), low)
    attn = torch.matmul(q, k.transpose(2, 3)) * D**-0.5 + causal
    attn = nn.functional.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(attn, v)


def _repeat_kv_sdpa(q: Any, k: Any, v: Any) -> Any:
    return sdpa(q, repeat_kv(k, R), repeat_kv(v, R), is_causal=True)


def _broadcast(q: Any, k: Any, v: Any) -> Any:
    """Query heads in groups, `[B,G,R,S,D]`; the keys broadcast."""
    q = q.unflatten(1, (G, R))
    attn = (q @ k[:, :, None].transpose(-1, -2) / math.sqrt(D)).softmax(-1)
    return (attn @ v[:, :, None]).flatten(1, 2)


def _broadcast_masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    b, _, s, d = q.shape
    q = q.view(b, G, R, s, d)
    attn = torch.matmul(q, k.unsqueeze(2).transpose(-1, -2)) / math.sqrt(d)
    attn = attn.masked_fill(mask[:, None, None, None, :] == 0, float("-inf"))
    return torch.matmul(attn.softmax(-1), v.unsqueeze(2)).reshape(b, G * R, s, d)


def _einsum_groups(q: Any, k: Any, v: Any) -> Any:
    q = q.reshape(q.shape[0], G, R, -1, D)
    attn = torch.einsum("bgrid,bgjd->bgrij", q, k) * D**-0.5
    return torch.einsum("bgrij,bgjd->bgrid", attn.softmax(-1), v).reshape(q.shape[0], H, -1, D)


def _mqa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """One key head, which the product broadcasts."""
    return scores(q, k).masked_fill(mask[:, None, None, :] == 0, -1e9).softmax(-1) @ v


def _mqa_expanded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k.expand(-1, H, -1, -1), v.expand(-1, H, -1, -1), attn_mask=_keep(mask, q))


def _one_value_head(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The interpretable attention of a temporal fusion transformer."""
    return scores(q, k).masked_fill(mask[:, None, None, :] == 0, -1e9).softmax(-1) @ v[:, :1]


def _one_key_head(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k[:, :1]).softmax(-1) @ v


def _mqa_einsum(q: Any, k: Any, v: Any) -> Any:
    """PaLM's."""
    k, v = k[:, 0], v[:, 0]
    sim = torch.einsum("b h i d, b j d -> b h i j", q * D**-0.5, k)
    return torch.einsum("b h i j, b j d -> b h i d", sim.softmax(dim=-1), v)


class Folded(nn.Module):
    """GPTBigCode's: one key head, the query heads folded into the query axis."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.c_attn = nn.Linear(E, E + 2 * D)

    def forward(self, x: Any, mask: Any) -> Any:
        query, kv = self.c_attn(x).split((E, 2 * D), dim=2)
        key, value = kv.split((D, D), dim=-1)
        b, s, _ = query.shape
        attn = torch.matmul(query.reshape(b, s * H, D), key.transpose(-1, -2)).view(b, s, H, s) / D**0.5
        attn = torch.where(mask.bool()[:, None, None, :], attn, torch.finfo(attn.dtype).min)
        attn = nn.functional.softmax(attn, dim=-1)
        return torch.bmm(attn.view(b, s * H, s), value).view(b, s, E)


CASES: dict[str, Case] = {
    "gqa": projected(_enable_gqa, PADDED, "padding(mask)", key_heads=G, call=SDPA),
    "gqa_repeated_sdpa": projected(_repeated_sdpa, PADDED, "padding(mask)", key_heads=G, call=SDPA),
    "gqa_repeated": projected(_repeated, PADDED, "padding(mask)", key_heads=G),
    "gqa_repeat_kv": projected(_repeat_kv, PADDED, "causal+padding(mask)", key_heads=G),
    "gqa_repeat_kv_sdpa": projected(_repeat_kv_sdpa, PLAIN, "causal", key_heads=G, call=SDPA),
    "gqa_broadcast": projected(_broadcast, key_heads=G),
    "gqa_broadcast_masked": projected(_broadcast_masked, PADDED, "padding(mask)", key_heads=G),
    "gqa_einsum": projected(_einsum_groups, key_heads=G),
    "mqa": projected(_mqa, PADDED, "padding(mask)", key_heads=1),
    "mqa_expanded": projected(_mqa_expanded, PADDED, "padding(mask)", key_heads=1, call=SDPA),
    "one_value_head": projected(_one_value_head, PADDED, "padding(mask)"),
    "one_key_head": projected(_one_key_head),
    "mqa_einsum": projected(_mqa_einsum, key_heads=1),
    "mqa_folded": Case(Folded, PADDED, "padding(mask)"),
}
