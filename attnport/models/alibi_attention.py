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

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import torch_builders as masks
from attnport.masks.spec import MaskSpec
from attnport.masks.torch_biases import alibi
from attnport.models.blocks.attention_parts import merge_heads, split_heads
from attnport.models.blocks.weights import build


@dataclass(frozen=True)
class AlibiAttentionConfig:
    """Sizes: `width` is E, `heads` is H, the head dim D is E / H."""

    width: int = 64
    heads: int = 4


class AlibiAttention(nn.Module):
    """Projections, attention with a bias that grows with the distance, output projection."""

    def __init__(self, config: AlibiAttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

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
        q_BHTD, k_BHTD, v_BHTD = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=bias_BHTT)
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
        return y_BTE


def make(config: AlibiAttentionConfig = AlibiAttentionConfig(), seed: int = 0) -> AlibiAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: AlibiAttention(config), seed)


def spec(config: AlibiAttentionConfig = AlibiAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    return ModelSpec(
        name="alibi_attention",
        source=Source(text="alibi_attention"),
        io=IOContract(
            inputs=(
                TensorSpec("x", "float32", ("batch", "seq", config.width)),
                TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2),
            ),
            outputs=(TensorSpec("y", "float32", ("batch", "seq", config.width)),),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, 128, 512)),
            masks=(MaskSpec(("padding", "causal", "bias"), "attention_mask"),),
            positions="none",  # padding on the left moves all positions and no distance
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
