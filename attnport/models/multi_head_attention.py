"""Multi-head attention with queries, keys and values of three separate inputs, each of its own width.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2. On query [B, S, E], key [B, T, Ek] and value
[B, T, Ev], with H heads of D = E / H:

    y = Wo concat_h softmax(q_h k_h^T / sqrt(D) + m) v_h        q = query Wq, k = key Wk, v = value Wv
                                                                 m[b, j] = 0 where keep[b, j], else -inf

Cost: 4 B S E^2 + 2 B T E (Ek + Ev) + 4 B S T E floating-point operations.
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
class MultiHeadAttentionConfig:
    """Sizes: `width` is E, `key_width` is Ek, `value_width` is Ev, `heads` is H."""

    width: int = 64
    key_width: int = 48
    value_width: int = 32
    heads: int = 4


class MultiHeadAttention(nn.Module):
    """A projection for each input, attention to the keys that are not padding, output projection."""

    def __init__(self, config: MultiHeadAttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.key_width, config.width)
        self.value = nn.Linear(config.value_width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_mask: torch.Tensor
    ) -> torch.Tensor:
        """Attends from every query to the keys that are not padding.

        Args:
            query: [B, S, E].
            key: [B, T, Ek].
            value: [B, T, Ev].
            key_mask: bool [B, T], True for a real key; an item without any gets the output projection of zero.

        Returns:
            [B, S, E].
        """
        q_BHSD = split_heads(self.query(query), self.heads)
        k_BHTD = split_heads(self.key(key), self.heads)
        v_BHTD = split_heads(self.value(value), self.heads)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BHTD, v_BHTD, attn_mask=masks.padding(key_mask)
        )
        y_BSE: torch.Tensor = self.out(merge_heads(mixed_BHSD))
        return y_BSE


def make(config: MultiHeadAttentionConfig = MultiHeadAttentionConfig(), seed: int = 0) -> MultiHeadAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: MultiHeadAttention(config), seed)


def spec(config: MultiHeadAttentionConfig = MultiHeadAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = IOContract(
        inputs=(
            TensorSpec("query", "float32", ("batch", "seq", config.width)),
            TensorSpec("key", "float32", ("batch", "mem", config.key_width)),
            TensorSpec("value", "float32", ("batch", "mem", config.value_width)),
            TensorSpec("key_mask", "bool", ("batch", "mem")),
        ),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", config.width)),),
        dims=(BATCH, length(), length("mem")),
        masks=(MaskSpec(("padding",), "key_mask"),),
        positions="none",
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
