"""Tensors of integers and booleans, for the search for a divergence: they have no rounding, so they must be equal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attnport.cases.inputs import Array
from attnport.parity.searching import Excess, Reading


@dataclass(frozen=True)
class Difference:
    """In how many of its elements a tensor differs; `got` and `expected` are of the first of them."""

    differing: int
    elements: int
    got: str = ""
    expected: str = ""

    def __str__(self) -> str:
        if not self.differing:
            return f"all {self.elements} elements are equal"
        counted = f"{self.differing} of {self.elements} elements differ"
        return f"{counted}, first {self.got} instead of {self.expected}"


def difference(got: Array | None, expected: Array, own: Array | None, valid: Array) -> Difference | None:
    """Where a tensor differs from the module's, over valid elements; None where the two cannot be compared.

    Args:
        expected: The module's, run in float64.
        own: The module's at the precision plan. Where it differs from `expected`, the module's own integers depend on
            rounding, and nobody can say which are right.
    """
    if got is None or got.shape != expected.shape or expected.size == 0 or expected.dtype.kind not in "iub":
        return None
    if own is not None and not np.array_equal(own, expected):
        return None
    result, wanted = got[valid], expected[valid]
    differing = np.flatnonzero(result != wanted)
    if not differing.size:
        return Difference(0, result.size)
    first = differing[0]
    return Difference(differing.size, result.size, str(result.flat[first]), str(wanted.flat[first]))


def excess(found: Difference | None) -> Excess:
    """As of a tensor of floats: infinite where an element differs."""
    return None if found is None else (math.inf if found.differing else 0.0)


def reading(subject: str, found: Difference | None) -> Reading:
    """The verdict on a tensor."""
    if found is None:
        return Reading(subject, "NOT_RUN", "it cannot be compared")
    return Reading(subject, "FAIL" if found.differing else "PASS", str(found))
