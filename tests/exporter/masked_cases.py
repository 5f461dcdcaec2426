"""Attentions between a graph's inputs and its output, with every kind of mask, and their numbers by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from spellings.case import contract
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.dims import TensorSpec
from attnport.masks import MaskSpec

H, G, D = 4, 2, 8
Arrays = dict[str, np.ndarray[Any, Any]]
Mask = Callable[..., np.ndarray[Any, Any]]
SIZES = ({"batch": 2, "seq": 5, "mem": 7}, {"batch": 3, "seq": 1, "mem": 2}, {"batch": 1, "seq": 9, "mem": 4})
MASK = TensorSpec("mask", "int64", ("batch", "seq"))
BIAS = TensorSpec("bias", "float32", (1, H, "seq", "seq"))
LENGTHS = TensorSpec("lengths", "int64", ("batch",))
HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq"))


def _heads(name: str, count: int, length: str) -> TensorSpec:
    return TensorSpec(name, "float32", ("batch", count, length, D))


def _all(i: Any, j: Any, given: Arrays) -> Any:
    return np.ones((1, 1, *np.broadcast_shapes(i.shape, j.shape)), bool)


def _causal(i: Any, j: Any, given: Arrays) -> Any:
    return (j <= i)[None, None]


def _window(i: Any, j: Any, given: Arrays) -> Any:
    return ((j <= i) & (i - j <= 2))[None, None]


def _padding(i: Any, j: Any, given: Arrays) -> Any:
    return (given["mask"] != 0)[:, None, None, :]


def _lengths(i: Any, j: Any, given: Arrays) -> Any:
    return (j < given["lengths"][:, None, None])[:, None]


def _hidden(i: Any, j: Any, given: Arrays) -> Any:
    return (given["hidden"] < 0.5)[:, None, None, :]


def _both(one: Mask, other: Mask) -> Mask:
    return lambda i, j, given: one(i, j, given) & other(i, j, given)


class Attend(torch.nn.Module):
    """An attention between the graph's inputs and its output, with a mask made in the graph."""

    def __init__(self, mask: str, cap: float = 0.0) -> None:
        super().__init__()
        self.mask, self.cap = mask, cap

    def forward(
        self, q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, lengths: Any = None, hidden: Any = None
    ) -> Any:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
        if self.mask == "is_causal":
            return sdpa(q, k, v, is_causal=True, enable_gqa=k.shape[1] != H)
        keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        if "causal" in self.mask or "window" in self.mask:
            keep = keep & (j <= i)
        if "window" in self.mask:
            keep = keep & (i - j <= 2)
        if mask is not None:
            keep = keep & mask.bool()[:, None, None, :]
        if lengths is not None:
            keep = keep & (j < lengths[:, None, None])[:, None]
        if hidden is not None:  # its own tensor is taken, and that is as large as the scores
            keep = (hidden < 0.5)[:, None, None, :].expand(-1, H, q.shape[2], -1)
        if self.cap:
            scores = torch.tanh(q @ k.transpose(-1, -2) / math.sqrt(D) / self.cap) * self.cap
            return scores.masked_fill(~keep, -math.inf).softmax(-1) @ v
        if self.mask == "none":
            return sdpa(q, k, v)
        added = keep if bias is None else torch.where(keep, bias, -math.inf) if mask is not None else bias
        return sdpa(q, k, v, attn_mask=added, enable_gqa=k.shape[1] != H)


@dataclass(frozen=True)
class Case:
    """A mask, its meaning, and whether GroupQueryAttention computes it."""

    mask: str
    keep: Mask
    inputs: tuple[TensorSpec, ...] = ()
    key: str = "seq"
    groups: int = H
    cap: float = 0.0
    grouped_operator: bool = False

    @property
    def can_be_empty(self) -> bool:
        """Whether its inputs can hide every key of a row."""
        return bool({MASK, LENGTHS, HIDDEN} & set(self.inputs))

    @property
    def io(self) -> Any:
        given = (_heads("q", H, "seq"), _heads("k", self.groups, self.key), _heads("v", self.groups, self.key))
        masks = (MaskSpec(("padding",), "mask"),) if MASK in self.inputs else ()
        return contract(*given, *self.inputs, outputs=(_heads("y", H, "seq"),), masks=masks)

    def feeds(self, sizes: dict[str, int], *, empty: bool = False) -> Arrays:
        random = np.random.default_rng(sum(sizes.values()))
        made = {spec.name: random.standard_normal(spec.shape(sizes)) for spec in self.io.inputs}
        if "mask" in made:
            made["mask"] = (made["mask"] < 0.7).astype(int)
            made["mask"][:, 0] = 1
            made["mask"][0] = not empty
        if "hidden" in made:
            made["hidden"] = (made["hidden"] > 0.7).astype(float)
            made["hidden"][:, 0] = 0
            made["hidden"][0] = empty
        if "lengths" in made:
            made["lengths"] = random.integers(1, sizes["seq"] + 1, sizes["batch"])
            made["lengths"][0] = 0 if empty else sizes["seq"]
        return {spec.name: made[spec.name].astype(spec.dtype) for spec in self.io.inputs}

    def reference(self, given: Arrays) -> Any:
        """In float64, by definition: a row with no allowed key gives zero."""
        q, k, v = (given[name].astype(np.float64) for name in "qkv")
        k, v = (np.repeat(value, H // self.groups, axis=1) for value in (k, v))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(D)
        scores = np.tanh(scores / self.cap) * self.cap if self.cap else scores
        i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
        scores = np.where(self.keep(i, j, given), scores + given.get("bias", 0.0), -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
        return weights @ v


CASES = {
    "none": Case("none", _all),
    "cross": Case("none", _all, key="mem"),
    "padding": Case("padding", _padding, (MASK,)),
    "padding_expanded": Case("padding", _hidden, (HIDDEN,)),
    "causal": Case("is_causal", _causal, grouped_operator=True),
    "causal_cross": Case("is_causal", _causal, key="mem"),
    "causal_padding": Case("causal", _both(_causal, _padding), (MASK,)),
    "window": Case("window", _window),
    "bias": Case("bias", _all, (BIAS,)),
    "bias_padding": Case("padding", _padding, (MASK, BIAS)),
    "lengths": Case("lengths", _lengths, (LENGTHS,)),
    "causal_lengths": Case("causal", _both(_causal, _lengths), (LENGTHS,), grouped_operator=True),
    "grouped": Case("padding", _padding, (MASK,), groups=G),
    "grouped_causal": Case("is_causal", _causal, groups=G, grouped_operator=True),
    "softcap": Case("causal", _causal, cap=2.0, grouped_operator=True),
}
