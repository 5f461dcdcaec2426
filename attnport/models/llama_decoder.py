"""LLaMA's decoder with a key/value cache: RMSNorm, rotary positions, grouped heads and SwiGLU.

Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models" (2023), after Su et al., "RoFormer" (2021),
Shazeer, "GLU Variants Improve Transformer" (2020) and Ainslie et al., "GQA" (2023). The S new tokens follow P cached
ones; R(p) rotates a head by the angles of position p. One layer, on x [B, S, E]:

    a = x + Wo softmax(R(p) q [past k; R(p) k]^T / sqrt(D) + mask) [past v; v]        q, k, v = projections of norm(x)
    y = a + W2 (silu(W1 n) * W3 n)                                                     n = norm(a)

H query heads share G key and value heads, so that the cache is H / G times smaller. Keys are cached after the rotation.
A new token's position is the number of tokens before it that `cache_mask` keeps, wherever they are in the cache.

Cost of a layer with a feed-forward of F: 4 B S E^2 (1 + G / H) + 6 B S E F + 4 B S T E floating-point operations,
T = P + S.

The default is small and has random weights: it is for trying and testing. `make(LlamaConfig(...))` has any other size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.dims import TensorSpec
from attnport.models.blocks.cache import Cache
from attnport.models.blocks.layers import CachedLayer, CachedLayers, RMSNorm, SwiGLU
from attnport.models.blocks.model import build, cache_contract, model_spec
from attnport.models.blocks.multi_head import ProjectedAttention
from attnport.models.blocks.positions import RotaryPositions


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes: `width` is E, `heads` is H, `groups` is G, a divisor of H; `base` of the rotary angles."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    groups: int = 2
    layers: int = 2
    hidden: int = 172
    base: float = 10000.0
    norm_eps: float = 1e-5


class CachedAttention(ProjectedAttention):
    """Grouped causal self-attention with rotary positions and a cache."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config.width, config.heads, groups=config.groups, bias=False)
        self.rotary = RotaryPositions(config.width // config.heads, config.base)

    def forward(self, x_BSE: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, G, S, D]."""
        q_BHSD, k_BGSD, v_BGSD = self.project(x_BSE)
        q_BHSD, k_BGSD = (self.rotary(part, cache.length) for part in (q_BHSD, k_BGSD))
        k_BGTD, v_BGTD = cache.with_new(k_BGSD, v_BGSD)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BGTD, v_BGTD, attn_mask=cache.allowed, enable_gqa=True
        )
        return self.merge(mixed_BHSD), k_BGSD, v_BGSD


def layer(config: LlamaConfig) -> CachedLayer:
    """Attention and feed-forward."""
    norm = partial(RMSNorm, config.width, config.norm_eps)
    return CachedLayer(norm, CachedAttention(config), SwiGLU(config.width, config.hidden))


class LlamaDecoder(nn.Module):
    """The decoder with its language-model head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = CachedLayers(layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(
        self, input_ids: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next token's logits at every new token.

        Args:
            input_ids: int64 [B, S], the new tokens.
            past_keys: [B, L, G, P, D], after the rotation, of all L layers.
            past_values: [B, L, G, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token, and 0 at empty places, which may be anywhere.

        Returns:
            Logits [B, S, vocabulary], and the new tokens' keys and values, each [B, L, G, S, D], to be appended.
        """
        x_BSE, keys, values = self.layers(self.tokens(input_ids), past_keys, past_values, cache_mask)
        return self.head(self.norm(x_BSE)), keys, values


def make(config: LlamaConfig = LlamaConfig(), seed: int = 0) -> LlamaDecoder:
    """A `LlamaDecoder` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LlamaDecoder(config), seed)


def spec(config: LlamaConfig = LlamaConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a decoder of any size."""
    new = TensorSpec("input_ids", "int64", ("batch", "seq"), high=config.vocabulary)
    logits = TensorSpec("logits", "float32", ("batch", "seq", config.vocabulary))
    io = cache_contract(new, logits, (config.layers, config.groups), config.width // config.heads)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
