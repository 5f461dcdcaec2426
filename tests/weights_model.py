"""A module that returns its attention's weights, as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Looks(nn.Module):
    """One attention; its output, its weights averaged over the heads."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.attention, self.alone = nn.MultiheadAttention(16, 2, batch_first=True), alone

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mixed_BSE, weights_BST = self.attention(x, x, x, need_weights=True)
        return (weights_BST, weights_BST * 2.0) if self.alone else (weights_BST, mixed_BSE)


def make(alone: bool = False) -> nn.Module:
    """The module, the same every time."""
    torch.manual_seed(0)
    return Looks(alone).eval()


class Named(Looks):
    """The same, its outputs by name."""

    def forward(self, x: torch.Tensor) -> Any:
        weights_BST, mixed_BSE = super().forward(x)
        return {"weights": weights_BST, "mixed": mixed_BSE}


def by_name() -> nn.Module:
    """The module with a dict as its result."""
    torch.manual_seed(0)
    return Named(alone=False).eval()


def only_weights() -> nn.Module:
    """A module whose every output is weights."""
    return make(alone=True)
