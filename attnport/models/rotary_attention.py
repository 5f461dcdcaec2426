"""Self-attention with rotary positions: queries and keys are rotated, so that scores depend on distances only.

Su, Lu, Pan, Murtadha, Wen, Liu, "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), equation 16.
On x [B, T, E], with R(p) the rotation of each pair of a head's numbers by p base^(-2i/D):

    y = Wo concat_h softmax((R(i) q_i)^T (R(j) k_j) / sqrt(D) + m) v        (R(i) q)^T (R(j) k) = q^T R(j - i) k
                                                                             m[b, j] = 0 where keep[b, j], else -inf

Cost: 8 B T E^2 + 4 B T^2 E floating-point operations, and 6 B T E for the rotations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention
from attnport.models.blocks.positions import RotaryPositions


@dataclass(frozen=True)
class RotaryAttentionConfig:
    """Sizes: `width` is E, `heads` is H, the head dim D is E / H and even; `base` sets the longest wavelength."""

    width: int = 64
    heads: int = 4
    base: float = 10000.0


class RotaryAttention(ProjectedAttention):
    """Projections, rotations, attention to the keys that are not padding, output projection."""

    def __init__(self, config: RotaryAttentionConfig) -> None:
        super().__init__(config.width, config.heads)
        self.positions = RotaryPositions(config.width // config.heads, config.base)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to the real ones.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding.

        Returns:
            [B, T, E].
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            self.positions(q_BHTD), self.positions(k_BHTD), v_BHTD, attn_mask=masks.padding(attention_mask)
        )
        return self.merge(mixed_BHTD)


def make(config: RotaryAttentionConfig = RotaryAttentionConfig(), seed: int = 0) -> RotaryAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: RotaryAttention(config), seed)


def spec(config: RotaryAttentionConfig = RotaryAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    return model_spec(__name__, sequence_contract(config.width, positions="none"), lambda: make(config, seed))


SPEC = spec()
