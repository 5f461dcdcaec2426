"""Linear attention: a product of feature maps instead of a softmax, so that keys and values are summed only once.

Katharopoulos, Vyas, Pappas, Fleuret, "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention"
(2020), section 3. With phi(x) = elu(x) + 1, on x [B, T, E] in H heads of D:

    y_i = Wo phi(q_i) S_i / (phi(q_i) z_i)        S_i = sum_j phi(k_j) v_j^T [D, D], z_i = sum_j phi(k_j)

over all j, or over the j <= i in the causal form, whose S_i are running sums. Padded keys have a phi of zero.

Cost: 8 B T E^2 + 4 B T E D floating-point operations, in memory B H D^2 numbers, or B H T D^2 for all running sums of
the causal form; full attention takes 4 B T^2 E operations in place of the second term.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.models.blocks.model import PADDING, build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class LinearAttentionConfig:
    """`width` is E, `heads` is H; `causal`: from every token to those up to itself."""

    width: int = 64
    heads: int = 4
    causal: bool = False


class LinearAttention(ProjectedAttention):
    """Multi-head self-attention without a softmax."""

    def __init__(self, config: LinearAttentionConfig) -> None:
        super().__init__(config.width, config.heads)
        self.causal = config.causal

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to all, or to the earlier ones, that are not padding.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        keep_B1T1 = attention_mask[:, None, :, None].to(x.dtype)
        q_BHTD, k_BHTD = features(q_BHTD), features(k_BHTD) * keep_B1T1
        mixed_BHTD = (self.running if self.causal else self.whole)(q_BHTD, k_BHTD, v_BHTD)
        return self.merge(mixed_BHTD)

    def whole(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, v_BHTD: torch.Tensor) -> torch.Tensor:
        """Every query with the sums over all keys."""
        sum_BHDD = k_BHTD.mT @ v_BHTD
        norm_BHD1 = k_BHTD.sum(dim=2)[..., None]
        return quotient(q_BHTD @ sum_BHDD, q_BHTD @ norm_BHD1)

    def running(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, v_BHTD: torch.Tensor) -> torch.Tensor:
        """Every query with the sums over the keys up to its own."""
        sums_BHTDD = (k_BHTD[..., None] * v_BHTD[..., None, :]).cumsum(dim=2)
        norms_BHTD = k_BHTD.cumsum(dim=2)
        mixed_BHTD = (q_BHTD[..., None, :] @ sums_BHTDD)[..., 0, :]
        return quotient(mixed_BHTD, (q_BHTD * norms_BHTD).sum(dim=-1, keepdim=True))


def features(x: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1, which is positive everywhere."""
    return nn.functional.elu(x) + 1


def quotient(sum_BHTD: torch.Tensor, norm_BHT1: torch.Tensor) -> torch.Tensor:
    """The sums divided by their norms; zero if no key is allowed, where both are zero."""
    return sum_BHTD / torch.where(norm_BHT1 > 0, norm_BHT1, 1.0)


def make(config: LinearAttentionConfig = LinearAttentionConfig(), seed: int = 0) -> LinearAttention:
    """A `LinearAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LinearAttention(config), seed)


def spec(config: LinearAttentionConfig = LinearAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    masks = (PADDING, MaskSpec(("causal",))) if config.causal else (PADDING,)
    return model_spec(__name__, sequence_contract(config.width, masks=masks), lambda: make(config, seed))


SPEC = spec()
