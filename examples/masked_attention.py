"""An attention of each usual sort with a mask of each usual kind, in plain torch.

    attnport ship examples/masked_attention.py:self_causal_padding -o out/causal \
        --input "x=float32[batch,seq,64]" --input "mask=int64[batch,seq]:padding"

`MASKS` has the kinds: what the input called `mask` holds, declared as for `--input`, and how the mask is made of it.
A factory is called by attention and kind, as `self_none` or `cached_prefix`, and `declarations` gives its inputs.
What became of each on every runtime is in `docs/masks.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from attnport.masks import torch_biases as biases
from attnport.masks import torch_builders as masks

WIDTH, HEADS, GROUPS, DEPTH = 64, 4, 2, 16
"""Model dim E, heads H, key/value heads G where they are grouped, head dim D."""
NEAR = 3
"""The width of windows."""

# Of (what the input holds, S, T, alignment): a bool tensor, true where a key may be attended, or a bias to be added.
MASKS: dict[str, tuple[str, Callable[[Any, int, int, str], Tensor | None]]] = {
    "none": ("", lambda _, S, T, at: None),
    "padding": ("int64[batch,T]:padding", lambda keep_BT, S, T, at: masks.padding(keep_BT)),
    "padding_lengths": (
        "int64[batch]:padding:keys=T",
        lambda lengths_B, S, T, at: masks.padding_lengths(lengths_B, T),
    ),
    "causal": ("", lambda _, S, T, at: masks.causal(S, T, at)),
    "causal_padding": (
        "int64[batch,T]:padding",
        lambda keep_BT, S, T, at: masks.combine(masks.causal(S, T, at), masks.padding(keep_BT)),
    ),
    "causal_lower_right": ("", lambda _, S, T, at: masks.causal(S, T, "lower_right")),
    "window": ("", lambda _, S, T, at: masks.window(S, T, NEAR, at)),
    "causal_window": ("", lambda _, S, T, at: masks.combine(masks.causal(S, T, at), masks.window(S, T, NEAR, at))),
    "prefix": ("int64[batch]:prefix:keys=T", lambda prefix_B, S, T, at: masks.prefix(prefix_B, S, T, at)),
    "documents": ("int64[batch,T]:documents", lambda ids_BT, S, T, at: masks.documents(ids_BT, S, at)),
    "documents_causal": (
        "int64[batch,T]:documents",
        lambda ids_BT, S, T, at: masks.combine(masks.documents(ids_BT, S, at), masks.causal(S, T, at)),
    ),
    "local_global": (
        f"bool[batch,T]:global:window={NEAR}",
        lambda marks_BT, S, T, at: masks.local_global(marks_BT, S, NEAR, at),
    ),
    "alibi": ("", lambda _, S, T, at: biases.alibi(HEADS, S, T, at)),
    "t5_bias": ("", lambda table, S, T, at: biases.t5_bias(table, S, T, alignment=at)),
    "explicit": ("bool[batch,1,S,T]:explicit", lambda keep_B1ST, S, T, at: keep_B1ST),
    "explicit_bias": (f"float32[batch,{HEADS},S,T]:additive", lambda bias_BHST, S, T, at: bias_BHST),
}


class Attention(nn.Module):
    """What all attentions here have in common.

    Args:
        kind: The mask, of `MASKS`.
        groups: Key/value heads G.
    """

    alignment = "upper_left"

    def __init__(self, kind: str, groups: int = HEADS) -> None:
        super().__init__()
        self.kind, self.groups = kind, groups
        self.q, self.out = nn.Linear(WIDTH, HEADS * DEPTH), nn.Linear(HEADS * DEPTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, groups * DEPTH), nn.Linear(WIDTH, groups * DEPTH)
        self.table = nn.Parameter(torch.randn(32, HEADS)) if kind == "t5_bias" else None

    def mask(self, given: Tensor | None, S: int, T: int) -> Tensor | None:
        """The mask of S queries and T keys, from what its input holds."""
        return MASKS[self.kind][1](given if self.table is None else self.table, S, T, self.alignment)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of `x` [B,T,E]: two of [B,G,T,D]."""
        return split(self.k(x), self.groups), split(self.v(x), self.groups)

    def attend(self, x: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, given: Tensor | None) -> Tensor:
        """From each position of `x` [B,S,E] to the keys that the mask allows; gives [B,S,E]."""
        mask = self.mask(given, x.shape[1], k_BGTD.shape[2])
        q_BHSD = split(self.q(x), HEADS)
        found_BHSD = scaled_dot_product_attention(q_BHSD, k_BGTD, v_BGTD, mask, enable_gqa=self.groups < HEADS)
        return self.out(found_BHSD.transpose(1, 2).flatten(2))


