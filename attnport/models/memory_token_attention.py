"""Self-attention with persistent memory: learned keys and values that every position may read.

Sukhbaatar, Grave, Lample, Jegou, Joulin, "Augmenting Self-attention with Persistent Memory" (2019). Each head has N
learned key and value vectors beside those of the tokens; on x [B, T, E]:

    y = Wo softmax(q [k_memory; k]^T / sqrt(D) + mask) [v_memory; v]

They do what a feed-forward layer does, so that a layer needs none. The mask hides padding only, never the memory: a
row always has a key.

Cost: 8 B T E^2 + 4 B T (N + T) E floating-point operations.
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
from attnport.models.blocks.weights import build


@dataclass(frozen=True)
class MemoryTokenConfig:
    """Sizes: `width` is E, `heads` is H, `memory` is N."""

    width: int = 64
    heads: int = 4
    memory: int = 16


class MemoryTokenAttention(nn.Module):
    """Multi-head self-attention with a key mask and learned keys and values."""

    def __init__(self, config: MemoryTokenConfig) -> None:
        super().__init__()
        self.heads, self.memory = config.heads, config.memory
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        self.memory_keys = nn.Parameter(torch.randn(config.memory, config.width))
        self.memory_values = nn.Parameter(torch.randn(config.memory, config.width))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every position to the memory and to the allowed positions.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, anywhere.

        Returns:
            [B, T, E].
        """
        memory_k_BNE, memory_v_BNE = (
            learned_NE.expand(x.shape[0], -1, -1) for learned_NE in (self.memory_keys, self.memory_values)
        )
        q_BHSD = split_heads(self.query(x), self.heads)
        k_BHTD = split_heads(torch.cat([memory_k_BNE, self.key(x)], dim=1), self.heads)
        v_BHTD = split_heads(torch.cat([memory_v_BNE, self.value(x)], dim=1), self.heads)
        allowed_B11T = masks.padding(nn.functional.pad(attention_mask, (self.memory, 0), value=1))
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B11T)
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE


def make(config: MemoryTokenConfig = MemoryTokenConfig(), seed: int = 0) -> MemoryTokenAttention:
    """A `MemoryTokenAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: MemoryTokenAttention(config), seed)


def spec(config: MemoryTokenConfig = MemoryTokenConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    x = ("batch", "seq", config.width)
    return ModelSpec(
        name="memory_token_attention",
        source=Source(text="memory_token_attention"),
        io=IOContract(
            inputs=(TensorSpec("x", "float32", x), TensorSpec("attention_mask", "int64", ("batch", "seq"), high=2)),
            outputs=(TensorSpec("y", "float32", x),),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, 128, 512)),
            masks=(MaskSpec(("padding",), input="attention_mask"),),
            positions="none",
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
