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

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import torch_builders as masks
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.attention_parts import merge_heads, split_heads
from attnport.models.blocks.weights import build


@dataclass(frozen=True)
class GroupedQueryAttentionConfig:
    """Sizes: `width` is E, `heads` is H, `groups` is G, which divides H."""

    width: int = 64
    heads: int = 4
    groups: int = 2


MULTI_QUERY = GroupedQueryAttentionConfig(groups=1)


class GroupedQueryAttention(nn.Module):
    """Projections to H query heads and G key and value heads, causal attention, output projection."""

    def __init__(self, config: GroupedQueryAttentionConfig) -> None:
        super().__init__()
        self.heads, self.groups = config.heads, config.groups
        grouped = config.width // config.heads * config.groups
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, grouped)
        self.value = nn.Linear(config.width, grouped)
        self.out = nn.Linear(config.width, config.width)

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
        q_BHTD = split_heads(self.query(x), self.heads)
        k_BGTD, v_BGTD = split_heads(self.key(x), self.groups), split_heads(self.value(x), self.groups)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BGTD, v_BGTD, attn_mask=allowed_B1TT, enable_gqa=True
        )
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
        return y_BTE


def make(config: GroupedQueryAttentionConfig = GroupedQueryAttentionConfig(), seed: int = 0) -> GroupedQueryAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: GroupedQueryAttention(config), seed)


def spec(config: GroupedQueryAttentionConfig = GroupedQueryAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    return ModelSpec(
        name="grouped_query_attention",
        source=Source(text="grouped_query_attention"),
        io=IOContract(
            inputs=(
                TensorSpec("x", "float32", ("batch", "seq", config.width)),
                TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2),
            ),
            outputs=(TensorSpec("y", "float32", ("batch", "seq", config.width)),),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, 128, 512)),
            masks=(MaskSpec(("padding", "causal"), "attention_mask"),),
            positions="none",
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
