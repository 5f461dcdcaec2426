"""Cross-attention: the tokens of one sequence attend to those of another, as a decoder attends to encoded text.

Bahdanau et al. (2015) as multi-head dot products: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3.
On x [B, S, E] and memory [B, T, M], with keys and values from one projection of the memory:

    y = x + Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        q = norm(x) Wq, [k v] = memory Wkv
                                                                     m[b, j] = 0 where keep[b, j], else -inf

Cost: 4 B S E^2 + 4 B T M E + 4 B S T E floating-point operations; in decoding, the second term is paid once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import BATCH, build, length, merge_heads, model_spec, split_heads


@dataclass(frozen=True)
class CrossAttentionConfig:
    """Sizes: `width` is E, `memory_width` is M, `heads` is H."""

    width: int = 64
    memory_width: int = 48
    heads: int = 4


class CrossAttention(nn.Module):
    """A pre-norm residual block that reads from a memory."""

    def __init__(self, config: CrossAttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = nn.LayerNorm(config.width)
        self.query = nn.Linear(config.width, config.width)
        self.key_value = nn.Linear(config.memory_width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor) -> torch.Tensor:
        """Adds to every token what it reads from the memory.

        Args:
            x: [B, S, E].
            memory: [B, T, M].
            memory_mask: int64 [B, T], 1 for a real token of the memory and 0 for padding.

        Returns:
            [B, S, E].
        """
        q_BHSD = split_heads(self.query(self.norm(x)), self.heads)
        k_BTE, v_BTE = self.key_value(memory).chunk(2, dim=-1)
        k_BHTD, v_BHTD = split_heads(k_BTE, self.heads), split_heads(v_BTE, self.heads)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BHTD, v_BHTD, attn_mask=masks.padding(memory_mask)
        )
        y_BSE: torch.Tensor = x + self.out(merge_heads(mixed_BHSD))
        return y_BSE


def make(config: CrossAttentionConfig = CrossAttentionConfig(), seed: int = 0) -> CrossAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: CrossAttention(config), seed)


def spec(config: CrossAttentionConfig = CrossAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", config.width)),
            TensorSpec("memory", "float32", ("batch", "mem", config.memory_width)),
            TensorSpec("memory_mask", "int64", ("batch", "mem"), high=2),
        ),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", config.width)),),
        dims=(BATCH, length(), length("mem")),
        masks=(MaskSpec(("padding",), "memory_mask"),),
        positions="none",
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
