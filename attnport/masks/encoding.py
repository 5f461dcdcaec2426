"""Converts masks to arrays of an input's dtype and polarity and back.

Letters: B batch, H heads, S query length, T key length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnport.errors import UsageError
from attnport.masks.spec import COMPUTED, MaskSpec

Array = np.ndarray[Any, Any]

HIDDEN = -9e3
"""In an additive mask, a larger number allows the key; -inf, finfo.min, -1e9 and -1e4 are the usual ones to hide it."""


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
