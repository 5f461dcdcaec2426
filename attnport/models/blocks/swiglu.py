"""The gated feed-forward block of LLaMA and PaLM, each position by itself."""

from __future__ import annotations

import torch
from torch import nn


class SwiGLU(nn.Module):
    """`W2 (silu(W1 x) * W3 x)` without biases (Shazeer 2020, "GLU Variants Improve Transformer").

    Args:
        width: Model dim E.
        hidden: Size of the gate and of what it gates; 8/3 E has as many weights as a plain block of 4 E.
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
