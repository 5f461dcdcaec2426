"""GPT's decoder with a key/value cache: learned positions, pre-norm layers of causal attention and feed-forward.

Radford, Wu, Child, Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners" (2019, GPT-2). The
S new tokens follow P cached ones. One layer, on x [B, S, E]:

    a = x + Wo softmax(q [past k; k]^T / sqrt(D) + mask) [past v; v]        q, k, v = Wqkv norm(x) + b
    y = a + W2 gelu(W1 norm(a))

and logits = norm(y of the last layer) times the token table (tied). A new token's position is the number of tokens
before it that `cache_mask` keeps, wherever they are in the cache.

Cost of a layer: 24 B S E^2 + 4 B S T E floating-point operations, T = P + S. Without a cache every new token would cost
a pass over all T.

The default is small and has random weights: it is for trying and testing. `make(GPTConfig(...))` has any other size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.dims import TensorSpec
from attnport.models.blocks.cache import Cache
from attnport.models.blocks.layers import CachedLayer, CachedLayers, FeedForward
from attnport.models.blocks.model import build, cache_contract, merge_heads, model_spec, split_heads


@dataclass(frozen=True)
class GPTConfig:
    """Sizes: `width` is E, `heads` is H, `positions` the most tokens, cached and new together."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    positions: int = 512
    norm_eps: float = 1e-5


class CachedAttention(nn.Module):
    """Causal self-attention with a cache and one matrix for its three projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BSE: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, H, S, D]."""
        q_BHSD, k_BHSD, v_BHSD = (split_heads(part, self.heads) for part in self.qkv(x_BSE).chunk(3, dim=-1))
        k_BHTD, v_BHTD = cache.with_new(k_BHSD, v_BHSD)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=cache.allowed)
        return self.out(merge_heads(mixed_BHSD)), k_BHSD, v_BHSD


def layer(config: GPTConfig) -> CachedLayer:
    """Attention and feed-forward."""
    return CachedLayer(
        partial(nn.LayerNorm, config.width, eps=config.norm_eps),
        CachedAttention(config.width, config.heads),
        FeedForward(config.width, config.hidden),
    )


class GPTDecoder(nn.Module):
    """The decoder with its language-model head."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.layers = CachedLayers(layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(
        self, input_ids: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next token's logits at every new token.

        Args:
            input_ids: int64 [B, S], the new tokens.
            past_keys: [B, L, H, P, D], of all L layers.
            past_values: [B, L, H, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token, and 0 at empty places, which may be anywhere.

        Returns:
            Logits [B, S, vocabulary], and the new tokens' keys and values, each [B, L, H, S, D], to be appended.
        """
        new_S = torch.arange(input_ids.shape[1], device=input_ids.device)
        positions_BS = cache_mask.sum(dim=1, keepdim=True) + new_S
        x_BSE = self.tokens(input_ids) + self.positions(positions_BS)
        x_BSE, keys, values = self.layers(x_BSE, past_keys, past_values, cache_mask)
        return self.norm(x_BSE) @ self.tokens.weight.T, keys, values


def make(config: GPTConfig = GPTConfig(), seed: int = 0) -> GPTDecoder:
    """A `GPTDecoder` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: GPTDecoder(config), seed)


def spec(config: GPTConfig = GPTConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a decoder of any size: half of the positions at most are cached, half are new."""
    half, depth = config.positions // 2, config.width // config.heads
    new = TensorSpec("input_ids", "int64", ("batch", "seq"), high=config.vocabulary)
    logits = TensorSpec("logits", "float32", ("batch", "seq", config.vocabulary))
    io = cache_contract(new, logits, (config.layers, config.heads), depth, limits=(half, half))
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
