"""Masks in NumPy, the reference for those of torch, and their arrays: each input has its own dtype and polarity.

Letters: B batch, H heads, S query length, T key length. A mask is a bool array that is True where a key may be
attended, `[B|1,1,S|1,T]`. Query i is at position i, or at i + T - S with alignment `lower_right`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnport.errors import UsageError
from attnport.masks import COMPUTED, HIDDEN, MaskSpec

Array = np.ndarray[Any, Any]


def positions(S: int, T: int, alignment: str = "upper_left") -> tuple[Array, Array]:
    """Positions of the queries `[S,1]` and of the keys `[1,T]`."""
    return np.arange(S)[:, None] + (T - S if alignment == "lower_right" else 0), np.arange(T)[None, :]


def padding(keep: Array) -> Array:
    """A keep-mask `[T]`, `[B,T]`, `[B,S,T]` or `[B,1|H,1|S,T]` as bool of rank 4."""
    keep = np.asarray(keep) != 0
    if keep.ndim == 4:
        return keep
    if not 1 <= keep.ndim <= 3:
        raise UsageError(f"padding: got a mask of shape {list(keep.shape)}; expected rank 1 to 4.")
    return keep.reshape((keep.shape[0] if keep.ndim > 1 else 1, 1, keep.shape[1] if keep.ndim == 3 else 1, -1))


def padding_lengths(lengths_B: Array, T: int) -> Array:
    """Keys before each item's length, `[B,1,1,T]`."""
    return np.asarray(np.arange(T) < np.asarray(lengths_B)[:, None, None, None])


def causal(S: int, T: int, alignment: str = "upper_left") -> Array:
    """Keys at or before the query, `[1,1,S,T]`."""
    i, j = positions(S, T, alignment)
    return np.asarray(j <= i)[None, None]


def window(S: int, T: int, width: int, alignment: str = "upper_left") -> Array:
    """Keys at most `width` away on either side, `[1,1,S,T]`; combine it with `causal` for one side."""
    i, j = positions(S, T, alignment)
    return np.asarray(np.abs(i - j) <= width)[None, None]


def prefix(prefix_B: Array, S: int, T: int, alignment: str = "upper_left") -> Array:
    """Prefix-LM: keys at or before the query, and keys of the item's prefix, `[B,1,S,T]`."""
    return causal(S, T, alignment) | padding_lengths(prefix_B, T)


def documents(ids_BT: Array, S: int, alignment: str = "upper_left") -> Array:
    """Keys of the query's own document, `[B,1,S,T]`."""
    return np.asarray(_of_queries(ids_BT, S, alignment)[:, None, :, None] == np.asarray(ids_BT)[:, None, None, :])


def local_global(marks_BT: Array, S: int, width: int, alignment: str = "upper_left") -> Array:
    """Keys at most `width` away, and all pairs with a token that is marked global, `[B,1,S,T]`."""
    marks_BT = np.asarray(marks_BT) != 0
    near = window(S, marks_BT.shape[1], width, alignment)
    return near | marks_BT[:, None, None, :] | _of_queries(marks_BT, S, alignment)[:, None, :, None]


def combine(*keeps: Array) -> Array:
    """Keys that every mask allows; without any mask, `[1,1,1,1]` of True."""
    total = np.ones((1, 1, 1, 1), dtype=bool)
    for keep in keeps:
        total = total & keep
    return total


def build(mask: MaskSpec, value: Array | None, S: int, T: int) -> Array:
    """The mask that `mask` means with `value` in its input, `[B|1,1|H,S|1,T]`, without biases.

    Args:
        value: The input's value; None for a mask without an input.

    Raises:
        UsageError: the value is missing, or does not fit.
    """
    kinds, held = set(mask.kinds), mask.carries
    check_value(mask, given=value is not None)
    parts = []
    if value is not None and held == "mask":
        parts.append(padding(decode_mask(mask, value)))
    if value is not None and held == "lengths":
        parts.append(prefix(value, S, T, mask.alignment) if "prefix" in kinds else padding_lengths(value, T))
    if value is not None and held == "ids":
        parts.append(documents(value, S, mask.alignment))
        if "padding" in kinds:
            parts.append(padding(value))
    if value is not None and held == "marks":
        parts.append(local_global(value, S, mask.window, mask.alignment))
    # `prefix` and `global` already include the causal mask or the window that they widen.
    if "causal" in kinds and "prefix" not in kinds:
        parts.append(causal(S, T, mask.alignment))
    if "window" in kinds and "global" not in kinds:
        parts.append(window(S, T, mask.window, mask.alignment))
    keep = combine(*parts)
    return np.broadcast_to(keep, (*keep.shape[:3], T))


def additive(keep: Array) -> Array:
    """Zero where a key is allowed, -inf elsewhere, float64."""
    return np.where(keep, 0.0, -np.inf)


def _of_queries(values_BT: Array, S: int, alignment: str) -> Array:
    """The values at the queries' positions, `[B,S]`."""
    T = np.asarray(values_BT).shape[1]
    if S > T:
        raise UsageError(f"got {S} queries and values for {T} positions; each query needs its own value.")
    start = T - S if alignment == "lower_right" else 0
    return np.asarray(values_BT)[:, start : start + S]


def encode_mask(mask: MaskSpec, dtype: str, allowed: Array) -> Array:
    """A mask array of the input's dtype from a bool array that is True where a key may be attended.

    Raises:
        UsageError: the input holds something other than a mask, or the dtype for an additive mask is no float.
    """
    _check_is_mask(mask)
    if mask.polarity == "additive":
        if "float" not in dtype:
            raise UsageError(f"mask {mask}: got dtype {dtype} for an additive mask; expected a float.")
        # -inf, not -1e4: with a finite number a fully masked row still attends to its keys, and would not show.
        return np.where(allowed, 0.0, -np.inf).astype(numpy_dtype(dtype))
    return (allowed if mask.polarity == "keep" else ~allowed).astype(numpy_dtype(dtype))


def decode_mask(mask: MaskSpec, array: Array) -> Array:
    """True where a key may be attended, in the shape of `array`; raises UsageError like `encode_mask`."""
    _check_is_mask(mask)
    if mask.polarity == "additive":
        return np.asarray(array.astype(np.float64) > HIDDEN)
    return np.asarray(array != 0 if mask.polarity == "keep" else array == 0)


def check_value(mask: MaskSpec, *, given: bool) -> None:
    """Raises UsageError if a mask cannot be built because an input's value or a window's width is missing."""
    named = [kind for kind in mask.kinds if kind not in COMPUTED]
    if named and not given:
        raise UsageError(f"mask {mask}: {', '.join(named)} is made from an input's value, and none was given.")
    if mask.carries == "marks" and "window" not in mask.kinds:
        raise UsageError(f"mask {mask}: global tokens widen a window, and its width is not given.")


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype for a contract's dtype name; bfloat16 comes from ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return np.dtype(dtype)


def _check_is_mask(mask: MaskSpec) -> None:
    if mask.carries != "mask":
        raise UsageError(
            f"mask {mask}: its input holds {mask.carries}, which have no polarity.",
            hint="attnport.masks.numpy_builders.build makes the mask that they stand for.",
        )
