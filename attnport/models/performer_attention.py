"""Performer: softmax attention estimated by random features (FAVOR+), in time linear in the length.

Choromanski et al., "Rethinking Attention with Performers" (2021), sections 2.3 and 2.4. The softmax kernel is the mean
over Gaussian w of products of positive features,

    exp(q k / sqrt(D)) = E_w [f_w(q') f_w(k')]        f_w(x) = exp(w x - |x|^2 / 2), q' = q / D^(1/4), k' = k / D^(1/4)

here over M fixed rows w, orthogonal in blocks of D, with the lengths of Gaussian vectors. With F the M features:

    y_i = Wo F(q'_i) S / (F(q'_i) z)        S = sum_j F(k'_j) v_j^T [M, D], z = sum_j F(k'_j)

The largest exponent is subtracted first, per query and, for keys, per head; the factor cancels in the quotient. The
error falls as 1 / sqrt(M) and grows with the length of q and k.

Cost: 8 B T E^2 + 8 B T M E floating-point operations and 2 B H T M features, against 8 B T E^2 + 4 B T^2 E and B H T^2
scores of full attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnport.artifacts import ModelSpec
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class PerformerConfig:
    """`width` is E, `heads` is H, `features` is M; `eps` is added to each feature, as in the authors' code."""

    width: int = 64
    heads: int = 4
    features: int = 64
    eps: float = 1e-4


class PerformerAttention(ProjectedAttention):
    """Multi-head self-attention by positive orthogonal random features."""

    directions: torch.Tensor  # [M, D]

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__(config.width, config.heads)
        self.eps = config.eps
        self.register_buffer("directions", draw_directions(config.features, config.width // config.heads))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        keep_B1T1 = attention_mask[:, None, :, None].bool()
        q_BHTM, k_BHTM = self.exponents(q_BHTD), self.exponents(k_BHTD)
        # Padded keys must not decide what is subtracted: the weight of `eps` would then depend on the padding.
        largest_BH11 = k_BHTM.masked_fill(~keep_B1T1, torch.finfo(x.dtype).min).amax(dim=(2, 3), keepdim=True)
        q_BHTM = (q_BHTM - q_BHTM.amax(dim=-1, keepdim=True)).exp() + self.eps
        k_BHTM = torch.where(keep_B1T1, (k_BHTM - largest_BH11).exp() + self.eps, 0.0)
        sum_BHMD, norm_BHM1 = k_BHTM.mT @ v_BHTD, k_BHTM.sum(dim=2)[..., None]
        norm_BHT1 = q_BHTM @ norm_BHM1
        mixed_BHTD = (q_BHTM @ sum_BHMD) / torch.where(norm_BHT1 > 0, norm_BHT1, 1.0)
        return self.merge(mixed_BHTD)

    def exponents(self, x_BHTD: torch.Tensor) -> torch.Tensor:
        """w x' - |x'|^2 / 2 of every direction w, [B, H, T, M]."""
        x_BHTD = x_BHTD * x_BHTD.shape[-1] ** -0.25
        along_BHTM: torch.Tensor = x_BHTD @ self.directions.mT
        return along_BHTM - x_BHTD.square().sum(dim=-1, keepdim=True) / 2


def draw_directions(features: int, depth: int) -> torch.Tensor:
    """M rows [M, D], orthogonal in blocks of D, each as long as a Gaussian vector; from torch's global generator."""
    blocks = [torch.linalg.qr(torch.randn(depth, depth)).Q for _ in range(-(-features // depth))]
    lengths_M1: torch.Tensor = torch.randn(features, depth).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:features] * lengths_M1


def make(config: PerformerConfig = PerformerConfig(), seed: int = 0) -> PerformerAttention:
    """A `PerformerAttention` in float32 and eval mode with random weights; a seed gives the same weights and features.

    Weights of queries and keys are halved, which keeps the estimate's error small at few features.
    """
    module = build(lambda: PerformerAttention(config), seed)
    with torch.no_grad():
        for projection in (module.project.query, module.project.key):
            projection.weight.mul_(0.5)
    return module


def spec(config: PerformerConfig = PerformerConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(__name__, sequence_contract(config.width), lambda: make(config, seed))


SPEC = spec()
