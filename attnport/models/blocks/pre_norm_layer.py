"""A pre-norm transformer layer: self-attention and feed-forward, each on the norm of its input and added to it."""

from __future__ import annotations

import torch

from attnport.models.blocks.pre_norm_parts import PreNormParts


class PreNormLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `y = a + f(norm(a))`; the attention is a `MultiHeadAttention`."""

    def forward(self, x_BTE: torch.Tensor, mask_BHTT: torch.Tensor | None) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; the mask is the attention's."""
        normed_BTE = self.attention_norm(x_BTE)
        return self.plus_feed_forward(x_BTE + self.attention(normed_BTE, normed_BTE, mask_BHTT))
