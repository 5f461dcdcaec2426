"""Multi-head self-attention with two masks at once, which hide padding and later tokens.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3: what a decoder does on a batch of sequences of
different lengths. On x [B, T, E], for query i and key j of each head of item b:

    y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        m[b, i, j] = 0 where j <= i and keep[b, j], else -inf

Padding may be on either side: a padded query on the left has no key, and its attention is zero.
Cost: 8 B T E^2 + 4 B T^2 E floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class MaskedSelfAttentionConfig:
    """Sizes: `width` is E, `heads` is H, the head dim D is E / H."""

    width: int = 64
    heads: int = 4


class MaskedSelfAttention(ProjectedAttention):
    """Projections, attention to the keys that both masks allow, output projection."""

    def __init__(self, config: MaskedSelfAttentionConfig) -> None:
        super().__init__(config.width, config.heads)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to the real ones up to it.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding.

        Returns:
            [B, T, E].
        """
        T = x.shape[1]
        allowed_B1TT = masks.combine(masks.causal(T, T, device=x.device), masks.padding(attention_mask))
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=allowed_B1TT)
        return self.merge(mixed_BHTD)


def make(config: MaskedSelfAttentionConfig = MaskedSelfAttentionConfig(), seed: int = 0) -> MaskedSelfAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: MaskedSelfAttention(config), seed)


def spec(config: MaskedSelfAttentionConfig = MaskedSelfAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = sequence_contract(config.width, masks=(MaskSpec(("padding", "causal"), "attention_mask"),), positions="none")
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
