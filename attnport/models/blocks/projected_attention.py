"""What stands around an attention: the projections to heads before it, and the one that merges the heads behind it."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.attention_parts import merge_heads
from attnport.models.blocks.query_key_value import QueryKeyValue


class ProjectedAttention(nn.Module):
    """A base class: a derived one says in `forward` how q, k and v, which `project` gives, are mixed for `merge`.

    Args:
        width: Model dim E.
        heads: H.
        groups: G, the heads of keys and values, a divisor of H; None: as many as queries have.
        depth: Head dim D; None: E / H.
        bias: Whether the four projections have one.
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
