"""What is added or filled, and hides nothing for sure."""

from __future__ import annotations

import math
from typing import Any

import torch
from spellings.case import MASK, PADDED, X, contract, grid, scores

from lookalikes.case import GATED, PAIRS, LookAlike, hides, read, refused


def _penalty(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * -5.0).softmax(-1) @ v


def _thousand(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * -1e3).softmax(-1) @ v


def _three_values(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Padding is hidden, far keys are only disliked."""
    i, j = grid(q, k)
    low = torch.zeros(mask.shape[0], 1, q.shape[2], k.shape[2], dtype=q.dtype).masked_fill((i - j).abs() > 1, -2.0)
    return (scores(q, k) + low.masked_fill(hides(mask), -1e9)).softmax(-1) @ v


def _float_input(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return (scores(q, k) + bias).softmax(-1) @ v


def _two_float_inputs(q: Any, k: Any, v: Any, bias: Any, hidden: Any) -> Any:
    """Both may hold -65504, whose sum is no number of half precision."""
    return (scores(q, k) + bias + hidden[:, None, None, :] * -65504.0).softmax(-1) @ v


def _two_low_masks(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Each is proved to hide, so that the sum, which overflows half precision, is never formed."""
    later = torch.full((q.shape[2], k.shape[2]), -65504.0, dtype=q.dtype).triu(1)
    low = torch.where(mask[:, None, None, :] != 0, 0.0, -65504.0).to(q.dtype)
    return (scores(q, k) + (later + low)).softmax(-1) @ v


def _nan_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """0 * -inf is NaN: this mask breaks, and must go on doing so."""
    return (scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * -math.inf).softmax(-1) @ v


def _undeclared(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """An integer that no contract calls a mask may be 2."""
    return (scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * -1e4).softmax(-1) @ v


def _filled_high(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return scores(q, k).masked_fill(hides(mask), -100.0).softmax(-1) @ v


def _filled_before_scale(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """-1e4 before a scale of 1/100 is -100."""
    return ((q @ k.mT).masked_fill(hides(mask), -1e4) / 100.0).softmax(-1) @ v


def _filled_with_zero(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """`s * m` alone: hidden scores are zero, which hides nothing."""
    return (scores(q, k) * mask[:, None, None, :].to(q.dtype)).softmax(-1) @ v


def _filled_with_data(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = scores(q, k)
    return torch.where(hides(mask), attn.amin(-1, keepdim=True), attn).softmax(-1) @ v


def _only_the_largest(q: Any, k: Any, v: Any) -> Any:
    """Sparse by the scores themselves: keys far below the best are hidden."""
    attn = scores(q, k)
    return attn.masked_fill(attn < attn.topk(1, dim=-1).values - 0.5, -math.inf).softmax(-1) @ v


def _noise(q: Any, k: Any, v: Any) -> Any:
    """Gumbel noise."""
    attn = scores(q, k)
    return (attn - torch.log(-torch.log(torch.rand_like(attn)))).softmax(-1) @ v


CASES: dict[str, LookAlike] = {
    "penalty_of_five": read(_penalty, "bias", PADDED),
    "penalty_of_a_thousand": read(_thousand, "bias", PADDED),
    "penalty_beside_a_mask": read(_three_values, "padding+bias(mask)", PADDED),
    "float_input": read(_float_input, "bias", PAIRS),
    "two_float_inputs": read(_two_float_inputs, "bias", contract(*PAIRS.inputs, GATED.inputs[1])),
    "two_low_masks": read(_two_low_masks, "causal+padding(mask)", PADDED),
    "zero_times_infinity": read(_nan_mask, "bias", PADDED),
    "undeclared_integer": read(_undeclared, "bias", contract(X, MASK)),
    "noise": read(_noise, "bias", random=True),
    "filled_with_minus_100": refused(_filled_high, "-100, which hides nothing", PADDED),
    "filled_before_the_scale": refused(_filled_before_scale, "-100, which hides nothing", PADDED),
    "filled_with_zero": refused(_filled_with_zero, "scores are", PADDED),
    "filled_with_data": refused(_filled_with_data, "chosen from two tensors", PADDED),
    "only_the_largest": read(_only_the_largest, "explicit"),
}
