"""Grouped-query attention: several query heads share one key and value head, so that a decoder's cache is smaller.

Ainslie, Lee-Thorp, de Jong, Zemlyanskiy, Lebrón, Sanghai, "GQA: Training Generalized Multi-Query Transformer Models
from Multi-Head Checkpoints" (2023). With G = 1 it is multi-query attention (Shazeer, "Fast Transformer Decoding: One
Write-Head is All You Need", 2019), with G = H multi-head attention. On x [B, T, E], query head h uses group
g(h) = floor(h G / H):

    y = Wo concat_h softmax(q_h k_g(h)^T / sqrt(D) + m) v_g(h)
                                                        m[b, i, j] = 0 where j <= i and keep[b, j], else -inf

Cost: 4 B T E^2 (1 + G / H) + 4 B T^2 E floating-point operations; a cache holds 2 B T G D numbers instead of 2 B T E.
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
class GroupedQueryAttentionConfig:
    """Sizes: `width` is E, `heads` is H, `groups` is G, which divides H."""

    width: int = 64
    heads: int = 4
    groups: int = 2


class GroupedQueryAttention(ProjectedAttention):
    """Projections to H query heads and G key and value heads, causal attention, output projection."""

    def __init__(self, config: GroupedQueryAttentionConfig) -> None:
        super().__init__(config.width, config.heads, groups=config.groups)

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
        q_BHTD, k_BGTD, v_BGTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BGTD, v_BGTD, attn_mask=allowed_B1TT, enable_gqa=True
        )
        return self.merge(mixed_BHTD)


def make(config: GroupedQueryAttentionConfig = GroupedQueryAttentionConfig(), seed: int = 0) -> GroupedQueryAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: GroupedQueryAttention(config), seed)


def spec(config: GroupedQueryAttentionConfig = GroupedQueryAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = sequence_contract(config.width, masks=(MaskSpec(("padding", "causal"), "attention_mask"),), positions="none")
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
