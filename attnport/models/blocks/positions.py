"""Absolute positions, learned or sinusoidal: one vector per position, added to the tokens."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.frequencies import Frequencies


class LearnedPositions(nn.Module):
    """A table of position vectors; position t of a sequence gets row t, whether it is padding or not.

    Args:
        limit: The longest sequence, which is the number of vectors.
        width: Model dim E.
    """

    def __init__(self, limit: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(limit, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`; T may not exceed the limit."""
        # The length is the size of a tensor, not a number of the configuration, so that T stays dynamic at export.
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device)
        added: torch.Tensor = x_BTE + self.table(positions_T)
        return added


class SinusoidalPositions(nn.Module):
    """`PE[p, 2i] = sin(p / base^(2i/E))`, `PE[p, 2i+1] = cos(p / base^(2i/E))` (Vaswani et al. 2017, section 3.5).

    Sequences may have any length. The angles are computed in float32 or wider, since in half precision integers above
    2048 are not exact.

    Args:
        width: Model dim E, even.
        base: 10000 in the paper.
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.frequencies = Frequencies(width, base)

    def forward(self, x_BTE: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`, whose first token is at position `offset`."""
        dtype = torch.promote_types(x_BTE.dtype, torch.float32)
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device) + offset
        angles_TF = positions_T[:, None].to(dtype) * self.frequencies(dtype)
        encoding_TE = torch.stack([angles_TF.sin(), angles_TF.cos()], dim=-1).flatten(-2)
        return x_BTE + encoding_TE.to(x_BTE.dtype)
