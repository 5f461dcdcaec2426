"""Funnel attention: pooled queries attend to all tokens, and each result is repeated for the tokens of its pool.

Dai, Lai, Yang, Le, "Funnel-Transformer: Filtering out Sequential Redundancy for Efficient Language Processing" (2020),
sections 2.2 (pool-query-only attention) and 2.3 (the decoder's upsampling). On x [B, T, E], by a factor of P:

    h = pool(x) [B, ceil(T / P), E]                          the mean of each P tokens
    a_s = Wo softmax_j(q_s k_j / sqrt(D)) v_j                q = Wq h, k = Wk x, v = Wv x
    y_i = x_i + norm(h + a)_(i div P)                        each pooled vector for all P tokens of its pool

The mean is over the tokens that are not padding, so that a sequence's end does not depend on the padding after it. The
paper's relative positions are left out. Cost: (4 + 4 / P) B T E^2 + 4 B T^2 E / P floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.chunks import cut
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class FunnelConfig:
    """`width` is E, `heads` is H, `pool` is P."""

    width: int = 64
    heads: int = 4
    pool: int = 2


class FunnelAttention(ProjectedAttention):
    """Multi-head attention from pooled tokens to all, upsampled to the number of tokens."""

    def __init__(self, config: FunnelConfig) -> None:
        super().__init__(config.width, config.heads)
        self.pool = config.pool
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every S = ceil(T / P) pooled tokens to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        pooled_BSE = self.pooled(x, attention_mask)
        q_BHSD, k_BHTD, v_BHTD = self.project(pooled_BSE, x)
        allowed_B11T = masks.padding(attention_mask)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B11T)
        short_BSE: torch.Tensor = self.norm(pooled_BSE + self.merge(mixed_BHSD))
        of_token_T = torch.arange(x.shape[1], device=x.device) // self.pool
        return x + short_BSE[:, of_token_T]

    def pooled(self, x_BTE: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """The mean of each P tokens over those that are not padding, or zero if all are padding, [B, S, E]."""
        keep_BT1 = attention_mask_BT[..., None].to(x_BTE.dtype)
        sum_BSE = cut(x_BTE * keep_BT1, self.pool).sum(dim=2)
        count_BS1 = cut(keep_BT1, self.pool).sum(dim=2)
        return sum_BSE / count_BS1.clamp(min=1)


def make(config: FunnelConfig = FunnelConfig(), seed: int = 0) -> FunnelAttention:
    """A `FunnelAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: FunnelAttention(config), seed)


def spec(config: FunnelConfig = FunnelConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(__name__, sequence_contract(config.width), lambda: make(config, seed))


SPEC = spec()
