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
from attnport.models.base import build, get, sequence_contract
from attnport.models.blocks import MaskedAttention, merge_heads, split_heads

LONGEST = 4096
"""The most tokens of the layers whose growth is measured."""
WIDTH, HEADS = 128, 2
"""E and H of these: at D = 64 the terms of T^2 pass those of E^2 from T = 2 E = 256 on."""
WINDOW, MIXTURES, FEATURES = 64, 64, 64
"""W of the windows, K of Linformer, M of Performer."""
ENCODER = {"vocabulary": 4096, "width": 384, "heads": 12, "layers": 6, "hidden": 1536, "positions": 512}
"""The shape of all-MiniLM-L6 with a smaller vocabulary."""
DECODER = {"vocabulary": 256, "width": 256, "heads": 4, "layers": 4, "hidden": 1024, "positions": 2048}


class SelfAttention(MaskedAttention):
    """Multi-head self-attention as in `bert_encoder`, with padding and, if given, a window written as a mask.

    Args:
        window: The largest distance of a key, hidden by a mask of T x T; None = every key.
    """

    def __init__(self, width: int, heads: int, window: int | None = None) -> None:
        super().__init__(width, heads)
        self.window = window

    def mask(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """A token sees the real ones, or those of them in its window; bool [B, 1, 1, T] or [B, 1, T, T]."""
        allowed, T = masks.padding(attention_mask), x.shape[1]
        if self.window is None:
            return allowed
        return masks.combine(allowed, masks.window(T, T, self.window, device=x.device))


class OneProduct(nn.Module):
    """The self-attention of `three`, with the weights of its three projections in one product."""

    def __init__(self, three: SelfAttention) -> None:
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
    return _layer("full", WIDTH, lambda: build(lambda: SelfAttention(WIDTH, HEADS)))


def window_as_mask() -> ModelSpec:
    """Full attention under a mask that leaves a window."""
    return _layer("window_as_mask", WIDTH, lambda: build(lambda: SelfAttention(WIDTH, HEADS, WINDOW)))


def window() -> ModelSpec:
    """`sliding_window_attention`: the window in chunks."""
    return _long(get("sliding_window_attention", width=WIDTH, heads=HEADS, window=WINDOW))


def linear() -> ModelSpec:
    """`linear_attention`."""
    return _long(get("linear_attention", width=WIDTH, heads=HEADS))


def performer() -> ModelSpec:
    """`performer_attention`."""
    return _long(get("performer_attention", width=WIDTH, heads=HEADS, features=FEATURES))


def linformer() -> ModelSpec:
    """`linformer_attention`."""
    return _long(get("linformer_attention", width=WIDTH, heads=HEADS, positions=LONGEST, mixtures=MIXTURES))


def three_products() -> ModelSpec:
    """Self-attention at the encoder's width: a projection each for q, k and v."""
    E, H = ENCODER["width"], ENCODER["heads"]
    return _layer("three_products", E, lambda: build(lambda: SelfAttention(E, H)))


def one_product() -> ModelSpec:
    """The same numbers from one projection."""
    E, H = ENCODER["width"], ENCODER["heads"]
    return _layer("one_product", E, lambda: OneProduct(build(lambda: SelfAttention(E, H))).eval())


def encoder() -> ModelSpec:
    """`bert_encoder` in the shape of MiniLM."""
    return get("bert_encoder", **ENCODER)


def decoder() -> ModelSpec:
    """`gpt_decoder` of four layers."""
    return get("gpt_decoder", **DECODER)


def _layer(name: str, width: int, make: Callable[[], nn.Module]) -> ModelSpec:
    return _long(ModelSpec(name, Source(text=name), sequence_contract(width), make))


def _long(spec: ModelSpec) -> ModelSpec:
    """A layer's spec with sequences up to `LONGEST`; batches are small, since checks run at both largest sizes."""
    dims = (Dim("batch", 1, 2, 8), Dim("seq", 1, 128, LONGEST))
    return dataclasses.replace(spec, io=dataclasses.replace(spec.io, dims=dims))
