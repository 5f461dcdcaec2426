"""Softmaxes beside products that are something else."""

from __future__ import annotations

from typing import Any

import torch
from spellings.case import PADDED, Case, E, Projected, X, contract, flat, heads
from torch import nn

from attnport.dims import TensorSpec
from lookalikes.case import LookAlike, refused


class Linear(Projected):
    """Efficient attention: softmaxes of q and of k, and no scores at all."""

    def __init__(self) -> None:
        super().__init__(self.attention)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        return q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v)


class Additive(nn.Module):
    """Bahdanau's: the scores are a layer's, not a product of q and k."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(31)
        self.w, self.u, self.v = nn.Linear(E, E), nn.Linear(E, E), nn.Linear(E, 1)

    def forward(self, x: Any, mask: Any) -> Any:
        energy = self.v(torch.tanh(self.w(x)[:, :, None] + self.u(x)[:, None])).squeeze(-1)
        return energy.masked_fill(mask[:, None, :] == 0, -1e9).softmax(-1) @ x


class Synthesizer(nn.Module):
    """Tay et al. 2020: the scores are learned, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(32)
        self.table = nn.Parameter(torch.randn(100, 100))

    def forward(self, x: Any) -> Any:
        return self.table[: x.shape[1], : x.shape[1]].softmax(-1) @ x


class Pooling(nn.Module):
    """Attentive pooling: a layer scores each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(33)
        self.score = nn.Linear(E, 1)

    def forward(self, x: Any) -> Any:
        return torch.bmm(self.score(x).softmax(1).transpose(1, 2), x)


class Router(nn.Module):
    """A mixture of experts: the router's softmax weighs what the experts say."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(34)
        self.router = nn.Linear(E, 3)
        self.experts = nn.Parameter(torch.randn(3, E, E) / 4)

    def forward(self, x: Any) -> Any:
        said = torch.einsum("bse,xed->bsxd", x, self.experts)
        return torch.einsum("bsx,bsxd->bsd", self.router(x).softmax(-1), said)


class Expectation(nn.Module):
    """A classifier's probabilities times its table of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(35)
        self.table = nn.Embedding(7, E)
        self.classify = nn.Linear(E, 7)

    def forward(self, x: Any) -> Any:
        return self.classify(x).softmax(-1) @ self.table.weight


class Branched(nn.Module):
    """Attention inside a branch that the data chooses."""

    def forward(self, x: Any) -> Any:
        def attend(x: Any) -> Any:
            return (x @ x.transpose(1, 2)).softmax(-1) @ x

        def leave(x: Any) -> Any:
            return x.clone()

        return torch.cond(x.sum() > 0, attend, leave, (x,))


class Temperature(nn.Module):
    """The scale comes in with each call."""

    def forward(self, q: Any, k: Any, v: Any, cap: Any) -> Any:
        return ((q @ k.transpose(-1, -2)) / cap).softmax(-1) @ v


_QKV = (heads("q", "seq"), heads("k", "mem"), heads("v", "mem"))
_THROUGH = "scores pass through"
CASES: dict[str, LookAlike] = {
    "linear_attention": refused(Linear, ("product", "product")),
    "additive": refused(Additive, "product", PADDED),
    "synthesizer": refused(Synthesizer, f"{_THROUGH} Slice"),
    "pooling": refused(Pooling, "product", contract(X, outputs=(flat("y", 1),))),
    "router": refused(Router, "product"),
    "expectation": refused(Expectation, "product"),
    "branched": refused(Branched, "control flow operator If"),
    "temperature": LookAlike(
        Case(Temperature, contract(*_QKV, TensorSpec("cap", "float32", (1,)), outputs=(heads("y", "seq"),)), "none")
    ),
}
