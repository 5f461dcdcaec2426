"""Self-attention with persistent memory: learned keys and values that every position may read.

Sukhbaatar, Grave, Lample, Jegou, Joulin, "Augmenting Self-attention with Persistent Memory" (2019). Each head has N
learned key and value vectors in addition to those of the tokens; on x [B, T, E]:

    y = Wo softmax(q [k_memory; k]^T / sqrt(D) + mask) [v_memory; v]

They replace the feed-forward part of a layer. The mask hides padding only, never the memory, so every row has a key.

Cost: 8 B T E^2 + 4 B T (N + T) E floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import build, model_spec, sequence_contract, split_heads
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class MemoryTokenConfig:
    """Sizes: `width` is E, `heads` is H, `memory` is N."""

    width: int = 64
    heads: int = 4
    memory: int = 16


class MemoryTokenAttention(ProjectedAttention):
    """Multi-head self-attention with a key mask and learned keys and values."""

    def __init__(self, config: MemoryTokenConfig) -> None:
        super().__init__(config.width, config.heads)
        self.heads, self.memory = config.heads, config.memory
        self.memory_keys = nn.Parameter(torch.randn(config.memory, config.width))
        self.memory_values = nn.Parameter(torch.randn(config.memory, config.width))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every position to the memory and to the allowed positions.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, which may be anywhere.

        Returns:
            [B, T, E].
        """
        q_BHSD, k_BHTD, v_BHTD = self.project(x)
        k_BHTD, v_BHTD = self.behind(self.memory_keys, k_BHTD), self.behind(self.memory_values, v_BHTD)
        allowed_B11T = masks.padding(nn.functional.pad(attention_mask, (self.memory, 0), value=1))
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B11T)
        return self.merge(mixed_BHSD)

    def behind(self, learned_NE: torch.Tensor, of_tokens_BHTD: torch.Tensor) -> torch.Tensor:
        """Keys or values of the memory and then those of the tokens, [B, H, N + T, D]."""
        learned_1HND = split_heads(learned_NE[None], self.heads)
        return torch.cat([learned_1HND.expand(of_tokens_BHTD.shape[0], -1, -1, -1), of_tokens_BHTD], dim=2)


def make(config: MemoryTokenConfig = MemoryTokenConfig(), seed: int = 0) -> MemoryTokenAttention:
    """A `MemoryTokenAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: MemoryTokenAttention(config), seed)


def spec(config: MemoryTokenConfig = MemoryTokenConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    return model_spec(__name__, sequence_contract(config.width, positions="none"), lambda: make(config, seed))


SPEC = spec()
