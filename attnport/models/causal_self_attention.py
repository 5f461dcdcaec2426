"""Causal multi-head self-attention: a token attends to itself and to those before it, as a language model must.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3, as it stands alone in Radford et al., "Improving
Language Understanding by Generative Pre-Training" (2018). On x [B, T, E], for query i and key j of each head:

    y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        m[i, j] = 0 where j <= i, else -inf

Cost: 8 B T E^2 + 4 B T^2 E floating-point operations; a kernel that skips what is hidden does half of the second term.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class CausalSelfAttentionConfig:
    """Sizes: `width` is E, `heads` is H, the head dim D is E / H."""

    width: int = 64
    heads: int = 4


class CausalSelfAttention(ProjectedAttention):
    """Projections, attention under a lower triangle, output projection."""

    def __init__(self, config: CausalSelfAttentionConfig) -> None:
        super().__init__(config.width, config.heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; row i depends on the rows up to i only."""
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.merge(mixed_BHTD)


def make(config: CausalSelfAttentionConfig = CausalSelfAttentionConfig(), seed: int = 0) -> CausalSelfAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: CausalSelfAttention(config), seed)


def spec(config: CausalSelfAttentionConfig = CausalSelfAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = sequence_contract(config.width, inputs=(), masks=(MaskSpec(("causal",)),), positions="none")
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
