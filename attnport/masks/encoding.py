"""Masks as arrays of an input's dtype and polarity, back again, and the row classes that they imply.

Letters: B batch, H heads, S query length, T key length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnport.errors import UsageError
from attnport.masks.spec import MaskSpec

Array = np.ndarray[Any, Any]

HIDDEN = -9e3
"""Every customary spelling of "hidden" in an additive mask lies below: -inf, finfo.min, -1e9, -1e4."""


def encode_mask(mask: MaskSpec, dtype: str, allowed: Array) -> Array:
    """A mask array of the input's dtype from a bool array that is True where a key may be attended.

    Raises:
        UsageError: the input holds something else than a mask, or an additive mask is to be no float.
    """
    _check_is_mask(mask)
    if mask.polarity == "additive":
        if "float" not in dtype:
            raise UsageError(f"mask {mask}: got dtype {dtype} for an additive mask; expected a float.")
        # -inf, not a large finite number: at -1e4 nothing is really masked, and fully masked rows must show.
        return np.where(allowed, 0.0, -np.inf).astype(numpy_dtype(dtype))
    return (allowed if mask.polarity == "keep" else ~allowed).astype(numpy_dtype(dtype))


def decode_mask(mask: MaskSpec, array: Array) -> Array:
    """True where a key may be attended, of the shape of `array`. Raises UsageError as `encode_mask`."""
    _check_is_mask(mask)
    if mask.polarity == "additive":
        return np.asarray(array.astype(np.float64) > HIDDEN)
    return np.asarray(array != 0 if mask.polarity == "keep" else array == 0)


def check_value(mask: MaskSpec, *, given: bool) -> None:
    """Raises UsageError where a mask cannot be built: it takes an input's value, or a width, that is not there."""
    named = [kind for kind in mask.kinds if kind in ("padding", "prefix", "documents", "global", "explicit")]
    if named and not given:
        raise UsageError(f"mask {mask}: {', '.join(named)} is made from an input's value, and none was given.")
    if mask.carries == "marks" and "window" not in mask.kinds:
        raise UsageError(f"mask {mask}: global tokens widen a window, and its width is not said.")


def compared_rows(keep_BT: Array) -> Array:
    """Query rows whose result is specified: tokens that are no padding, and all of an item without any key, `[B,T]`."""
    return np.asarray(keep_BT | ~keep_BT.any(axis=-1, keepdims=True))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a contract's dtype name; bfloat16 is ml_dtypes'."""
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
