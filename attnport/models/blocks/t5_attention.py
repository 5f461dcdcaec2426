"""T5's attention: without scale and without the projections' biases, for a bias that is added to the scores."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from attnport.models.blocks.attention_parts import merge_heads, split_heads

M = TypeVar("M", bound=nn.Module)


class T5Attention(nn.Module):
    """`Wo softmax(q k^T + mask) v`, q of x and k, v of memory (Raffel et al. 2020, and its code).

    The 1 / sqrt(D) of other models is in T5's initial weights: those of q have the variance 1 / (E D).

    Args:
        width: Model dim E.
        heads: H.
        depth: Head dim D; H D need not be E.
    """

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads, self.depth = heads, depth
        self.query = nn.Linear(width, heads * depth, bias=False)
        self.key = nn.Linear(width, heads * depth, bias=False)
        self.value = nn.Linear(width, heads * depth, bias=False)
        self.out = nn.Linear(heads * depth, width, bias=False)

    def forward(self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, mask_BHST: torch.Tensor) -> torch.Tensor:
        """Attends from every position of `x_BSE` to the allowed ones of `memory_BTE`; gives [B, S, E].

        Args:
            x_BSE: What asks.
            memory_BTE: What is read; `x_BSE` again for self-attention.
            mask_BHST: True where a key may be attended, or a bias that is -inf where it may not; 1 for B, H or S where
                they do not matter. A row with no allowed key gives zero.
        """
        q_BHSD, k_BHTD, v_BHTD = (
            split_heads(project(source), self.heads)
            for project, source in ((self.query, x_BSE), (self.key, memory_BTE), (self.value, memory_BTE))
        )
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=mask_BHST, scale=1.0)
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE


def scale_queries(module: M) -> M:
    """Divides the weights of every q in `module` by sqrt(D), in place, from variance 1 / E to T5's; returns it."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, T5Attention):
                part.query.weight.mul_(part.depth**-0.5)
    return module
