"""How people hide keys: fills, choices, sums, products, in every type and with every large number."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec
from spellings.case import (
    HIDDEN,
    MEMORY,
    MEMORY_MASK,
    PADDED,
    PADDING,
    SDPA,
    Case,
    D,
    H,
    X,
    contract,
    projected,
    scores,
)


def _masked_fill(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return scores(q, k).masked_fill(mask[:, None, None, :] == 0, -math.inf).softmax(-1) @ v


def _where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = q @ k.transpose(-1, -2) / math.sqrt(D)
    return torch.where(mask.bool()[:, None, None, :], attn, torch.finfo(attn.dtype).min).softmax(-1) @ v


def _where_tensor(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """GPT-2's: the fill is a tensor, for the sake of its type."""
    attn = scores(q, k)
    mask_value = torch.full([], torch.finfo(attn.dtype).min, dtype=attn.dtype)
    return torch.where(mask.bool()[:, None, None, :], attn, mask_value).softmax(-1) @ v


def _where_full_like(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = scores(q, k)
    low = torch.ones_like(attn) * -1e9
    return torch.where(mask[:, None, None, :] > 0, attn, low).softmax(-1) @ v


def _added(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * -10000.0).softmax(-1) @ v


def _added_before_scale(q: Any, k: Any, v: Any, mask: Any) -> Any:
    low = torch.where(mask[:, None, None, :] != 0, 0.0, -1e9).to(q.dtype)
    return ((q @ k.transpose(-1, -2) + low) / math.sqrt(D)).softmax(-1) @ v


def _added_from_minus_one(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) + (mask[:, None, None, :].to(q.dtype) - 1.0) * 1e9).softmax(-1) @ v


def _added_zeros_filled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    low = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask == 0, float("-inf"))
    return (scores(q, k) + low[:, None, None]).softmax(-1) @ v


def _added_float_min(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """transformers' `get_extended_attention_mask`."""
    extended = mask[:, None, None, :].to(dtype=q.dtype)
    extended = (1.0 - extended) * torch.finfo(torch.float32).min
    return (scores(q, k) + extended).softmax(-1) @ v


def _subtracted(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) - 1e9 * (1 - mask[:, None, None, :].to(q.dtype))).softmax(-1) @ v


def _subtracted_integer(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) - 1e4 * (1 - mask[:, None, None, :])).softmax(-1) @ v


def _multiplied(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The first GPT's: `w * b - 1e10 * (1 - b)`."""
    keep = mask[:, None, None, :].to(q.dtype)
    attn = scores(q, k)
    return (attn * keep - 1e10 * (1 - keep)).softmax(-1) @ v


def _multiplied_added(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = mask[:, None, None, :].to(q.dtype)
    return (scores(q, k) * keep + -1e9 * (1 - keep)).softmax(-1) @ v


def _inverted(q: Any, k: Any, v: Any, mask: Any) -> Any:
    hidden = 1.0 - mask[:, None, None, :].to(q.dtype)
    return (scores(q, k) + hidden.masked_fill(hidden.bool(), -1e30)).softmax(-1) @ v


def _expanded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """BART's `_expand_mask`: `[B,1,S,T]`, then inverted and filled."""
    batch, length = mask.size()
    expanded = mask[:, None, None, :].expand(batch, 1, q.shape[2], length).to(q.dtype)
    inverted = 1.0 - expanded
    low = inverted.masked_fill(inverted.to(torch.bool), torch.finfo(q.dtype).min)
    return (scores(q, k) + low).softmax(-1) @ v


def _expanded_to_heads(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = scores(q, k)
    hidden = (mask == 0).view(mask.shape[0], 1, 1, -1).expand_as(attn)
    return attn.masked_fill(hidden, -float("inf")).softmax(-1) @ v


def _repeated_to_heads(q: Any, k: Any, v: Any, mask: Any) -> Any:
    hidden = mask.eq(0).unsqueeze(1).unsqueeze(1).repeat(1, H, q.shape[2], 1)
    return scores(q, k).masked_fill(hidden, -1e9).softmax(-1) @ v


def _not(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return scores(q, k).masked_fill(~mask[:, None, None, :], -65504.0).softmax(-1) @ v


def _logical_not(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return scores(q, k).masked_fill(torch.logical_not(mask)[:, None, None, :], -1e4).softmax(-1) @ v


def _or(q: Any, k: Any, v: Any, mask: Any) -> Any:
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(diagonal=1)
    hidden = torch.logical_or(torch.logical_or(later, mask[:, None, None, :] == 0), mask[:, None, None, :] < 0.5)
    return scores(q, k).masked_fill(hidden, -math.inf).softmax(-1) @ v


def _product_of_masks(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = mask[:, None, None, :] * torch.ones(q.shape[2], k.shape[2], dtype=mask.dtype).tril()
    return scores(q, k).masked_fill(keep == 0, -1e9).softmax(-1) @ v


def _merged_as_float_min(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """transformers' `_prepare_4d_causal_attention_mask`."""
    low = torch.finfo(q.dtype).min
    causal = torch.full((q.shape[2], k.shape[2]), low, dtype=q.dtype).triu(diagonal=1)
    causal = causal[None, None, :, :].expand(mask.shape[0], 1, -1, -1)
    padding = causal == 0
    padding = padding & (mask[:, None, None, :] != 0)
    return (scores(q, k) + causal.masked_fill(~padding, low)).softmax(-1) @ v


def _clamped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """OPT's: a sum of masks may overflow, so the sum is held at the type's least number."""
    low = torch.finfo(q.dtype).min
    inverted = 1.0 - mask[:, None, None, :].to(q.dtype)
    attn = scores(q, k) + inverted.masked_fill(inverted.bool(), low)
    attn = torch.max(attn, torch.tensor(low, dtype=q.dtype))
    return attn.softmax(-1) @ v


def _clamp_min(q: Any, k: Any, v: Any, mask: Any) -> Any:
    low = torch.finfo(q.dtype).min
    attn = scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * low
    return attn.clamp(min=low).softmax(-1) @ v


def _filled_twice(q: Any, k: Any, v: Any, mask: Any) -> Any:
    later = torch.triu(torch.ones(q.shape[2], k.shape[2]), diagonal=1).bool()
    attn = scores(q, k).masked_fill(later, float("-inf"))
    return attn.masked_fill(mask[:, None, None, :] == 0, float("-inf")).softmax(-1) @ v


def _added_twice(q: Any, k: Any, v: Any, mask: Any) -> Any:
    later = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype).triu(1)
    low = (1.0 - mask[:, None, None, :].to(q.dtype)) * -1e9
    return (scores(q, k) + later + low).softmax(-1) @ v


def _logarithm(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) + mask.to(q.dtype).log()[:, None, None, :]).softmax(-1) @ v


def _bytes(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return scores(q, k).masked_fill(mask.to(torch.uint8)[:, None, None, :] == 0, -1e9).softmax(-1) @ v


def _padding_sdpa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v, attn_mask=mask.bool()[:, None, None, :].expand(-1, -1, q.shape[2], -1))


def _float_hides(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """A truth value of a float: no mask that is written anew, so the graph's own tensor is taken."""
    return scores(q, k).masked_fill(hidden[:, None, None, :] > 0.5, -math.inf).softmax(-1) @ v


def _float_keeps(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    keep = (hidden < 0.5)[:, None, None, :].expand(-1, -1, q.shape[2], -1)
    return sdpa(q, k, v, attn_mask=keep)


def _float_added(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return (scores(q, k) + torch.where(hidden > 0.5, -2e4, 0.0)[:, None, None, :].to(q.dtype)).softmax(-1) @ v


def _float_subtracted(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return (scores(q, k) - torch.where(hidden > 0.5, 2e4, 0.0)[:, None, None, :].to(q.dtype)).softmax(-1) @ v


def _float_added_before_scale(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """Only times the scale is the number large enough to hide a key."""
    low = torch.where(hidden > 0.5, -3e3, 0.0)[:, None, None, :].to(q.dtype)
    return ((q @ k.transpose(-1, -2) + low) * 4).softmax(-1) @ v


def _typed(dtype: str) -> IOContract:
    return contract(X, TensorSpec("mask", dtype, ("batch", "seq")), masks=(PADDING,))


CROSS = contract(X, MEMORY, MEMORY_MASK, masks=(PADDING,))
HIDES = contract(
    X, TensorSpec("hidden", "bool", ("batch", "seq")), masks=(MaskSpec(("padding",), "hidden", polarity="hide"),)
)
HIDES_IN_FLOAT = contract(X, HIDDEN, masks=HIDES.masks)
"""Declared, so that an item without any key is not compared: what is added does not make all scores equal there."""
_BOTH = "causal+padding(mask)"
CASES: dict[str, Case] = {
    **{
        name: projected(attend, PADDED, "padding(mask)")
        for name, attend in {
            "masked_fill": _masked_fill,
            "where": _where,
            "where_tensor": _where_tensor,
            "where_full_like": _where_full_like,
            "added": _added,
            "added_before_scale": _added_before_scale,
            "added_from_minus_one": _added_from_minus_one,
            "added_zeros_filled": _added_zeros_filled,
            "added_float_min": _added_float_min,
            "subtracted": _subtracted,
            "subtracted_integer": _subtracted_integer,
            "multiplied": _multiplied,
            "multiplied_added": _multiplied_added,
            "inverted": _inverted,
            "expanded": _expanded,
            "expanded_to_heads": _expanded_to_heads,
            "repeated_to_heads": _repeated_to_heads,
            "clamped": _clamped,
            "clamp_min": _clamp_min,
            "logarithm": _logarithm,
            "bytes": _bytes,
        }.items()
    },
    **{
        name: projected(attend, PADDED, _BOTH)
        for name, attend in {
            "or_of_several": _or,
            "product_of_masks": _product_of_masks,
            "merged_as_float_min": _merged_as_float_min,
            "filled_twice": _filled_twice,
            "added_twice": _added_twice,
        }.items()
    },
    "padding_sdpa": projected(_padding_sdpa, PADDED, "padding(mask)", call=SDPA),
    "bool_not": projected(_not, _typed("bool"), "padding(mask)"),
    "bool_logical_not": projected(_logical_not, _typed("bool"), "padding(mask)"),
    "bool_hides": projected(
        lambda q, k, v, hidden: scores(q, k).masked_fill(hidden[:, None, None], -1e9).softmax(-1) @ v,
        HIDES,
        "padding(hidden)",
    ),
    "int32_added": projected(_added, _typed("int32"), "padding(mask)"),
    "float32_declared": projected(_added, _typed("float32"), "padding(mask)"),
    "float_hides": projected(_float_hides, contract(X, HIDDEN), "padding(hidden)"),
    "float_keeps": projected(_float_keeps, contract(X, HIDDEN), "padding(hidden)", call=SDPA),
    "float_added": projected(_float_added, HIDES_IN_FLOAT, "padding(hidden)"),
    "float_subtracted": projected(_float_subtracted, HIDES_IN_FLOAT, "padding(hidden)"),
    "float_added_before_scale": projected(_float_added_before_scale, HIDES_IN_FLOAT, "padding(hidden)"),
    "cross": projected(_masked_fill, CROSS, "padding(mask)"),
    "cross_expanded": projected(_expanded, CROSS, "padding(mask)"),
}
