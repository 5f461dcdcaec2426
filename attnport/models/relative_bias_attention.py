"""T5's attention: a learned number for the distance of query and key is added to each head's scores.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020), section 2.1,
after Shaw et al. (2018). On x [B, T, E], without any bias in the projections and without a scale (T5 has it in the
weights' initial values):

    y_i = Wo sum_j softmax_j(q_i k_j + b[bucket(j - i), h]) v_j

Near distances have a bucket each, farther ones share buckets of logarithmic width. Cost: 8 B T E^2 + 4 B T^2 E
floating-point operations; the added bias takes H T^2 numbers, once for all items of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import PADDING, build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention
from attnport.models.blocks.positions import RelativePositions


@dataclass(frozen=True)
class RelativeBiasConfig:
    """`width` is E, `heads` is H, `buckets` the rows of the table (half for later keys), `max_distance` its reach."""

    width: int = 64
    heads: int = 4
    buckets: int = 32
    max_distance: int = 128


class RelativeBiasAttention(ProjectedAttention):
    """Multi-head self-attention with T5's relative positions."""

    def __init__(self, config: RelativeBiasConfig) -> None:
        super().__init__(config.width, config.heads, bias=False)
        self.positions = RelativePositions(config.heads, config.buckets, config.max_distance)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        bias_1HTT = self.positions(x.shape[1], x.shape[1])
        hidden_B11T = masks.additive(masks.padding(attention_mask), x.dtype)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BHTD, v_BHTD, attn_mask=bias_1HTT + hidden_B11T, scale=1.0
        )
        return self.merge(mixed_BHTD)


def make(config: RelativeBiasConfig = RelativeBiasConfig(), seed: int = 0) -> RelativeBiasAttention:
    """A `RelativeBiasAttention` in float32 and eval mode with random weights; the same seed gives the same weights.

    The queries' weights are divided by sqrt(D), as T5's initial values are, in place of a scale.
    """
    module = build(lambda: RelativeBiasAttention(config), seed)
    with torch.no_grad():
        module.project.query.weight.mul_((config.width / config.heads) ** -0.5)
    return module


def spec(config: RelativeBiasConfig = RelativeBiasConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(
        __name__, sequence_contract(config.width, masks=(PADDING, MaskSpec(("bias",)))), lambda: make(config, seed)
    )


SPEC = spec()
