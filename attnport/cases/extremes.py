"""Extreme values: inputs at which softmax saturates, has nothing to tell apart, or gets zeros alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.masks.encoding import HIDDEN

Array = np.ndarray[Any, Any]

LARGE_VALUES, ZEROS, EQUAL_ROWS = "large values", "zeros", "equal rows"
EXTREMES = {LARGE_VALUES: "right padding", ZEROS: "no padding", EQUAL_ROWS: "no padding"}
"""By name, the layout of padding that each is tried with: large values also where nobody may look."""

LARGE = 32.0
"""Times the usual: the scores of an attention with usual weights reach thousands, so that softmax is all or nothing,
and stay within what half precision can hold."""


def extreme_feeds(io: IOContract, feeds: Mapping[str, Array], kind: str, batch: str | None) -> dict[str, Array]:
    """The same feeds with other values in all inputs that are no masks, and in the finite part of biases.

    Args:
        io: The contract.
        feeds: An array for every input; integers below `TensorSpec.high`.
        kind: Of `EXTREMES`. `large values` are floats 32 times as large, and integers that are the least or the largest
            allowed; with `equal rows`, each position of an item stands there twice or more often, so that scores tie.
        batch: The dim that counts items, along which rows still differ.
    """
    masks = {mask.input: mask for mask in io.masks if mask.input}
    made = {}
    for spec in io.inputs:
        array = feeds[spec.name]
        if spec.name in masks:
            made[spec.name] = _larger(array) if kind == LARGE_VALUES and "bias" in masks[spec.name].kinds else array
        elif kind == ZEROS:
            made[spec.name] = np.zeros_like(array)
        elif kind == EQUAL_ROWS:
            made[spec.name] = _repeating(array, spec, batch)
        elif spec.dtype.startswith("int"):
            made[spec.name] = np.where(array % 2 == 1, (spec.high or 2) - 1, 0).astype(array.dtype)
        else:
            made[spec.name] = _larger(array)
    return made


def _repeating(array: Array, spec: TensorSpec, batch: str | None) -> Array:
    """Positions that repeat: the first half twice in the first item, a quarter four times in the second, and so on.

    Never all equal: their roundings would be equal too, so that the RMS error were no mean over many, and what takes
    the mean away would leave nothing but rounding. (Where no position is told from another, `zeros` has equal rows.)
    """
    axis = spec.dims.index(batch) if batch in spec.dims else None
    items = [array] if axis is None else np.split(array, array.shape[axis], axis)
    for item, part in enumerate(items):
        for along, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim != batch:
                size = part.shape[along]
                part = part.take(np.arange(size) % max(2, size >> (item + 1)), along)
        items[item] = part
    return items[0] if axis is None else np.concatenate(items, axis)


def _larger(array: Array) -> Array:
    """Finite numbers times `LARGE`; what hides a key stays as it is, and so do truth values."""
    if array.dtype.kind in "bi":
        return array
    wide = array.astype(np.float64)
    return np.where(wide > HIDDEN, wide * LARGE, wide).astype(array.dtype)
