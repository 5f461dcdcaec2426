"""The projections around an attention: those to heads before it, and the one that merges the heads after it."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.attention_parts import merge_heads
from attnport.models.blocks.query_key_value import QueryKeyValue


class ProjectedAttention(nn.Module):
    """The base class of attentions with projections: `forward` of a derived class calls `project` and `merge`.

    Args:
        width: Model dim E.
        heads: H.
        groups: G, the heads of keys and values, a divisor of H; None = H.
        depth: Head dim D; None = E / H.
        bias: Whether the four projections have a bias.
    """

    def __init__(
        self, width: int, heads: int, *, groups: int | None = None, depth: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.project = QueryKeyValue(width, heads, groups=groups, depth=depth, bias=bias)
        self.out = nn.Linear(heads * (depth or width // heads), width, bias=bias)

    def merge(self, mixed_BHSD: torch.Tensor) -> torch.Tensor:
        """`Wo concat_h mixed_h`: [B, H, S, D] to [B, S, E]."""
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE
