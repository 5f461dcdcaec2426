"""Longformer's attention: a window around every token, and chosen tokens that see all and are seen by all.

Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer" (2020), section 3.1. Global tokens attend by
projections of their own (q', k', v'), made of x [B, T, E] like the usual ones:

    y_i = Wo softmax over the j with |i - j| <= W, or j global, of (q_i k_j / sqrt(D)) v_j     i not global
    y_i = Wo softmax over all j of (q'_i k'_j / sqrt(D)) v'_j                                  i global

An input marks the global tokens, of which there may be any number at any position. So both attentions are computed at
full size, and the marks choose between them. Cost: 14 B T E^2 + 8 B T^2 E floating-point operations; attention as one
kernel keeps the scores out of memory. `sliding_window_attention` is the form in chunks of the window alone, at linear
cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import PADDING, build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention, QueryKeyValue


@dataclass(frozen=True)
class LongformerConfig:
    """`width` is E, `heads` is H, `window` is W: the largest distance of a local key on either side."""

    width: int = 64
    heads: int = 4
    window: int = 8


class LongformerAttention(ProjectedAttention):
    """Multi-head self-attention within a window, and to and from global tokens."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__(config.width, config.heads)
        self.window = config.window
        self.project_global = QueryKeyValue(config.width, config.heads)

    def forward(
        self, x: torch.Tensor, attention_mask: torch.Tensor, global_attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Attends from every token to its window and the global tokens, from global ones to all.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding.
            global_attention_mask: [B, T], 1 for global tokens.
        """
        seen_B11T = masks.padding(attention_mask)
        marks_BT = global_attention_mask.bool()
        local_B1TT = masks.local_global(marks_BT, x.shape[1], self.window) & seen_B11T
        near_BHTD = attend(self.project(x), local_B1TT)
        all_BHTD = attend(self.project_global(x), seen_B11T)
        mixed_BHTD = torch.where(marks_BT[:, None, :, None], all_BHTD, near_BHTD)
        return self.merge(mixed_BHTD)


def attend(qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], allowed: torch.Tensor) -> torch.Tensor:
    """The mixture of values of each head, [B, H, T, D]."""
    q_BHTD, k_BHTD, v_BHTD = qkv
    return nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=allowed)


def make(config: LongformerConfig = LongformerConfig(), seed: int = 0) -> LongformerAttention:
    """A `LongformerAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LongformerAttention(config), seed)


def spec(config: LongformerConfig = LongformerConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    marks = MaskSpec(("window", "global"), "global_attention_mask", window=config.window, carries="marks")
    io = sequence_contract(config.width, inputs=("attention_mask", "global_attention_mask"), masks=(PADDING, marks))
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
