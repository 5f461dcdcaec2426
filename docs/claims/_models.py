"""The models that the claims are measured on: attnport's own, at sizes where attention is most of the work.

Each function is the factory of a SPEC, `docs/claims/_models.py:full`. Where a claim compares two ways to write one
layer and `attnport.models` has one of them alone, the other is written here from the same blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from attnport.artifacts import ModelSpec, Source
from attnport.dims import Dim
from attnport.masks import torch_builders as masks
from attnport.models import (
    bert_encoder,
    gpt_decoder,
    linear_attention,
    linformer_attention,
    performer_attention,
    sliding_window_attention,
)
from attnport.models.blocks.model import build, merge_heads, sequence_contract, split_heads
from attnport.models.blocks.multi_head import MultiHeadAttention

LONGEST = 4096
"""The most tokens of the layers whose growth is measured."""
WIDTH, HEADS = 128, 2
"""E and H of these: at D = 64 the terms of T^2 pass those of E^2 from T = 2 E = 256 on."""
WINDOW, MIXTURES, FEATURES = 64, 64, 64
"""W of the windows, K of Linformer, M of Performer."""
ENCODER = bert_encoder.BertConfig(vocabulary=4096, width=384, heads=12, layers=6, hidden=1536, positions=512)
"""The shape of all-MiniLM-L6 with a smaller vocabulary."""
DECODER = gpt_decoder.GPTConfig(vocabulary=256, width=256, heads=4, layers=4, hidden=1024, positions=2048)


class SelfAttention(nn.Module):
    """Multi-head self-attention as in `bert_encoder`, with padding and, if given, a window written as a mask.

    Args:
        window: The largest distance of a key, hidden by a mask of T x T; None = every key.
    """

    def __init__(self, width: int, heads: int, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.attention = MultiHeadAttention(width, heads)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Maps `x` [B, T, E] to the same shape; `attention_mask` [B, T] is 0 for padding."""
        allowed, T = masks.padding(attention_mask), x.shape[1]
        if self.window is not None:
            allowed = masks.combine(allowed, masks.window(T, T, self.window, device=x.device))
        y_BTE: torch.Tensor = self.attention(x, x, allowed)
        return y_BTE


class OneProduct(nn.Module):
    """The self-attention of `three`, with the weights of its three projections in one product."""

    def __init__(self, three: MultiHeadAttention) -> None:
        super().__init__()
        parts = (three.project.query, three.project.key, three.project.value)
        self.heads, self.out = three.project.heads, three.out
        self.qkv = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts))
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """As `SelfAttention.forward`."""
        q_BHTD, k_BHTD, v_BHTD = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        mixed_BHTD = nn.functional.scaled_dot_product_attention(
            q_BHTD, k_BHTD, v_BHTD, attn_mask=masks.padding(attention_mask)
        )
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
        return y_BTE


def full() -> ModelSpec:
    """Full attention."""
    return _layer("full", WIDTH, lambda: build(lambda: SelfAttention(WIDTH, HEADS), 0))


def window_as_mask() -> ModelSpec:
    """Full attention under a mask that leaves a window."""
    return _layer("window_as_mask", WIDTH, lambda: build(lambda: SelfAttention(WIDTH, HEADS, WINDOW), 0))


def window() -> ModelSpec:
    """`sliding_window_attention`: the window in chunks."""
    return _long(sliding_window_attention.spec(sliding_window_attention.SlidingWindowConfig(WIDTH, HEADS, WINDOW)))


def linear() -> ModelSpec:
    """`linear_attention`."""
    return _long(linear_attention.spec(linear_attention.LinearAttentionConfig(WIDTH, HEADS)))


def performer() -> ModelSpec:
    """`performer_attention`."""
    return _long(performer_attention.spec(performer_attention.PerformerConfig(WIDTH, HEADS, FEATURES)))


def linformer() -> ModelSpec:
    """`linformer_attention`."""
    config = linformer_attention.LinformerConfig(WIDTH, HEADS, positions=LONGEST, mixtures=MIXTURES)
    return _long(linformer_attention.spec(config))


def three_products() -> ModelSpec:
    """Self-attention at the encoder's width: a projection each for q, k and v."""
    E, H = ENCODER.width, ENCODER.heads
    return _layer("three_products", E, lambda: build(lambda: SelfAttention(E, H), 0))


def one_product() -> ModelSpec:
    """The same numbers from one projection."""
    E, H = ENCODER.width, ENCODER.heads
    return _layer("one_product", E, lambda: OneProduct(build(lambda: SelfAttention(E, H), 0).attention).eval())


def encoder() -> ModelSpec:
    """`bert_encoder` in the shape of MiniLM."""
    return bert_encoder.spec(ENCODER)


def decoder() -> ModelSpec:
    """`gpt_decoder` of four layers."""
    return gpt_decoder.spec(DECODER)


def _layer(name: str, width: int, make: Callable[[], nn.Module]) -> ModelSpec:
    return _long(ModelSpec(name, Source(text=name), sequence_contract(width), make))


def _long(spec: ModelSpec) -> ModelSpec:
    """A layer's spec with sequences up to `LONGEST`; batches are small, since checks run at both largest sizes."""
    dims = (Dim("batch", 1, 2, 8), Dim("seq", 1, 128, LONGEST))
    return dataclasses.replace(spec, io=dataclasses.replace(spec.io, dims=dims))
