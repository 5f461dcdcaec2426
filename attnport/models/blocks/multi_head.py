"""Multi-head attention from one sequence to another, or to itself, with its projections."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.projected_attention import ProjectedAttention


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
