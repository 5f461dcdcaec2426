"""What a model has to compute and to move: floating-point operations and bytes, counted from sizes alone.

Counted are matrix products, a multiplication and an addition each: projections, Q K^T, P V, feed-forward, the head.
Of causal attention only what the mask allows is counted, so a kernel that skips hidden tiles gains nothing by it.
Moved is the least that a call can move: every weight once, of embedding tables the rows that are looked up, inputs,
outputs. What stays between layers is left out, since how much of it leaves the chip is the runtime's doing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INT64_BYTES = 8


@dataclass(frozen=True)
class Work:
    """What one call has to do.

    Attributes:
        flops: Floating-point operations of its matrix products.
        moved_bytes: The least that is read from and written to the device's memory.
    """

    flops: int
    moved_bytes: int


@dataclass(frozen=True)
class Shape:
    """A transformer's sizes: E `width`, H `heads`, G `groups` (H where keys and values are not grouped), L `layers`."""

    width: int
    heads: int
    groups: int
    layers: int
    hidden: int
    vocabulary: int


def linear_flops(rows: int, inner: int, outer: int) -> int:
    """[rows, inner] times [inner, outer]."""
    return 2 * rows * inner * outer


def attention_flops(B: int, S: int, T: int, width: int, *, causal: bool = False) -> int:
    """Q K^T and P V of all heads, whose dims together are `width`; causal: the last query stands at the last key."""
    pairs = S * (T - S) + S * (S + 1) // 2 if causal else S * T
    return 4 * B * pairs * width


def bert(shape: Shape, sizes: Mapping[str, int], element_bytes: int) -> Work:
    """A BERT encoder on `batch` sequences of `seq` tokens; see `models.bert_encoder`."""
    B, S, E, F = sizes["batch"], sizes["seq"], shape.width, shape.hidden
    tokens = B * S
    layer = 4 * linear_flops(tokens, E, E) + attention_flops(B, S, S, E) + 2 * linear_flops(tokens, E, F)
    weights = shape.layers * (4 * E * (E + 1) + 2 * E * F + F + E + 4 * E) + 2 * E
    looked_up = 2 * tokens * E + S * E  # words and segments; positions are shared by the batch
    moved = element_bytes * (weights + looked_up + tokens * E) + 3 * INT64_BYTES * tokens
    return Work(shape.layers * layer, moved)


def llama(shape: Shape, sizes: Mapping[str, int], element_bytes: int) -> Work:
    """A LLaMA decoder that reads `seq` new tokens behind `past` cached ones; see `models.llama_decoder`."""
    B, S, P, E, F = sizes["batch"], sizes["seq"], sizes["past"], shape.width, shape.hidden
    tokens, grouped = B * S, shape.groups * (E // shape.heads)
    projections = 2 * linear_flops(tokens, E, E) + 2 * linear_flops(tokens, E, grouped)
    layer = projections + attention_flops(B, S, P + S, E, causal=True) + 3 * linear_flops(tokens, E, F)
    weights = shape.layers * (2 * E * E + 2 * E * grouped + 3 * E * F + 2 * E) + E + E * shape.vocabulary
    cache = 2 * B * shape.layers * grouped
    out = tokens * shape.vocabulary + cache * S
    moved = element_bytes * (weights + tokens * E + cache * P + out) + INT64_BYTES * (tokens + B * P)
    return Work(shape.layers * layer + linear_flops(tokens, E, shape.vocabulary), moved)
