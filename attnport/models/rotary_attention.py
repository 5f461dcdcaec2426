"""Self-attention with rotary positions: queries and keys are turned, and scores depend on distances alone.

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

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import torch_builders as masks
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.attention_parts import merge_heads, split_heads
from attnport.models.blocks.rotary import RotaryPositions
from attnport.models.blocks.weights import build


@dataclass(frozen=True)
class RotaryAttentionConfig:
    """Sizes: `width` is E, `heads` is H, the head dim D is E / H and even; `base` sets the longest wavelength."""

    width: int = 64
    heads: int = 4
    base: float = 10000.0


class RotaryAttention(nn.Module):
    """Projections, rotations, attention to the keys that are no padding, output projection."""

    def __init__(self, config: RotaryAttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.positions = RotaryPositions(config.width // config.heads, config.base)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to the real ones.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding.

        Returns:
            [B, T, E].
        """
        q_BHTD, k_BHTD, v_BHTD = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            self.positions(q_BHTD), self.positions(k_BHTD), v_BHTD, attn_mask=masks.padding(attention_mask)
        )
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
        return y_BTE


def make(config: RotaryAttentionConfig = RotaryAttentionConfig(), seed: int = 0) -> RotaryAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: RotaryAttention(config), seed)


def spec(config: RotaryAttentionConfig = RotaryAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    return ModelSpec(
        name="rotary_attention",
        source=Source(text="rotary_attention"),
        io=IOContract(
            inputs=(
                TensorSpec("x", "float32", ("batch", "seq", config.width)),
                TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2),
            ),
            outputs=(TensorSpec("y", "float32", ("batch", "seq", config.width)),),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, 128, 512)),
            masks=(MaskSpec(("padding",), "attention_mask"),),
            positions="none",  # padding on the left moves all positions and no distance
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
