"""The projections to heads: queries of one sequence, keys and values of the same or of another sequence."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.attention_parts import split_heads


class QueryKeyValue(nn.Module):
    """Three projections, each split into heads (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: Model dim E.
        heads: H.
        groups: G, the heads of keys and values, a divisor of H; None = H.
        depth: Head dim D; None = E / H.
        bias: Whether the projections have a bias.
    """

    def __init__(
        self, width: int, heads: int, *, groups: int | None = None, depth: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups or heads
        depth = depth or width // heads
        self.query = nn.Linear(width, heads * depth, bias=bias)
        self.key = nn.Linear(width, self.groups * depth, bias=bias)
        self.value = nn.Linear(width, self.groups * depth, bias=bias)

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, H, S, D] of `x_BSE`; k and v [B, G, T, D] of `memory_BTE`, or of `x_BSE` if that is None."""
        read_BTE = x_BSE if memory_BTE is None else memory_BTE
        q_BHSD = split_heads(self.query(x_BSE), self.heads)
        k_BGTD, v_BGTD = (split_heads(project(read_BTE), self.groups) for project in (self.key, self.value))
        return q_BHSD, k_BGTD, v_BGTD
