"""Scores that no kernel computes, or that are more than one product."""

from __future__ import annotations

import math
from typing import Any

import torch
from spellings.case import PADDED, PLAIN, Case, D, H, Projected, grid, scores
from torch import nn

from lookalikes.case import GATED, PAIRS, LookAlike, read, refused, uncounted


def _divided_by_keys(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return (scores(q, k) / (hidden[:, None, None, :] + 1.5)).softmax(-1) @ v


def _multiplied_by_pairs(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return (scores(q, k) * bias).softmax(-1) @ v


def _whole_numbers(q: Any, k: Any, v: Any) -> Any:
    return ((scores(q, k) * 16).to(torch.int32).to(q.dtype) / 16).softmax(-1) @ v


def _rounded(q: Any, k: Any, v: Any) -> Any:
    return (torch.round(scores(q, k) * 8) / 8).softmax(-1) @ v


def _clipped(q: Any, k: Any, v: Any) -> Any:
    """A clamp that does cut scores."""
    return scores(q, k).clamp(min=-0.1, max=0.1).softmax(-1) @ v


def _finite_after_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A row whose keys are all hidden has the mean of their values."""
    return torch.nan_to_num(scores(q, k).masked_fill(mask[:, None, None, :] == 0, -math.inf)).softmax(-1) @ v


def _leaky(q: Any, k: Any, v: Any) -> Any:
    return nn.functional.leaky_relu(scores(q, k)).softmax(-1) @ v


def _relu(q: Any, k: Any, v: Any) -> Any:
    return torch.relu(scores(q, k)).square() @ v


def _sigmoid(q: Any, k: Any, v: Any) -> Any:
    return torch.sigmoid(scores(q, k) - math.log(8)) @ v


def _sparsemax(q: Any, k: Any, v: Any) -> Any:
    """Martins and Astudillo 2016: a projection onto the simplex."""
    attn = scores(q, k)
    z = attn.sort(-1, descending=True).values
    above = z.cumsum(-1) - 1
    rank = torch.arange(1, k.shape[2] + 1, dtype=q.dtype)
    support = (rank * z > above).to(q.dtype).sum(-1, keepdim=True)
    tau = torch.gather(above, -1, support.to(torch.int64) - 1) / support
    return torch.relu(attn - tau) @ v


def _exponentials(q: Any, k: Any, v: Any) -> Any:
    """A softmax by hand with a sink in its sum: counted, and not read."""
    attn = scores(q, k)
    top = attn.amax(-1, keepdim=True)
    power = torch.exp(attn - top)
    return (power / (power.sum(-1, keepdim=True) + torch.exp(0.5 - top))) @ v


def _distances(q: Any, k: Any, v: Any) -> Any:
    """Scores by distance, written as the product and two norms: attention with a bias."""
    norms = (q * q).sum(-1, keepdim=True) + (k * k).sum(-1).unsqueeze(-2)
    return (2.0 * (q @ k.mT) - norms).softmax(-1) @ v


class Disentangled(Projected):
    """DeBERTa's: content to position is a second product of the queries, gathered by distance."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.positions = nn.Parameter(torch.randn(H, 9, D))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        i, j = grid(q, k)
        distance = (i - j).clamp(-4, 4) + 4
        c2p = torch.matmul(q, self.positions.transpose(-1, -2))
        c2p = torch.gather(c2p, -1, distance[None, None].expand(q.shape[0], H, -1, -1))
        return ((q @ k.transpose(-1, -2) + c2p) / math.sqrt(2 * D)).softmax(-1) @ v


class TwoProducts(Projected):
    """Two products are added: either is attention, with the other as its bias."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.u, self.w = nn.Parameter(torch.randn(H, 1, D)), nn.Parameter(torch.randn(D, D))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        content = (q + self.u) @ k.transpose(-1, -2)
        return ((content + (q @ self.w) @ k.transpose(-1, -2)) * D**-0.5).softmax(-1) @ v


class TalkingHeads(Projected):
    """Shazeer et al. 2020: the probabilities are mixed over heads."""

    before = False

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.mix = nn.Parameter(torch.randn(H, H))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        attn = scores(q, k)
        if self.before:
            return torch.einsum("bhij,hg->bgij", attn, self.mix).softmax(-1) @ v
        return torch.einsum("bhij,hg->bgij", attn.softmax(-1), self.mix) @ v


class TalkingBefore(TalkingHeads):
    """The scores are mixed over heads."""

    before = True


_THROUGH = "scores pass through"
CASES: dict[str, LookAlike] = {
    "distances": read(_distances, "bias"),
    "disentangled": LookAlike(Case(Disentangled, PLAIN, "bias")),
    "two_products": LookAlike(Case(TwoProducts, PLAIN, "bias")),
    "divided_by_keys": refused(_divided_by_keys, "tensor by Div", GATED),
    "multiplied_by_pairs": refused(_multiplied_by_pairs, "tensor by Mul", PAIRS),
    "whole_numbers": refused(_whole_numbers, "cast to int32"),
    "rounded": refused(_rounded, f"{_THROUGH} Round"),
    "clipped": refused(_clipped, "clamped by Clip"),
    "finite_after_mask": refused(_finite_after_mask, "made finite after they are masked", PADDED),
    "leaky": refused(_leaky, f"{_THROUGH} LeakyRelu"),
    "talking_heads": refused(TalkingHeads, "probabilities .* heads are mixed"),
    "talking_before": refused(TalkingBefore, "scores .* heads are mixed"),
    "relu": uncounted(_relu),
    "sigmoid": uncounted(_sigmoid),
    "sparsemax": uncounted(_sparsemax),
    "exponentials": refused(_exponentials, "nothing in the exported graph stands for it"),
}
