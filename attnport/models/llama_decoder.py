"""LLaMA's decoder with a key/value cache: RMSNorm, rotary positions, grouped heads and SwiGLU.

Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models" (2023), after Su et al., "RoFormer" (2021),
Shazeer, "GLU Variants Improve Transformer" (2020) and Ainslie et al., "GQA" (2023). The S new tokens stand behind P
cached ones; R(p) turns a head by the angles of position p. One layer, on x [B, S, E]:

    a = x + Wo softmax(R(p) q [past k; R(p) k]^T / sqrt(D) + mask) [past v; v]        q, k, v = projections of norm(x)
    y = a + W2 (silu(W1 n) * W3 n)                                                     n = norm(a)

H query heads share G key and value heads, so that the cache is H / G times smaller. Keys are cached turned. A new
token's position is the number of tokens before it: those that `cache_mask` keeps, wherever in the cache they stand.

Cost of a layer with a feed-forward of F: 4 B S E^2 (1 + G / H) + 6 B S E F + 4 B S T E floating-point operations,
T = P + S.

The default is small and has random weights: it is for trying and testing. `make(LlamaConfig(...))` has any other size.
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
from attnport.models.blocks.norms import RMSNorm
from attnport.models.blocks.rotary import RotaryPositions
from attnport.models.blocks.swiglu import SwiGLU
from attnport.models.blocks.weights import build


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


class CachedAttention(nn.Module):
    """Grouped causal self-attention with rotary positions behind a cache."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        depth = config.width // config.heads
        self.heads, self.groups = config.heads, config.groups
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.groups * depth, bias=False)
        self.value = nn.Linear(config.width, config.groups * depth, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.rotary = RotaryPositions(depth, config.base)

    def forward(
        self,
        x_BSE: torch.Tensor,
        past_k_BGPD: torch.Tensor,
        past_v_BGPD: torch.Tensor,
        allowed_B1ST: torch.Tensor,
        offset_B111: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, G, S, D]."""
        q_BHSD = self.rotary(split_heads(self.query(x_BSE), self.heads), offset_B111)
        k_BGSD = self.rotary(split_heads(self.key(x_BSE), self.groups), offset_B111)
        v_BGSD = split_heads(self.value(x_BSE), self.groups)
        k_BGTD, v_BGTD = torch.cat([past_k_BGPD, k_BGSD], dim=2), torch.cat([past_v_BGPD, v_BGSD], dim=2)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD, k_BGTD, v_BGTD, attn_mask=allowed_B1ST, enable_gqa=True
        )
        return self.out(merge_heads(mixed_BHSD)), k_BGSD, v_BGSD


class Layer(nn.Module):
    """Attention and feed-forward, each on the norm of its input and added to it (pre-norm)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = CachedAttention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_eps)
        self.feed_forward = SwiGLU(config.width, config.hidden)

    def forward(
        self,
        x_BSE: torch.Tensor,
        past_k_BGPD: torch.Tensor,
        past_v_BGPD: torch.Tensor,
        allowed_B1ST: torch.Tensor,
        offset_B111: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, G, S, D]."""
        mixed_BSE, k_BGSD, v_BGSD = self.attention(
            self.attention_norm(x_BSE), past_k_BGPD, past_v_BGPD, allowed_B1ST, offset_B111
        )
        x_BSE = x_BSE + mixed_BSE
        return x_BSE + self.feed_forward(self.feed_forward_norm(x_BSE)), k_BGSD, v_BGSD


class LlamaDecoder(nn.Module):
    """The decoder with its language-model head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(
        self, input_ids: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next token's logits at every new token.

        Args:
            input_ids: int64 [B, S], the new tokens.
            past_keys: [B, L, G, P, D], turned, of all L layers.
            past_values: [B, L, G, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token and 0 where it holds nothing, anywhere.

        Returns:
            Logits [B, S, vocabulary], and the new tokens' keys and values, each [B, L, G, S, D], to be appended.
        """
        S, P = input_ids.shape[1], cache_mask.shape[1]
        keep_BT = nn.functional.pad(cache_mask, (0, S), value=1)
        allowed_B1ST = masks.combine(masks.causal(S, P + S, "lower_right", input_ids.device), masks.padding(keep_BT))
        offset_B111 = cache_mask.sum(dim=1)[:, None, None, None]
        x_BSE = self.tokens(input_ids)
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            x_BSE, k_BGSD, v_BGSD = layer(x_BSE, past_keys[:, index], past_values[:, index], allowed_B1ST, offset_B111)
            keys.append(k_BGSD)
            values.append(v_BGSD)
        return self.head(self.norm(x_BSE)), torch.stack(keys, dim=1), torch.stack(values, dim=1)


def make(config: LlamaConfig = LlamaConfig(), seed: int = 0) -> LlamaDecoder:
    """A `LlamaDecoder` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LlamaDecoder(config), seed)


def spec(config: LlamaConfig = LlamaConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a decoder of any size."""
    depth = config.width // config.heads
    past, new = (("batch", config.layers, config.groups, length, depth) for length in ("past", "seq"))
    return ModelSpec(
        name="llama_decoder",
        source=Source(text="llama_decoder"),
        io=IOContract(
            inputs=(
                TensorSpec("input_ids", "int64", ("batch", "seq"), high=config.vocabulary),
                TensorSpec("past_keys", "float32", past),
                TensorSpec("past_values", "float32", past),
                TensorSpec("cache_mask", "int64", ("batch", "past"), high=2),
            ),
            outputs=(
                TensorSpec("logits", "float32", ("batch", "seq", config.vocabulary)),
                TensorSpec("keys", "float32", new),
                TensorSpec("values", "float32", new),
            ),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, 16, 256), Dim("past", 1, 128, 512)),
            masks=(MaskSpec(("padding",), input="cache_mask"), MaskSpec(("causal",), alignment="lower_right")),
            positions="none",
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
