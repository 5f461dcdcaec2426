"""Learned absolute positions: one vector a position, added to the token's."""

from __future__ import annotations

import torch
from torch import nn


class LearnedPositions(nn.Module):
    """A table of position vectors; position t of a sequence gets row t, whatever is padding.

    Args:
        limit: The longest sequence there is a vector for.
        width: Model dim E.
    """

    def __init__(self, limit: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(limit, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`; T may not exceed the limit."""
        # The size of a tensor, not a number of the configuration: this is what keeps T dynamic through export.
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device)
        added: torch.Tensor = x_BTE + self.table(positions_T)
        return added
