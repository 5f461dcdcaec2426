"""The feed-forward block of the first Transformer and of T5: two projections with a ReLU between them."""

from __future__ import annotations

import torch
from torch import nn


class ReluFeedForward(nn.Module):
    """`W2 relu(W1 x + b1) + b2` (Vaswani et al. 2017, section 3.3); T5 leaves the biases out.

    Args:
        width: Model dim E.
        hidden: Size between the projections, 4 E in most models.
        bias: Whether there are b1 and b2.
    """

    def __init__(self, width: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(self.up(x_BTE).relu())
        return y_BTE
