"""Causal attention with a key/value cache, and decoders that are made of it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from attnport.artifacts import Dim, IOContract, TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.base import BATCH, length, model
from attnport.models.blocks import (
    FeedForward,
    PreNormParts,
    ProjectedAttention,
    RMSNorm,
    RotaryPositions,
    merge_heads,
    split_heads,
)


def cache_contract(
    new: TensorSpec, output: TensorSpec, cached: tuple[int, ...], depth: int, *, limits: tuple[int, int] = (256, 512)
) -> IOContract:
    """New tokens [batch, seq, ...] with `past_keys`, `past_values` and `cache_mask`, to an output, `keys` and `values`.

    The cache is float32 [batch, *cached, past, D], the new keys and values [batch, *cached, seq, D]; `cache_mask` is
    int64 [batch, past]. The module's own mask is causal, with the last query at the last key.

    Args:
        new: The new tokens.
        output: The module's output for them.
        cached: The number of layers, if there are several, and of key and value heads.
        depth: Head dim D.
        limits: The largest numbers of new and of cached tokens.
    """
    past, added = (("batch", *cached, tokens, depth) for tokens in ("past", "seq"))
    most_new, most_past = limits
    return IOContract(
        inputs=(
            new,
            TensorSpec("past_keys", "float32", past),
            TensorSpec("past_values", "float32", past),
            TensorSpec("cache_mask", "int64", ("batch", "past"), high=2),
        ),
        outputs=(output, TensorSpec("keys", "float32", added), TensorSpec("values", "float32", added)),
        dims=(BATCH, Dim("seq", 1, min(16, most_new), most_new), length("past", most_past)),
        masks=(MaskSpec(("padding",), input="cache_mask"), MaskSpec(("causal",), alignment="lower_right")),
        positions="none",
    )


class Cache(NamedTuple):
    """One layer's cache of P earlier tokens, for S new ones; T = P + S.

    Attributes:
        keys: [B, G, P, D].
        values: [B, G, P, D].
        allowed: [B, 1, S, T], True where a new token may attend to a cached or a new one.
        length: int64 [B, 1, 1, 1], the number of tokens in the cache, which is the position of the first new one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    allowed: torch.Tensor
    length: torch.Tensor

    def with_new(self, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all T tokens, cached and new."""
        return torch.cat([self.keys, k_BGSD], dim=2), torch.cat([self.values, v_BGSD], dim=2)


def allowed_behind(cache_mask_BP: torch.Tensor, S: int) -> torch.Tensor:
    """The mask of S new tokens, bool [B, 1, S, P + S]: all cached tokens, and the new ones up to the query's own.

    Args:
        cache_mask_BP: 1 where the cache holds a token, and 0 at empty places, which may be anywhere.
        S: The number of new tokens; the last one is at the position of the last key.
    """
    # Not `pad`: ONNX Runtime's kernel for CUDA takes no integers, so they would be copied to the CPU and back.
    new_BS = torch.ones(cache_mask_BP.shape[0], S, dtype=cache_mask_BP.dtype, device=cache_mask_BP.device)
    keep_BT = torch.cat([cache_mask_BP, new_BS], dim=1)
    causal_11ST = masks.causal(S, keep_BT.shape[1], "lower_right", cache_mask_BP.device)
    return masks.combine(causal_11ST, masks.padding(keep_BT))


@model(
    "kv_cache_attention",
    lambda sizes: cache_contract(
        TensorSpec("x", "float32", ("batch", "seq", sizes.width)),
        TensorSpec("y", "float32", ("batch", "seq", sizes.width)),
        (sizes.heads,),
        sizes.width // sizes.heads,
    ),
)
class KVCacheAttention(ProjectedAttention):
    """Causal self-attention with a key/value cache: one module for prefill and for decoding token by token.

    Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need" (2019), section 2.4.1, with the attention of
    Vaswani et al., "Attention Is All You Need" (2017). The S tokens of x follow P positions whose keys and values were
    computed before; with T = P + S:

        q, k, v = Wq x, Wk x, Wv x
        y = Wo softmax(q [past k; k]^T / sqrt(D) + mask) [past v; v]

    The mask is causal with the last query at the last key (`lower_right`), and hides empty positions of the cache.
    Prefill is a call with a long x and a cache of one hidden position (a contract may also allow an empty cache,
    `past=0:...`); decoding is a call with one token. Only the new keys and values are returned, and the caller appends
    them to its cache: a copy of the whole cache for every token would cost more than the attention.

    Cost of one token after P others: 8 E^2 + 4 P E floating-point operations, against 8 P E^2 + 4 P^2 E if everything
    is computed again.

    Args:
        width: E.
        heads: H; the head dim D is E / H.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__(width, heads)

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


class CachedLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `y = a + f(norm(a))`, with a cache for the attention.

    The attention is called with norm(x) and the layer's `Cache`; it returns [B, S, E], and the new tokens' keys and
    values.
    """

    def forward(self, x_BSE: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, G, S, D]."""
        mixed_BSE, k_BGSD, v_BGSD = self.attention(self.attention_norm(x_BSE), cache)
        return self.plus_feed_forward(x_BSE + mixed_BSE), k_BGSD, v_BGSD


class CachedLayers(nn.ModuleList):
    """L layers, each with its part of the cache."""

    def forward(
        self, x_BSE: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Takes S new tokens through all layers.

        Args:
            x_BSE: The new tokens.
            past_keys: [B, L, G, P, D].
            past_values: [B, L, G, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token, and 0 at empty places, which may be anywhere.

        Returns:
            [B, S, E], and the new tokens' keys and values, each [B, L, G, S, D].
        """
        allowed_B1ST = allowed_behind(cache_mask, x_BSE.shape[1])
        length_B111 = cache_mask.sum(dim=1)[:, None, None, None]
        keys, values = [], []
        for index, layer in enumerate(self):
            cache = Cache(past_keys[:, index], past_values[:, index], allowed_B1ST, length_B111)
            x_BSE, k_BGSD, v_BGSD = layer(x_BSE, cache)
            keys.append(k_BGSD)
            values.append(v_BGSD)
        return x_BSE, torch.stack(keys, dim=1), torch.stack(values, dim=1)


class FusedCachedAttention(nn.Module):
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


@model(
    "gpt_decoder",
    lambda sizes: cache_contract(
        TensorSpec("input_ids", "int64", ("batch", "seq"), high=sizes.vocabulary),
        TensorSpec("logits", "float32", ("batch", "seq", sizes.vocabulary)),
        (sizes.layers, sizes.heads),
        sizes.width // sizes.heads,
        limits=(sizes.positions // 2, sizes.positions // 2),
    ),
)
class GPTDecoder(nn.Module):
    """GPT's decoder with a key/value cache: learned positions, pre-norm layers of causal attention and feed-forward.

    Radford, Wu, Child, Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners" (2019, GPT-2).
    The S new tokens follow P cached ones. One layer, on x [B, S, E]:

        a = x + Wo softmax(q [past k; k]^T / sqrt(D) + mask) [past v; v]        q, k, v = Wqkv norm(x) + b
        y = a + W2 gelu(W1 norm(a))

    and logits = norm(y of the last layer) times the token table (tied). A new token's position is the number of tokens
    before it that `cache_mask` keeps, wherever they are in the cache.

    Cost of a layer: 24 B S E^2 + 4 B S T E floating-point operations, T = P + S. Without a cache every new token would
    cost a pass over all T.

    Args:
        vocabulary: The number of token ids.
        width: E.
        heads: H.
        layers: L.
        hidden: The size between the projections of a feed-forward.
        positions: The most tokens, cached and new together; at most half of them are cached, half are new.
        norm_eps: Added to the variances of the norms.
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int = 256,
        positions: int = 512,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        norm = partial(nn.LayerNorm, width, eps=norm_eps)
        self.layers = CachedLayers(
            CachedLayer(norm, FusedCachedAttention(width, heads), FeedForward(width, hidden)) for _ in range(layers)
        )
        self.norm = norm()

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


class RotaryCachedAttention(ProjectedAttention):
    """Grouped causal self-attention with rotary positions and a cache."""

    def __init__(self, width: int, heads: int, groups: int, base: float) -> None:
        super().__init__(width, heads, groups=groups, bias=False)
        self.rotary = RotaryPositions(width // heads, base)

    def forward(self, x_BSE: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, G, S, D]."""
        q_BHSD, k_BGSD, v_BGSD = self.project(x_BSE)
        q_BHSD, k_BGSD = (self.rotary(part, cache.length) for part in (q_BHSD, k_BGSD))
        k_BGTD, v_BGTD = cache.with_new(k_BGSD, v_BGSD)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BGTD, v_BGTD, attn_mask=cache.allowed, enable_gqa=True
        )
        return self.merge(mixed_BHSD), k_BGSD, v_BGSD


class SwiGLU(nn.Module):
    """`W2 (silu(W1 x) * W3 x)` without biases (Shazeer 2020, "GLU Variants Improve Transformer").

    Args:
        width: Model dim E.
        hidden: Size of the gate and of the gated vector; 8/3 E has as many weights as a plain block of 4 E.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(nn.functional.silu(self.gate(x_BTE)) * self.up(x_BTE))
        return y_BTE


@model(
    "llama_decoder",
    lambda sizes: cache_contract(
        TensorSpec("input_ids", "int64", ("batch", "seq"), high=sizes.vocabulary),
        TensorSpec("logits", "float32", ("batch", "seq", sizes.vocabulary)),
        (sizes.layers, sizes.groups),
        sizes.width // sizes.heads,
    ),
)
class LlamaDecoder(nn.Module):
    """LLaMA's decoder with a key/value cache: RMSNorm, rotary positions, grouped heads and SwiGLU.

    Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models" (2023), after Su et al., "RoFormer" (2021),
    Shazeer, "GLU Variants Improve Transformer" (2020) and Ainslie et al., "GQA" (2023). The S new tokens follow P
    cached ones; R(p) rotates a head by the angles of position p. One layer, on x [B, S, E]:

        a = x + Wo softmax(R(p) q [past k; R(p) k]^T / sqrt(D) + mask) [past v; v]      q, k, v = projections of norm(x)
        y = a + W2 (silu(W1 n) * W3 n)                                                   n = norm(a)

    H query heads share G key and value heads, so that the cache is H / G times smaller. Keys are cached after the
    rotation. A new token's position is the number of tokens before it that `cache_mask` keeps, wherever they are in the
    cache.

    Cost of a layer with a feed-forward of F: 4 B S E^2 (1 + G / H) + 6 B S E F + 4 B S T E floating-point operations,
    T = P + S.

    Args:
        vocabulary: The number of token ids.
        width: E.
        heads: H.
        groups: G, a divisor of H.
        layers: L.
        hidden: F.
        base: Sets the longest wavelength of the rotary positions.
        norm_eps: Added to the mean squares of the norms.
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 64,
        heads: int = 4,
        groups: int = 2,
        layers: int = 2,
        hidden: int = 172,
        base: float = 10000.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        norm = partial(RMSNorm, width, norm_eps)
        self.layers = CachedLayers(
            CachedLayer(norm, RotaryCachedAttention(width, heads, groups, base), SwiGLU(width, hidden))
            for _ in range(layers)
        )
        self.norm = norm()
        self.head = nn.Linear(width, vocabulary, bias=False)

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
