"""DeBERTa's disentangled attention: content and relative position are separate vectors, combined in the scores.

He, Liu, Gao, Chen, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2021), section 3.1. On x [B, T, E]
with one vector for each clipped distance, P [2 K, E]:

    a_ij = (q_i k_j + q_i kr_d(i,j) + k_j qr_d(i,j)) / sqrt(3 D)        kr, qr = Wkr P, Wqr P, split into heads
    d(i, j) = 0 if i - j <= -K, 2 K - 1 if i - j >= K, else i - j + K
    y_i = Wo softmax_j(a_ij) v_j

The second term is content-to-position, the third position-to-content. The paper has d(j, i) in the third; the released
code, and so every checkpoint, has d(i, j).

Cost: 8 B T E^2 + 4 B T^2 E floating-point operations as without positions, and 8 B T K E for the two tables of
products, of which the scores gather their parts: 2 B H T^2 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import PADDING, build, model_spec, sequence_contract, split_heads
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class DisentangledConfig:
    """`width` is E, `heads` is H, `reach` is K: distances from there on share a vector."""

    width: int = 64
    heads: int = 4
    reach: int = 32


class DisentangledAttention(ProjectedAttention):
    """Multi-head self-attention with scores of content to content, content to position and position to content."""

    def __init__(self, config: DisentangledConfig) -> None:
        super().__init__(config.width, config.heads)
        self.heads, self.reach = config.heads, config.reach
        self.positions = nn.Embedding(2 * config.reach, config.width)
        self.position_key = nn.Linear(config.width, config.width)
        self.position_query = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        scale = (3 * q_BHTD.shape[-1]) ** -0.5
        bias_BHTT = self.position_scores(q_BHTD, k_BHTD) * scale
        hidden_B11T = masks.additive(masks.padding(attention_mask), x.dtype)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BHTD, v_BHTD, attn_mask=bias_BHTT + hidden_B11T, scale=scale
        )
        return self.merge(mixed_BHTD)

    def position_scores(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor) -> torch.Tensor:
        """The two terms with positions, before their scale, [B, H, T, T]; R = 2 K distances."""
        T = q_BHTD.shape[2]
        i_T1, j_1T = masks.positions(T, T, device=q_BHTD.device)
        d_TT = (i_T1 - j_1T + self.reach).clamp(0, 2 * self.reach - 1)
        kr_HRD, qr_HRD = (
            split_heads(project(self.positions.weight)[None], self.heads)[0]
            for project in (self.position_key, self.position_query)
        )
        # From [query, distance] each query takes the distances of the keys; from [key, distance] each key, likewise.
        to_position_BHTR, from_position_BHTR = q_BHTD @ kr_HRD.mT, k_BHTD @ qr_HRD.mT
        shape = (q_BHTD.shape[0], self.heads, T, T)
        content_to_position_BHTT = to_position_BHTR.gather(-1, d_TT.expand(shape))
        position_to_content_BHTT = from_position_BHTR.gather(-1, d_TT.mT.expand(shape)).mT
        return content_to_position_BHTT + position_to_content_BHTT


def make(config: DisentangledConfig = DisentangledConfig(), seed: int = 0) -> DisentangledAttention:
    """A `DisentangledAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: DisentangledAttention(config), seed)


def spec(config: DisentangledConfig = DisentangledConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(
        __name__, sequence_contract(config.width, masks=(PADDING, MaskSpec(("bias",)))), lambda: make(config, seed)
    )


SPEC = spec()
