"""Multi-head latent attention: keys and values of all heads from one small vector per token; narrower values than keys.

DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model" (2024), section 2.1.
On x [B, T, E], with R the rotary positions:

    c = norm(Wdkv x)                       [B, T, C], the latent vector; a cache would hold only this and R(Wkr x)
    k = [Wuk c; R(Wkr x)]                  head dim D = Dn + Dr; all heads share the rotary part
    v = Wuv c                              head dim Dv, not D
    q = [Wuq norm(Wdq x); R(Wqr norm(Wdq x))]
    y = Wo softmax(q k^T / sqrt(D) + mask) v

The mask is causal and hides padding.

Cost of the attention itself: 2 B T^2 H (D + Dv) floating-point operations. A cache takes C + Dr numbers per token
instead of H (D + Dv).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.layers import RMSNorm
from attnport.models.blocks.model import PADDING, build, merge_heads, model_spec, sequence_contract, split_heads
from attnport.models.blocks.positions import RotaryPositions


@dataclass(frozen=True)
class LatentConfig:
    """Sizes: `width` is E, `heads` is H, `latent` is C; `plain_depth`, `rotary_depth`, `value_depth` are Dn, Dr, Dv."""

    width: int = 64
    heads: int = 4
    query_latent: int = 48
    latent: int = 32
    plain_depth: int = 16
    rotary_depth: int = 16
    value_depth: int = 16
    base: float = 10000.0
    norm_eps: float = 1e-6


class LatentAttention(nn.Module):
    """Causal multi-head latent attention with a key mask."""

    def __init__(self, config: LatentConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_parts = [config.plain_depth, config.rotary_depth]
        self.latent_parts = [config.latent, config.rotary_depth]
        self.key_value_parts = [config.plain_depth, config.value_depth]
        self.query_down = nn.Linear(config.width, config.query_latent, bias=False)
        self.query_norm = RMSNorm(config.query_latent, config.norm_eps)
        self.query_up = nn.Linear(config.query_latent, config.heads * sum(self.query_parts), bias=False)
        self.latent_down = nn.Linear(config.width, sum(self.latent_parts), bias=False)
        self.latent_norm = RMSNorm(config.latent, config.norm_eps)
        self.key_value_up = nn.Linear(config.latent, config.heads * sum(self.key_value_parts), bias=False)
        self.rotary = RotaryPositions(config.rotary_depth, config.base)
        self.out = nn.Linear(config.heads * config.value_depth, config.width, bias=False)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every position to the allowed ones before it.

        Args:
            x: [B, T, E].
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, which may be anywhere.

        Returns:
            [B, T, E].
        """
        q_BHTD = split_heads(self.query_up(self.query_norm(self.query_down(x))), self.heads)
        plain_q_BHTN, rotary_q_BHTR = torch.split(q_BHTD, self.query_parts, dim=-1)
        latent_BTC, rotary_k_BTR = torch.split(self.latent_down(x), self.latent_parts, dim=-1)
        key_value = split_heads(self.key_value_up(self.latent_norm(latent_BTC)), self.heads)
        plain_k_BHTN, v_BHTV = torch.split(key_value, self.key_value_parts, dim=-1)
        rotary_k_BHTR = self.rotary(rotary_k_BTR[:, None]).expand(-1, self.heads, -1, -1)

        q_BHTD = torch.cat([plain_q_BHTN, self.rotary(rotary_q_BHTR)], dim=-1)
        k_BHTD = torch.cat([plain_k_BHTN, rotary_k_BHTR], dim=-1)
        T = x.shape[1]
        allowed_B1TT = masks.combine(masks.causal(T, T, device=x.device), masks.padding(attention_mask))
        mixed_BHTV = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTV, attn_mask=allowed_B1TT)
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTV))
        return y_BTE


def make(config: LatentConfig = LatentConfig(), seed: int = 0) -> LatentAttention:
    """A `LatentAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LatentAttention(config), seed)


def spec(config: LatentConfig = LatentConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = sequence_contract(config.width, masks=(PADDING, MaskSpec(("causal",))), positions="none")
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
