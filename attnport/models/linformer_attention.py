"""Linformer: keys and values are projected to a fixed number of mixtures of tokens, so that cost is linear.

Wang, Li, Khabsa, Fang, Ma, "Linformer: Self-Attention with Linear Complexity" (2020), section 4. With learned E and F
[N, K] over positions up to N, shared by all heads:

    k' = E^T k, v' = F^T v        from T keys to K
    y_i = Wo softmax(q_i k'^T / sqrt(D)) v'

A shorter sequence uses the first T rows of E and F, with the same result as padding to N with zeros; padded keys and
values are set to zero, so that they add nothing. Since a mixture includes tokens of all positions, there is no causal
form. Cost: 8 B T E^2 + 8 B T K E floating-point operations, and B H T K scores, against 8 B T E^2 + 4 B T^2 E and
B H T^2 of full attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class LinformerConfig:
    """`width` is E, `heads` is H, `positions` is N, the longest sequence; `mixtures` is K."""

    width: int = 64
    heads: int = 4
    positions: int = 512
    mixtures: int = 32


class LinformerAttention(ProjectedAttention):
    """Multi-head self-attention to mixtures of the tokens."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config.width, config.heads)
        shape, deviation = (config.positions, config.mixtures), config.mixtures**-0.5
        self.mix_keys = nn.Parameter(torch.randn(shape) * deviation)
        self.mix_values = nn.Parameter(torch.randn(shape) * deviation)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all mixtures.

        Args:
            x: [B, T, E], T at most N.
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        keep_B1T1 = attention_mask[:, None, :, None].to(x.dtype)
        T = x.shape[1]
        k_BHKD, v_BHKD = (
            mix_NK[:T].mT @ (y_BHTD * keep_B1T1)
            for mix_NK, y_BHTD in ((self.mix_keys, k_BHTD), (self.mix_values, v_BHTD))
        )
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHKD, v_BHKD)
        return self.merge(mixed_BHTD)


def make(config: LinformerConfig = LinformerConfig(), seed: int = 0) -> LinformerAttention:
    """A `LinformerAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LinformerAttention(config), seed)


def spec(config: LinformerConfig = LinformerConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(__name__, sequence_contract(config.width, limit=config.positions), lambda: make(config, seed))


SPEC = spec()
