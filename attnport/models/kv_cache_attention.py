"""Causal self-attention with a key/value cache: one module for prefill and for decoding token by token.

Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need" (2019), section 2.4.1, with the attention of
Vaswani et al., "Attention Is All You Need" (2017). The S tokens of x follow P positions whose keys and values were
computed before; with T = P + S:

    q, k, v = Wq x, Wk x, Wv x
    y = Wo softmax(q [past k; k]^T / sqrt(D) + mask) [past v; v]

The mask is causal with the last query at the last key (`lower_right`), and hides empty positions of the cache. Prefill
is a call with a long x and a cache of one hidden position (a contract may also allow an empty cache, `past=0:...`);
decoding is a call with one token. Only the new keys and values are returned, and the caller appends them to its cache:
a copy of the whole cache for every token would cost more than the attention.

Cost of one token after P others: 8 E^2 + 4 P E floating-point operations, against 8 P E^2 + 4 P^2 E if everything is
computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.dims import TensorSpec
from attnport.models.blocks.cache import allowed_behind
from attnport.models.blocks.model import build, cache_contract, model_spec
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class KVCacheConfig:
    """Sizes: `width` is E, `heads` is H; D = E / H."""

    width: int = 64
    heads: int = 4


class KVCacheAttention(ProjectedAttention):
    """Multi-head causal self-attention with a cache."""

    def __init__(self, config: KVCacheConfig) -> None:
        super().__init__(config.width, config.heads)

    def forward(
        self, x: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attends from the new tokens to the cached ones and to those before them.

        Args:
            x: The new tokens, [B, S, E].
            past_keys: [B, H, P, D].
            past_values: [B, H, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token, and 0 at empty places, which may be anywhere.

        Returns:
            [B, S, E], and the keys and values of the new tokens, each [B, H, S, D].
        """
        q_BHSD, k_BHSD, v_BHSD = self.project(x)
        k_BHTD, v_BHTD = torch.cat([past_keys, k_BHSD], dim=2), torch.cat([past_values, v_BHSD], dim=2)
        allowed_B1ST = allowed_behind(cache_mask, x.shape[1])
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B1ST)
        return self.merge(mixed_BHSD), k_BHSD, v_BHSD


def make(config: KVCacheConfig = KVCacheConfig(), seed: int = 0) -> KVCacheAttention:
    """A `KVCacheAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: KVCacheAttention(config), seed)


def spec(config: KVCacheConfig = KVCacheConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    x, depth = ("batch", "seq", config.width), config.width // config.heads
    io = cache_contract(TensorSpec("x", "float32", x), TensorSpec("y", "float32", x), (config.heads,), depth)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
