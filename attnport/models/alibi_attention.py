"""Causal self-attention with ALiBi: scores fall with the distance, by a slope of each head; no position embeddings.

Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation" (2022).
On x [B, T, E], for query i and key j of head h:

    y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + s_h (j - i) + m) v_h        s_h = 2^(-8 (h + 1) / H)
                                                                m[b, i, j] = 0 where j <= i and keep[b, j], else -inf

Cost: 8 B T E^2 + 4 B T^2 E floating-point operations; written to memory, the bias would take H T^2 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.masks.torch_biases import alibi
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class AlibiAttentionConfig:
    """Sizes: `width` is E, `heads` is H, the head dim D is E / H."""

    width: int = 64
    heads: int = 4


class AlibiAttention(ProjectedAttention):
    """Projections, attention with a bias that grows with the distance, output projection."""

    def __init__(self, config: AlibiAttentionConfig) -> None:
        super().__init__(config.width, config.heads)
        self.heads = config.heads

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
        slopes_1HTT = alibi(self.heads, T, T, dtype=x.dtype, device=x.device)
        bias_BHTT = slopes_1HTT.masked_fill(~allowed_B1TT, -torch.inf)
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=bias_BHTT)
        return self.merge(mixed_BHTD)


def make(config: AlibiAttentionConfig = AlibiAttentionConfig(), seed: int = 0) -> AlibiAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: AlibiAttention(config), seed)


def spec(config: AlibiAttentionConfig = AlibiAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = sequence_contract(
        config.width, masks=(MaskSpec(("padding", "causal", "bias"), "attention_mask"),), positions="none"
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
