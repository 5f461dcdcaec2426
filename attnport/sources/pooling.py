"""The pooling of sentence-transformers, as an exportable module: one vector for each sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""The ways to pool, in the order in which sentence-transformers joins the vectors of several."""


class Pooling(nn.Module):
    """One vector for each sentence, of the vectors of its real tokens.

    `cls` is the first real token, wherever padding stands, `lasttoken` the last; `weightedmean` weighs a token by its
    place, from 1; several modes give their vectors side by side.

    Source: sentence-transformers' `Pooling`. A row without a real token, whose result is undefined there, gives zero.
    """

    def __init__(self, modes: Sequence[str], *, include_prompt: bool = True) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.include_prompt = include_prompt

    def forward(
        self, hidden_BTE: torch.Tensor, attention_mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`[B,T,E]` and keep-masks `[B,T]` to `[B,E]`, or a multiple of E for several modes.

        Args:
            hidden_BTE: The vectors of tokens.
            attention_mask_BT: Nonzero for real tokens.
            pooled_mask_BT: Nonzero for those of them that are pooled; None = all.
        """
        real_BT = attention_mask_BT.to(torch.bool)
        keep_BT = real_BT if pooled_mask_BT is None else real_BT & pooled_mask_BT.to(torch.bool)
        return torch.cat([self._pooled(mode, hidden_BTE, keep_BT, real_BT) for mode in self.modes], -1)

    def _pooled(
        self, mode: str, hidden_BTE: torch.Tensor, keep_BT: torch.Tensor, real_BT: torch.Tensor
    ) -> torch.Tensor:
        keep_BT1 = keep_BT.unsqueeze(-1)
        if mode == "max":
            low = torch.finfo(hidden_BTE.dtype).min
            return torch.where(keep_BT1.any(1), torch.where(keep_BT1, hidden_BTE, low).amax(1), 0.0)
        position_T = torch.arange(hidden_BTE.shape[1], device=hidden_BTE.device)
        if mode in ("cls", "lasttoken"):
            # One place holds the token and all others zero, so that the sum is the token itself.
            one_BT = position_T == (_first(keep_BT, position_T) if mode == "cls" else _last(keep_BT, position_T))
            return torch.where((one_BT & keep_BT).unsqueeze(-1), hidden_BTE, 0.0).sum(1)
        # `where`, not a product: padded rows may be large, and in half precision the sum could overflow.
        kept_BTE = torch.where(keep_BT1, hidden_BTE, 0.0)
        if mode == "weightedmean":
            place_BT = torch.where(keep_BT, position_T - _first(real_BT, position_T) + 1, 0).to(hidden_BTE.dtype)
            share_BT = place_BT / hidden_BTE.shape[1]  # the sum of places themselves could overflow too
            share_BT = share_BT / share_BT.sum(1, keepdim=True).clamp(min=1e-6)
            return (kept_BTE * share_BT.unsqueeze(-1)).sum(1)
        count_B1 = keep_BT1.sum(1).clamp(min=1).to(hidden_BTE.dtype)
        return kept_BTE.sum(1) / (count_B1.sqrt() if mode == "mean_sqrt_len_tokens" else count_B1)


def _first(keep_BT: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """The first position that is kept, `[B,1]`."""
    return torch.where(keep_BT, position_T, position_T.shape[0]).amin(1, keepdim=True)


def _last(keep_BT: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """The last position that is kept, `[B,1]`."""
    return torch.where(keep_BT, position_T, -1).amax(1, keepdim=True)


class Normalise(nn.Module):
    """Vectors of length 1; zero stays zero. Source: sentence-transformers' `Normalize`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[...,E]` to `[...,E]`."""
        # The norm is in float32, since a sum of squares overflows in half precision. The minimum is for a zero vector.
        wide = x if x.dtype == torch.float64 else x.float()
        norm = wide.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        return (wide / norm).to(x.dtype)


class Projection(nn.Module):
    """A linear layer with an activation, and what came in added where that is wanted.

    Source: sentence-transformers' `Dense`. The names of weights are those of its files.
    """

    def __init__(self, size: int, out: int, activation: nn.Module, *, bias: bool, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out, bias=bias)
        self.activation = activation
        self.residual: nn.Module | None = None
        if residual:
            self.residual = nn.Identity() if size == out else nn.Linear(size, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[...,size]` to `[...,out]`."""
        projected: torch.Tensor = self.activation(self.linear(x))
        return projected if self.residual is None else projected + self.residual(x)


class LayerNorm(nn.Module):
    """Source: sentence-transformers' `LayerNorm`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[...,E]` to `[...,E]`."""
        normed: torch.Tensor = self.norm(x)
        return normed


class Scores(nn.Module):
    """The activation of a cross-encoder; one label gives one number for each item.

    Source: sentence-transformers' `CrossEncoder.predict`.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, logits_BL: torch.Tensor) -> torch.Tensor:
        """`[B,L]` to `[B,L]`, or to `[B]` for one label."""
        scores: torch.Tensor = self.activation(logits_BL)
        return scores.squeeze(-1) if logits_BL.shape[-1] == 1 else scores
