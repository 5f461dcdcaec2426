"""Masks in torch, for use inside modules: torch.export traces them with dynamic sizes.

The functions are those of `numpy_builders`, which is the reference. A mask is a bool tensor that is True where a key
may be attended, `[B|1,1,S|1,T]`. Sizes may be symbolic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnport.errors import UsageError
from attnport.masks import HIDDEN, MaskSpec
from attnport.masks.numpy_builders import check_value


def positions(S: int, T: int, alignment: str = "upper_left", device: Any = None) -> tuple[Tensor, Tensor]:
    """Positions of the queries `[S,1]` and of the keys `[1,T]`."""
    i = torch.arange(S, device=device)[:, None]
    return (i + (T - S) if alignment == "lower_right" else i), torch.arange(T, device=device)[None, :]


def padding(keep: Tensor) -> Tensor:
    """A keep-mask `[T]`, `[B,T]`, `[B,S,T]` or `[B,1|H,1|S,T]` as bool of rank 4."""
    keep = keep if keep.dtype == torch.bool else keep != 0
    if keep.ndim == 4:
        return keep
    if not 1 <= keep.ndim <= 3:
        raise UsageError(f"padding: got a mask of shape {list(keep.shape)}; expected rank 1 to 4.")
    return keep[None, None, None] if keep.ndim == 1 else keep[:, None, None] if keep.ndim == 2 else keep[:, None]


def padding_lengths(lengths_B: Tensor, T: int) -> Tensor:
    """Keys before each item's length, `[B,1,1,T]`."""
    return torch.arange(T, device=lengths_B.device) < lengths_B[:, None, None, None]


def causal(S: int, T: int, alignment: str = "upper_left", device: Any = None) -> Tensor:
    """Keys at or before the query, `[1,1,S,T]`."""
    i, j = positions(S, T, alignment, device)
    return (j <= i)[None, None]


def window(S: int, T: int, width: int, alignment: str = "upper_left", device: Any = None) -> Tensor:
    """Keys at most `width` away on either side, `[1,1,S,T]`; combine it with `causal` for one side."""
    i, j = positions(S, T, alignment, device)
    return ((i - j <= width) & (j - i <= width))[None, None]


def prefix(prefix_B: Tensor, S: int, T: int, alignment: str = "upper_left") -> Tensor:
    """Prefix-LM: keys at or before the query, and keys of the item's prefix, `[B,1,S,T]`."""
    return causal(S, T, alignment, prefix_B.device) | padding_lengths(prefix_B, T)


def documents(ids_BT: Tensor, S: int, alignment: str = "upper_left") -> Tensor:
    """Keys of the query's own document, `[B,1,S,T]`."""
    return _of_queries(ids_BT, S, alignment)[:, None, :, None] == ids_BT[:, None, None, :]


def local_global(marks_BT: Tensor, S: int, width: int, alignment: str = "upper_left") -> Tensor:
    """Keys at most `width` away, and all pairs with a token that is marked global, `[B,1,S,T]`."""
    marks_BT = marks_BT != 0
    near = window(S, marks_BT.shape[1], width, alignment, marks_BT.device)
    return near | marks_BT[:, None, None, :] | _of_queries(marks_BT, S, alignment)[:, None, :, None]


def combine(first: Tensor, *others: Tensor) -> Tensor:
    """Keys that every mask allows."""
    for keep in others:
        first = first & keep
    return first


def build(mask: MaskSpec, value: Tensor | None, S: int, T: int, device: Any = None) -> Tensor:
    """The mask that `mask` means with `value` in its input, `[B|1,1|H,S|1,T]`, as in `numpy_builders.build`.

    Raises:
        UsageError: the value is missing, or does not fit.
    """
    kinds, held = set(mask.kinds), mask.carries
    check_value(mask, given=value is not None)
    device = device if value is None else value.device
    parts = []
    if value is not None and held == "mask":
        parts.append(padding(decode(value, mask.polarity)))
    if value is not None and held == "lengths":
        parts.append(prefix(value, S, T, mask.alignment) if "prefix" in kinds else padding_lengths(value, T))
    if value is not None and held == "ids":
        parts.append(documents(value, S, mask.alignment))
        if "padding" in kinds:
            parts.append(padding(value))
    if value is not None and held == "marks":
        parts.append(local_global(value, S, mask.window, mask.alignment))
    if "causal" in kinds and "prefix" not in kinds:
        parts.append(causal(S, T, mask.alignment, device))
    if "window" in kinds and "global" not in kinds:
        parts.append(window(S, T, mask.window, mask.alignment, device))
    return combine(*parts) if parts else torch.ones((1, 1, 1, T), dtype=torch.bool, device=device)


def encode(keep: Tensor, polarity: str, dtype: torch.dtype) -> Tensor:
    """A mask in an input's polarity and dtype; additive: zero where a key is allowed, -inf elsewhere."""
    if polarity == "additive":
        low, zero = (torch.tensor(number, dtype=dtype, device=keep.device) for number in (-torch.inf, 0.0))
        return torch.where(keep, zero, low)
    return (keep if polarity == "keep" else ~keep).to(dtype)


def decode(value: Tensor, polarity: str) -> Tensor:
    """A bool tensor from an input's value, True where a key may be attended."""
    if polarity == "additive":
        return value > HIDDEN
    if value.dtype == torch.bool:
        return value if polarity == "keep" else ~value
    return value != 0 if polarity == "keep" else value == 0


def additive(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a key is allowed, -inf elsewhere."""
    return encode(keep, "additive", dtype)


def _of_queries(values_BT: Tensor, S: int, alignment: str) -> Tensor:
    """The values at the queries' positions, `[B,S]`."""
    at, _ = positions(S, values_BT.shape[1], alignment, values_BT.device)
    # Indexed, not sliced: torch.export cannot know that the slice has S elements.
    return values_BT[:, at[:, 0]]
