"""Multi-head attention from one sequence to another, or to itself, and the projections before and after it."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.model import merge_heads, split_heads


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


class MultiHeadAttention(ProjectedAttention):
    """`Wo softmax(q k^T / sqrt(D) + mask) v`, q of x and k, v of memory (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: Model dim E.
        heads: H.
        depth: Head dim D; None: E / H.
        bias: Whether the projections have one.
        scale: What scores are multiplied by; None: 1 / sqrt(D).
    """

    def __init__(
        self, width: int, heads: int, *, depth: int | None = None, bias: bool = True, scale: float | None = None
    ) -> None:
        super().__init__(width, heads, depth=depth, bias=bias)
        self.scale = scale

    def forward(self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, mask_BHST: torch.Tensor | None) -> torch.Tensor:
        """Attends from every position of `x_BSE` to the allowed ones of `memory_BTE`; returns [B, S, E].

        Args:
            x_BSE: The sequence of the queries.
            memory_BTE: The sequence of the keys and values; `x_BSE` again for self-attention.
            mask_BHST: True where a key may be attended to, or a bias that is -inf where it may not. B, H and S may be
                1; None allows every key. A row with no allowed key gives zero before the output projection.
        """
        q_BHSD, k_BHTD, v_BHTD = self.project(x_BSE, memory_BTE)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BHTD, v_BHTD, attn_mask=mask_BHST, scale=self.scale
        )
        return self.merge(mixed_BHSD)
