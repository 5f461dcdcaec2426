"""Strided sparse attention: half of the heads see the last L tokens, the others every L-th earlier token.

Child, Gray, Radford, Sutskever, "Generating Long Sequences with Sparse Transformers" (2019), sections 4.2 and 5.1, with
separate heads for the two patterns. For a query i, causal:

    A1(i) = {j : i - L < j <= i}                      local heads, the first half
    A2(i) = {j : j <= i and (i - j) mod L = 0}        strided heads, the second half

    y_i = Wo concat_h softmax over A_h(i) of (q_i k_j / sqrt(D)) v_j

With one after the other, every token reaches every later one in two steps. With L near sqrt(T) the pattern has
T sqrt(T) pairs; it is a mask here, and attention costs 8 B T E^2 + 4 B T^2 E floating-point operations unless a kernel
skips what is masked.
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


@dataclass(frozen=True)
class StridedSparseConfig:
    """`width` is E, `heads` is H (even), `stride` is L."""

    width: int = 64
    heads: int = 4
    stride: int = 8


class StridedSparseAttention(ProjectedAttention):
    """Causal multi-head self-attention with a local and a strided pattern."""

    strided: torch.Tensor  # [H], True for strided heads

    def __init__(self, config: StridedSparseConfig) -> None:
        super().__init__(config.width, config.heads)
        self.stride = config.stride
        self.register_buffer("strided", torch.arange(config.heads) >= config.heads // 2, persistent=False)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to earlier ones of each head's pattern.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding.
        """
        T = x.shape[1]
        i_T1, j_1T = masks.positions(T, T, device=x.device)
        local_TT, strided_TT = i_T1 - j_1T < self.stride, (i_T1 - j_1T) % self.stride == 0
        strided_H11 = self.strided[:, None, None]
        pattern_HTT = (strided_TT & strided_H11) | (local_TT & ~strided_H11)
        allowed_BHTT = masks.combine(masks.causal(T, T, device=x.device), pattern_HTT, masks.padding(attention_mask))
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=allowed_BHTT)
        return self.merge(mixed_BHTD)


def make(config: StridedSparseConfig = StridedSparseConfig(), seed: int = 0) -> StridedSparseAttention:
    """A `StridedSparseAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: StridedSparseAttention(config), seed)


def spec(config: StridedSparseConfig = StridedSparseConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(
        __name__, sequence_contract(config.width, masks=(PADDING, MaskSpec(("causal",)))), lambda: make(config, seed)
    )


SPEC = spec()
