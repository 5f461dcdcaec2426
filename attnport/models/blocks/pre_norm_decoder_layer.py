"""A pre-norm decoder layer: self-attention, cross-attention to a memory and feed-forward, each behind its norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from attnport.models.blocks.pre_norm_parts import PreNormParts


class PreNormDecoderLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `c = a + cross_attention(norm(a), memory)`, `y = c + f(norm(c))`.

    Args:
        norm: Makes a norm.
        attention: A `MultiHeadAttention`, of x to x.
        cross_attention: A `MultiHeadAttention`, of x to the memory.
        feed_forward: f, from [B, S, E] to [B, S, E].
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
    ) -> None:
        super().__init__(norm, attention, feed_forward)
        self.cross_norm = norm()
        self.cross_attention = cross_attention

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, mask_BHSS: torch.Tensor, memory_mask_B1ST: torch.Tensor
    ) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E], reading the memory; the masks are the attentions'."""
        normed_BSE = self.attention_norm(x_BSE)
        x_BSE = x_BSE + self.attention(normed_BSE, normed_BSE, mask_BHSS)
        x_BSE = x_BSE + self.cross_attention(self.cross_norm(x_BSE), memory_BTE, memory_mask_B1ST)
        return self.plus_feed_forward(x_BSE)
