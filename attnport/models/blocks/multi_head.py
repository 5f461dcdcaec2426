"""Multi-head attention from one sequence to another, or to itself, with its projections."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.attention_parts import merge_heads, split_heads


class MultiHeadAttention(nn.Module):
    """`Wo softmax(q k^T / sqrt(D) + mask) v`, q of x and k, v of memory (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: Model dim E.
        heads: H; the head dim is D = E / H.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, allowed_B1ST: torch.Tensor) -> torch.Tensor:
        """Attends from every position of `x_BSE` to the allowed ones of `memory_BTE`; gives [B, S, E].

        Args:
            x_BSE: What asks.
            memory_BTE: What is read; `x_BSE` again for self-attention.
            allowed_B1ST: True where a key may be attended, 1 for B or S where they do not matter; a row with no True
                gives zero before the output projection.
        """
        q_BHSD, k_BHTD, v_BHTD = (
            split_heads(project(source), self.heads)
            for project, source in ((self.query, x_BSE), (self.key, memory_BTE), (self.value, memory_BTE))
        )
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B1ST)
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE
