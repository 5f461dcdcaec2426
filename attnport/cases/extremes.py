"""Extreme values: inputs at which softmax saturates, gets equal scores, or gets only zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.masks.numpy_builders import HIDDEN
from attnport.parities import LARGE_VALUES

Array = np.ndarray[Any, Any]

ZEROS, EQUAL_ROWS = "zeros", "equal rows"
EXTREMES = {LARGE_VALUES: "right padding", ZEROS: "no padding", EQUAL_ROWS: "no padding"}
"""The layout of padding for each: large values are also tried in padding."""

LARGE = 32.0
"""The factor of large values. With usual weights, scores then reach thousands, so that softmax is all or nothing, but
stay within the range of half precision."""


def extreme_feeds(io: IOContract, feeds: Mapping[str, Array], kind: str, batch: str | None) -> dict[str, Array]:
    """The feeds with extreme values in inputs that are not masks or examples, and in the finite part of biases.

    Args:
        io: The contract.
        feeds: An array for every input; integers below `TensorSpec.high`.
        kind: One of `EXTREMES`. `large values` are floats 32 times as large, and integers that are the smallest or the
            largest allowed; with `equal rows`, each position of an item occurs at least twice, so that scores tie.
        batch: The dim that counts items; with `equal rows`, items still differ.
    """
    masks = {mask.input: mask for mask in io.masks if mask.input}
    extreme = {}
    for spec in io.inputs:
        array = feeds[spec.name]
        if spec.name in masks:
            extreme[spec.name] = _larger(array) if kind == LARGE_VALUES and "bias" in masks[spec.name].kinds else array
        elif spec.name in io.examples:
            extreme[spec.name] = array
        elif kind == ZEROS:
            extreme[spec.name] = np.zeros_like(array)
        elif kind == EQUAL_ROWS:
            extreme[spec.name] = _repeating(array, spec, batch)
        elif spec.dtype.startswith("int"):
            extreme[spec.name] = np.where(array % 2 == 1, (spec.high or 2) - 1, 0).astype(array.dtype)
        else:
            extreme[spec.name] = _larger(array)
    return extreme


def _repeating(array: Array, spec: TensorSpec, batch: str | None) -> Array:
    """Repeats positions: in the first item, the first half twice, in the second, a quarter four times, and so on.

    Positions are never all equal: their rounding errors would be equal too, so that the RMS error would not be a mean,
    and a layer that subtracts the mean would leave only rounding errors. (The case `zeros` has equal rows if the model
    does not use positions.)
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
    """Finite numbers times `LARGE`; integers, booleans and values that hide a key are unchanged."""
    if array.dtype.kind in "bi":
        return array
    wide = array.astype(np.float64)
    return np.where(wide > HIDDEN, wide * LARGE, wide).astype(array.dtype)
