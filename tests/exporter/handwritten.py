"""Attentions as people write them: small modules with their contract, for tests that capture and lower them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec

E, H, D = 16, 4, 4
BATCH, SEQ, MEM = Dim("batch", 1, 2, 8), Dim("seq", 1, 5, 64), Dim("mem", 1, 7, 64)
X = TensorSpec("x", "float32", ("batch", "seq", E))
MEMORY = TensorSpec("memory", "float32", ("batch", "mem", E))
MASK = TensorSpec("mask", "int64", ("batch", "seq"))
HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq"))
Y = TensorSpec("y", "float32", ("batch", "seq", E))
PADDING = MaskSpec(("padding",), "mask")


class Projected(nn.Module):
    """Projections around `attend(q, k, v, *masks)`, which a case gives; q, k, v are `[B,H,S,D]`."""

    def __init__(self, attend: Callable[..., Any], heads: int = H, key_heads: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.attend, self.heads, self.key_heads = attend, heads, key_heads or heads
        self.q = nn.Linear(E, E)
        self.k = nn.Linear(E, E // heads * self.key_heads)
        self.v = nn.Linear(E, E // heads * self.key_heads)

    def split(self, x: Any, heads: int) -> Any:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def forward(self, x: Any, memory: Any = None, mask: Any = None, bias: Any = None, hidden: Any = None) -> Any:
        source = x if memory is None else memory
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(source), self.key_heads), self.v(source)
        rest = [each for each in (mask, bias, hidden) if each is not None]
        out = self.attend(q, k, self.split(v, self.key_heads), *rest)
        out, *more = out if isinstance(out, tuple) else (out,)
        y = out.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
        return (y, *more) if more else y


@dataclass(frozen=True)
class Case:
    """A module, what goes in and out, and the mask that recognition should read."""

    module: Callable[[], nn.Module]
    io: IOContract
    mask: str
    call: str = "softmax"

    def feeds(
        self, sizes: dict[str, int], *, seed: int = 0, empty_row: bool = False
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Random inputs; masks hide some keys of each batch row, or all of row 0's."""
        random = np.random.default_rng(seed)
        made: dict[str, np.ndarray[Any, Any]] = {}
        for spec in self.io.inputs:
            shape = spec.shape(sizes)
            if spec.name in ("mask", "hidden"):
                keep = np.ones(shape)
                keep[..., -max(1, shape[-1] // 3) :] = shape[-1] == 1
                keep[-1] = 1
                if empty_row:
                    keep[0] = 0
                made[spec.name] = (keep if spec.name == "mask" else 1 - keep).astype(spec.dtype)
            else:
                made[spec.name] = random.standard_normal(shape).astype(spec.dtype)
        return made

    def reference(self, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The module in float64."""
        module = self.module().eval().double()
        given = {k: torch.from_numpy(v.astype(np.float64) if v.dtype == np.float32 else v) for k, v in feeds.items()}
        with torch.no_grad():
            found = module(**given)
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]


def contract(
    *inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (Y,), masks: tuple[MaskSpec, ...] = ()
) -> IOContract:
    used = {dim for spec in (*inputs, *outputs) for dim in spec.dims}
    return IOContract(inputs, outputs, tuple(dim for dim in (BATCH, SEQ, MEM) if dim.name in used), masks)


def _scores(q: Any, k: Any, scale: float = 1 / math.sqrt(D)) -> Any:
    return q @ k.transpose(-1, -2) * scale


def _masked_fill(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _scores(q, k).masked_fill(mask[:, None, None, :] == 0, -math.inf).softmax(-1) @ v


def _where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    return torch.where(mask.bool()[:, None, None, :], scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


def _added(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (_scores(q, k) + (1.0 - mask[:, None, None, :].to(q.dtype)) * -10000.0).softmax(-1) @ v


def _added_before_scale(q: Any, k: Any, v: Any, mask: Any) -> Any:
    low = torch.where(mask[:, None, None, :] != 0, 0.0, -1e9).to(q.dtype)
    return ((q @ k.transpose(-1, -2) + low) / math.sqrt(D)).softmax(-1) @ v


def _inverted(q: Any, k: Any, v: Any, mask: Any) -> Any:
    hidden = 1.0 - mask[:, None, None, :].to(q.dtype)
    return (_scores(q, k) + hidden.masked_fill(hidden.bool(), -1e30)).softmax(-1) @ v


def _padding_sdpa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v, attn_mask=mask.bool()[:, None, None, :].expand(-1, -1, q.shape[2], -1))


def _causal_triu(q: Any, k: Any, v: Any) -> Any:
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return _scores(q, k).masked_fill(later, -math.inf).softmax(-1) @ v


def _causal_padding(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() & mask.bool()[:, None, None, :]
    return sdpa(q, k, v, attn_mask=keep)


def _window(q: Any, k: Any, v: Any) -> Any:
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    return _scores(q, k).masked_fill((i - j > 2) | (j - i > 2), -math.inf).softmax(-1) @ v


def _alibi(q: Any, k: Any, v: Any, mask: Any) -> Any:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=q.dtype)[:, None, None]
    distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
    scores = _scores(q, k) + slopes * distance.to(q.dtype)
    return scores.masked_fill(mask[:, None, None, :] == 0, -math.inf).softmax(-1) @ v


def _penalty(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (_scores(q, k) + torch.where(mask[:, None, None, :] != 0, 0.0, -5.0).to(q.dtype)).softmax(-1) @ v


def _float_hides(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """A truth value of a float: no mask that is written anew, so the graph's own tensor is taken."""
    return _scores(q, k).masked_fill(hidden[:, None, None, :] > 0.5, -math.inf).softmax(-1) @ v


def _float_keeps(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    keep = (hidden < 0.5)[:, None, None, :].expand(-1, -1, q.shape[2], -1)
    return sdpa(q, k, v, attn_mask=keep)


def _float_added(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return (_scores(q, k) + torch.where(hidden > 0.5, -2e4, 0.0)[:, None, None, :].to(q.dtype)).softmax(-1) @ v


def _weights_too(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = _scores(q, k).masked_fill(mask[:, None, None, :] == 0, -math.inf).softmax(-1)
    return weights @ v, weights


def _biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return sdpa(q, k, v, attn_mask=bias)


def _bias_and_mask(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
    return sdpa(q, k, v, attn_mask=torch.where(mask.bool()[:, None, None, :], bias, -math.inf).to(q.dtype))


class OneHead(nn.Module):
    """Scores of rank 3, nothing but attention; its output is the graph's."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return (torch.bmm(q, k.transpose(1, 2)) / 3.0).softmax(-1) @ v


class OneHeadHidden(nn.Module):
    """Scores of rank 3 and a mask of that rank that is taken as it is."""

    def forward(self, q: Any, k: Any, v: Any, hidden: Any) -> Any:
        return (q @ k.transpose(1, 2)).masked_fill((hidden > 0.5)[:, None, :], -math.inf).softmax(-1) @ v


class OneHeadOperator(nn.Module):
    """`scaled_dot_product_attention` over queries of rank 3, with a mask of their rank."""

    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return sdpa(q, k, v, attn_mask=mask.bool()[:, None, :].expand(-1, q.shape[1], -1)) + sdpa(q, k, v)


class RawOperator(nn.Module):
    """q, k, v are inputs and the output is the attention's."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, scale=0.3)


class Stacked(nn.Module):
    """Two attentions of one module, the second fed by the first without anything between; and one softmax apart."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        first = sdpa(q, k, v)
        return sdpa(first, k, v, is_causal=True) * k.softmax(-1)[:, :, :1, :1]


class LearnedQueries(nn.Module):
    """One set of queries for every batch row: the product broadcasts over the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.queries = nn.Parameter(torch.randn(1, H, 3, D))

    def forward(self, k: Any, v: Any) -> Any:
        return (self.queries @ k.transpose(-1, -2)).softmax(-1) @ v


def _gqa(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = mask.bool()[:, None, None, :].expand(-1, -1, q.shape[2], -1)
    return sdpa(q, k, v, attn_mask=keep, enable_gqa=True)


def _repeated(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep = mask.bool()[:, None, None, :].expand(-1, -1, q.shape[2], -1)
    return sdpa(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=keep)


def _heads(name: str, length: str) -> TensorSpec:
    return TensorSpec(name, "float32", ("batch", H, length, D))


_PADDED = contract(X, MASK, masks=(PADDING,))
_SDPA = "scaled_dot_product_attention"
_MEMORY_MASK = TensorSpec("mask", "int64", ("batch", "mem"))


def _flat(name: str, length: str) -> TensorSpec:
    return TensorSpec(name, "float32", ("batch", length, E))


CASES: dict[str, Case] = {
    "masked_fill": Case(lambda: Projected(_masked_fill), _PADDED, "padding(mask)"),
    "where": Case(lambda: Projected(_where), _PADDED, "padding(mask)"),
    "added": Case(lambda: Projected(_added), _PADDED, "padding(mask)"),
    "added_before_scale": Case(lambda: Projected(_added_before_scale), _PADDED, "padding(mask)"),
    "inverted": Case(lambda: Projected(_inverted), _PADDED, "padding(mask)"),
    "padding_sdpa": Case(lambda: Projected(_padding_sdpa), _PADDED, "padding(mask)", _SDPA),
    "is_causal": Case(lambda: Projected(lambda q, k, v: sdpa(q, k, v, is_causal=True)), contract(X), "causal", _SDPA),
    "causal_triu": Case(lambda: Projected(_causal_triu), contract(X), "causal"),
    "causal_padding": Case(lambda: Projected(_causal_padding), _PADDED, "causal+padding(mask)", _SDPA),
    "window": Case(lambda: Projected(_window), contract(X), "window"),
    "alibi": Case(lambda: Projected(_alibi), _PADDED, "padding+bias(mask)"),
    "penalty": Case(lambda: Projected(_penalty), _PADDED, "bias"),
    "float_hides": Case(lambda: Projected(_float_hides), contract(X, HIDDEN), "padding(hidden)"),
    "float_keeps": Case(lambda: Projected(_float_keeps), contract(X, HIDDEN), "padding(hidden)", _SDPA),
    "float_added": Case(lambda: Projected(_float_added), contract(X, HIDDEN), "padding(hidden)"),
    "one_head_hidden": Case(
        OneHeadHidden,
        contract(
            _flat("q", "seq"), _flat("k", "mem"), _flat("v", "mem"), TensorSpec("hidden", "float32", ("batch", "mem"))
        ),
        "padding(hidden)",
    ),
    "weights_too": Case(
        lambda: Projected(_weights_too),
        contract(X, MASK, outputs=(Y, TensorSpec("weights", "float32", ("batch", H, "seq", "seq"))), masks=(PADDING,)),
        "padding(mask)",
    ),
    "cross": Case(
        lambda: Projected(_masked_fill), contract(X, MEMORY, _MEMORY_MASK, masks=(PADDING,)), "padding(mask)"
    ),
    "cross_causal": Case(
        lambda: Projected(lambda q, k, v: sdpa(q, k, v, is_causal=True)), contract(X, MEMORY), "causal", _SDPA
    ),
    "bias_2d": Case(
        lambda: Projected(_biased), contract(X, TensorSpec("bias", "float32", ("seq", "seq"))), "bias", _SDPA
    ),
    "bias_3d": Case(
        lambda: Projected(_biased), contract(X, TensorSpec("bias", "float32", (H, "seq", "seq"))), "bias", _SDPA
    ),
    "bias_of_keys": Case(
        lambda: Projected(_biased), contract(X, TensorSpec("bias", "float32", ("batch", 1, 1, "seq"))), "bias", _SDPA
    ),
    "bias_and_mask": Case(
        lambda: Projected(_bias_and_mask),
        contract(X, MASK, TensorSpec("bias", "float32", (1, H, "seq", "seq")), masks=(PADDING,)),
        "padding+bias(mask)",
        _SDPA,
    ),
    "gqa": Case(lambda: Projected(_gqa, key_heads=2), _PADDED, "padding(mask)", _SDPA),
    "repeated": Case(lambda: Projected(_repeated, key_heads=2), _PADDED, "padding(mask)", _SDPA),
    "one_head": Case(OneHead, contract(_flat("q", "seq"), _flat("k", "mem"), _flat("v", "mem")), "none"),
    "one_head_operator": Case(
        OneHeadOperator,
        contract(_flat("q", "seq"), _flat("k", "mem"), _flat("v", "mem"), _MEMORY_MASK, masks=(PADDING,)),
        "padding(mask)",
        _SDPA,
    ),
    "raw_operator": Case(
        RawOperator,
        contract(_heads("q", "seq"), _heads("k", "mem"), _heads("v", "mem"), outputs=(_heads("y", "seq"),)),
        "none",
        _SDPA,
    ),
    "learned_queries": Case(
        LearnedQueries,
        contract(_heads("k", "mem"), _heads("v", "mem"), outputs=(TensorSpec("y", "float32", ("batch", H, 3, D)),)),
        "none",
    ),
}
STACKED = Case(
    Stacked,
    contract(_heads("q", "seq"), _heads("k", "mem"), _heads("v", "mem"), outputs=(_heads("y", "seq"),)),
    "none",
    _SDPA,
)
