"""The projections of self-attention: queries, keys and values of one sequence, split into heads."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.attention_parts import split_heads


class QueryKeyValue(nn.Module):
    """Three projections of the same tokens (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: Model dim E; a head has D = E / H.
        heads: H.
        bias: Whether the projections have one.
    """

    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)

    def forward(self, x_BTE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of `x_BTE`, each [B, H, T, D]."""
        q_BHTD, k_BHTD, v_BHTD = (
            split_heads(project(x_BTE), self.heads) for project in (self.query, self.key, self.value)
        )
        return q_BHTD, k_BHTD, v_BHTD
