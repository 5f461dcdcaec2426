"""The feed-forward block of a transformer layer: two projections with a GELU between them, each position by itself."""

from __future__ import annotations

import torch
from torch import nn


class FeedForward(nn.Module):
    """`W2 gelu(W1 x + b1) + b2` (Vaswani et al. 2017, section 3.3, with the exact GELU of Hendrycks and Gimpel 2016).

    Args:
        width: Model dim E.
        hidden: Size between the projections, 4 E in most models.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(self.act(self.up(x_BTE)))
        return y_BTE
