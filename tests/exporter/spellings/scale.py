"""Where people put the scale: before the product, after it, on both sides, in the weights, nowhere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from spellings.case import PADDED, PLAIN, Case, D, Projected, projected

SCALE = D**-0.5


def _fill(scores: Any, mask: Any) -> Any:
    return scores.masked_fill(mask[:, None, None, :] == 0, -math.inf)


def _on_q(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _fill((q * SCALE) @ k.transpose(-2, -1), mask).softmax(-1) @ v


def _q_divided(q: Any, k: Any, v: Any, mask: Any) -> Any:
    q = q / math.sqrt(q.size(-1))
    return _fill(torch.matmul(q, k.transpose(2, 3)), mask).softmax(dim=-1) @ v


def _on_k(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _fill(q @ (k.transpose(-2, -1) * SCALE), mask).softmax(-1) @ v


def _root_on_both(q: Any, k: Any, v: Any) -> Any:
    """Whisper's, for range in half precision."""
    root = D**-0.25
    return ((q * root) @ (k * root).transpose(-1, -2)).softmax(-1) @ v


def _root_divides_both(q: Any, k: Any, v: Any) -> Any:
    root = math.sqrt(math.sqrt(D))
    return ((q / root) @ (k / root).transpose(-1, -2)).softmax(-1) @ v


def _twice(q: Any, k: Any, v: Any) -> Any:
    """A constant factor before, the usual one after."""
    return ((q * 2.0) @ k.transpose(-1, -2) / math.sqrt(D)).softmax(-1) @ v


def _absent(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """T5's."""
    return _fill(torch.matmul(q, k.transpose(3, 2)), mask).softmax(-1) @ v


def _of_a_size(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / torch.sqrt(torch.tensor(k.shape[-1], dtype=q.dtype))).softmax(-1) @ v


def _after_the_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (_fill(q @ k.mT, mask) * SCALE).softmax(-1) @ v


def _in_alpha(q: Any, k: Any, v: Any) -> Any:
    batch, heads, length, depth = q.shape
    empty = torch.empty(batch * heads, length, k.shape[2], dtype=q.dtype)
    q, k = q.reshape(-1, length, depth), k.reshape(batch * heads, -1, depth)
    scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=SCALE)
    return scores.view(batch, heads, length, -1).softmax(-1) @ v


class InWeights(Projected):
    """The scale folded into the query projection when the checkpoint was converted."""

    def __init__(self) -> None:
        super().__init__(lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v)
        with torch.no_grad():
            self.q.weight *= SCALE
            self.q.bias *= SCALE


class Buffer(Projected):
    """The scale as a tensor that the module keeps."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.register_buffer("scale", 1.0 / torch.sqrt(torch.FloatTensor([D])))

    def attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return _fill(torch.matmul(q, k.permute(0, 1, 3, 2)) * self.scale, mask).softmax(dim=-1) @ v


class EachHead(Projected):
    """Swin v2's: a learned, clamped scale for each head."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.logit_scale = nn.Parameter(torch.log(torch.tensor([[[2.0]], [[1.0]], [[3.0]], [[0.5]]])))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        attn = nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        return attn.softmax(dim=-1) @ v


class LearnedScalar(Projected):
    """One learned temperature for all heads, as CLIP's logit scale."""

    def __init__(self) -> None:
        super().__init__(self.attention)
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        return ((q @ k.transpose(-2, -1)) * self.temperature.exp()).softmax(dim=-1) @ v


CASES: dict[str, Case] = {
    "scale_on_q": projected(_on_q, PADDED, "padding(mask)"),
    "scale_divides_q": projected(_q_divided, PADDED, "padding(mask)"),
    "scale_on_k": projected(_on_k, PADDED, "padding(mask)"),
    "scale_root_on_both": projected(_root_on_both),
    "scale_root_divides_both": projected(_root_divides_both),
    "scale_twice": projected(_twice),
    "scale_absent": projected(_absent, PADDED, "padding(mask)"),
    "scale_of_a_size": projected(_of_a_size),
    "scale_after_the_mask": projected(_after_the_mask, PADDED, "padding(mask)"),
    "scale_in_alpha": projected(_in_alpha),
    "scale_in_weights": Case(InWeights, PLAIN, "none"),
    "scale_in_a_buffer": Case(Buffer, PADDED, "padding(mask)"),
    "scale_of_each_head": Case(EachHead, PLAIN, "none"),
    "scale_learned": Case(LearnedScalar, PLAIN, "none"),
}
