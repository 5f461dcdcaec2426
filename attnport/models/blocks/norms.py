"""RMSNorm divides a token's activations by their root mean square."""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """`w x / sqrt(mean(x^2) + eps)` (Zhang and Sennrich 2019): LayerNorm without the mean and the shift.

    The mean is computed in float32 or wider, since the square of a half-precision number above 255 is infinite.

    Args:
        width: Model dim E.
        eps: Added to the mean square, so that a zero token stays zero.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [..., E] to [..., E]."""
        wide_BTE = x_BTE.to(torch.promote_types(x_BTE.dtype, torch.float32))
        normed_BTE = wide_BTE * torch.rsqrt(wide_BTE.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed_BTE.to(x_BTE.dtype)
