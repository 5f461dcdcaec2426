"""Extreme values: inputs at which softmax saturates, has nothing to tell apart, or gets zeros alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
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
            allowed; `equal rows` repeat the first position of each item.
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
            for axis, dim in enumerate(spec.dims):
                if isinstance(dim, str) and dim != batch:
                    array = np.repeat(array.take([0], axis), array.shape[axis], axis)
            made[spec.name] = array
        elif spec.dtype.startswith("int"):
            made[spec.name] = np.where(array % 2 == 1, (spec.high or 2) - 1, 0).astype(array.dtype)
        else:
            made[spec.name] = _larger(array)
    return made


def _larger(array: Array) -> Array:
    """Finite numbers times `LARGE`; what hides a key stays as it is, and so do truth values."""
    if array.dtype.kind in "bi":
        return array
    wide = array.astype(np.float64)
    return np.where(wide > HIDDEN, wide * LARGE, wide).astype(array.dtype)
