"""GPT's decoder with a key/value cache: learned positions, pre-norm layers of causal attention and feed-forward.

Radford, Wu, Child, Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners" (2019, GPT-2). The
S new tokens stand behind P cached ones. One layer, on x [B, S, E]:

    a = x + Wo softmax(q [past k; k]^T / sqrt(D) + mask) [past v; v]        q, k, v = Wqkv norm(x) + b
    y = a + W2 gelu(W1 norm(a))

and logits = norm(y of the last layer) times the token table (tied). A new token's position is the number of tokens
before it: those that `cache_mask` keeps, so that it does not matter where in the cache they stand.

Cost of a layer: 24 B S E^2 + 4 B S T E floating-point operations, T = P + S. Without a cache every new token would cost
a pass over all T.

The default is small and has random weights: it is for trying and testing. `make(GPTConfig(...))` has any other size.
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
from attnport.models.blocks.feed_forward import FeedForward
from attnport.models.blocks.weights import build


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
    """Causal self-attention behind a cache, its three projections in one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x_BSE: torch.Tensor, past_k_BHPD: torch.Tensor, past_v_BHPD: torch.Tensor, allowed_B1ST: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, H, S, D]."""
        q_BHSD, k_BHSD, v_BHSD = (split_heads(part, self.heads) for part in self.qkv(x_BSE).chunk(3, dim=-1))
        k_BHTD, v_BHTD = torch.cat([past_k_BHPD, k_BHSD], dim=2), torch.cat([past_v_BHPD, v_BHSD], dim=2)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=allowed_B1ST)
        return self.out(merge_heads(mixed_BHSD)), k_BHSD, v_BHSD


class Layer(nn.Module):
    """Attention and feed-forward, each on the norm of its input and added to it (pre-norm)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = CachedAttention(config.width, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.hidden)

    def forward(
        self, x_BSE: torch.Tensor, past_k_BHPD: torch.Tensor, past_v_BHPD: torch.Tensor, allowed_B1ST: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, H, S, D]."""
        mixed_BSE, k_BHSD, v_BHSD = self.attention(self.attention_norm(x_BSE), past_k_BHPD, past_v_BHPD, allowed_B1ST)
        x_BSE = x_BSE + mixed_BSE
        return x_BSE + self.feed_forward(self.feed_forward_norm(x_BSE)), k_BHSD, v_BHSD


class GPTDecoder(nn.Module):
    """The decoder with its language-model head."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(
        self, input_ids: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next token's logits at every new token.

        Args:
            input_ids: int64 [B, S], the new tokens.
            past_keys: [B, L, H, P, D], of all L layers.
            past_values: [B, L, H, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token and 0 where it holds nothing, anywhere.

        Returns:
            Logits [B, S, vocabulary], and the new tokens' keys and values, each [B, L, H, S, D], to be appended.
        """
        S, P = input_ids.shape[1], cache_mask.shape[1]
        keep_BT = nn.functional.pad(cache_mask, (0, S), value=1)
        allowed_B1ST = masks.combine(masks.causal(S, P + S, "lower_right", input_ids.device), masks.padding(keep_BT))
        positions_BS = cache_mask.sum(dim=1, keepdim=True) + torch.arange(S, device=input_ids.device)
        x_BSE = self.tokens(input_ids) + self.positions(positions_BS)
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            x_BSE, k_BHSD, v_BHSD = layer(x_BSE, past_keys[:, index], past_values[:, index], allowed_B1ST)
            keys.append(k_BHSD)
            values.append(v_BHSD)
        logits_BSV = self.norm(x_BSE) @ self.tokens.weight.T
        return logits_BSV, torch.stack(keys, dim=1), torch.stack(values, dim=1)


def make(config: GPTConfig = GPTConfig(), seed: int = 0) -> GPTDecoder:
    """A `GPTDecoder` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: GPTDecoder(config), seed)


def spec(config: GPTConfig = GPTConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a decoder of any size: half of the positions at most are cached, half are new."""
    half, depth = config.positions // 2, config.width // config.heads
    past, new = (("batch", config.layers, config.heads, length, depth) for length in ("past", "seq"))
    return ModelSpec(
        name="gpt_decoder",
        source=Source(text="gpt_decoder"),
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
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, min(16, half), half), Dim("past", 1, min(128, half), half)),
            masks=(MaskSpec(("padding",), input="cache_mask"), MaskSpec(("causal",), alignment="lower_right")),
            positions="none",
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