class SelfAttention(Attention):
    """Queries, keys and values of one sequence; grouped where there are fewer key/value heads than heads."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Of `x` [B,T,E]."""
        return self.attend(x, *self.keys_and_values(x), mask)


class CrossAttention(Attention):
    """Queries of one sequence, keys and values of another."""

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Of `x` [B,S,E] to `memory` [B,T,E]."""
        return self.attend(x, *self.keys_and_values(memory), mask)


class CachedAttention(Attention):
    """Self-attention behind a cache: the keys are P from before and S new ones, and T = P + S.

    The mask's input is about the cache. New tokens may be attended, continue the last document, and are not global.
    """

    alignment = "lower_right"

    def forward(self, x: Tensor, past_keys: Tensor, past_values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Of `x` [B,S,E], with the keys and values [B,H,P,D] of the cache."""
        k_BHSD, v_BHSD = self.keys_and_values(x)
        k_BHTD, v_BHTD = torch.cat([past_keys, k_BHSD], dim=2), torch.cat([past_values, v_BHSD], dim=2)
        return self.attend(x, k_BHTD, v_BHTD, mask)

    def mask(self, given: Tensor | None, S: int, T: int) -> Tensor | None:
        """As above, with what the input does not say of the S new tokens."""
        if given is not None and self.kind in ("documents", "documents_causal"):
            given = torch.cat([given, given[:, -1:].expand(-1, S)], dim=1)
        elif given is not None and given.ndim > 1:
            given = pad(given, (0, S), value=self.kind in ("padding", "causal_padding", "explicit"))
        found = super().mask(given, S, T)
        return found | (torch.arange(T) >= T - S) if self.kind == "padding_lengths" else found


def split(x: Tensor, count: int) -> Tensor:
    """Splits [B,T,E] into `count` heads, [B,H,T,D]."""
    return x.unflatten(-1, (count, DEPTH)).transpose(1, 2)


ATTENTIONS: dict[str, Callable[[str], Attention]] = {
    "self": SelfAttention,
    "cross": CrossAttention,
    "grouped": partial(SelfAttention, groups=GROUPS),
    "cached": CachedAttention,
}
_OTHER_INPUTS = {
    "cross": (f"memory=float32[batch,mem,{WIDTH}]",),
    "cached": tuple(f"{name}=float32[batch,{HEADS},past,{DEPTH}]" for name in ("past_keys", "past_values")),
}
_KEYS = {"self": "seq", "cross": "mem", "grouped": "seq", "cached": "past"}


def declarations(attention: str, kind: str) -> tuple[str, ...]:
    """The inputs of an attention with a mask, as for `--input`."""
    mask = MASKS[kind][0].translate({ord("S"): "seq", ord("T"): _KEYS[attention]})
    return (f"x=float32[batch,seq,{WIDTH}]", *_OTHER_INPUTS.get(attention, ()), *([f"mask={mask}"] if mask else []))


def make(attention: str, kind: str) -> nn.Module:
    """The module of an attention and a kind of mask; weights are seeded, so that every call makes the same."""
    torch.manual_seed(0)
    return ATTENTIONS[attention](kind).eval()


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """A factory for each attention and kind: `self_causal` calls `make("self", "causal")`."""
    attention, _, kind = name.partition("_")
    if attention not in ATTENTIONS or kind not in MASKS:
        raise AttributeError(name)
    return partial(make, attention, kind)
