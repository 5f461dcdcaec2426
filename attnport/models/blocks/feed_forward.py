"""The feed-forward blocks of transformer layers: two projections, each position by itself."""

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


class SwiGLU(nn.Module):
    """`W2 (silu(W1 x) * W3 x)` without biases (Shazeer 2020, "GLU Variants Improve Transformer").

    Args:
        width: Model dim E.
        hidden: Size of the gate and of the gated vector; 8/3 E has as many weights as a plain block of 4 E.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(nn.functional.silu(self.gate(x_BTE)) * self.up(x_BTE))
        return y_BTE
