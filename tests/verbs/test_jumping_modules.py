"""A module whose outputs jump where two scores change places is not taken for one that the graph computes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.parity.bound import measure_all
from attnport.parity.sizes import _jumps, size_cases

IO = IOContract(
    (TensorSpec("x", "float32", ("batch", 8)),),
    (TensorSpec("y", "float32", ("batch", 40, 8)),),
    (Dim("batch", 1, 2, 4),),
)
CASE = size_cases(IO)[0][1]
ROWS = {"y": np.random.default_rng(0).standard_normal((CASE.feeds["x"].shape[0], 40, 8))}


class Swapping:
    """A module of which rounding swaps two rows in every second draw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return swapped(2, 3) if self.seed % 2 else single(ROWS["y"])

    def close(self) -> None:
        pass


def single(rows: Any) -> dict[str, Any]:
    return {"y": rows.astype(np.float32)}


def swapped(one: int, other: int) -> dict[str, Any]:
    rows = ROWS["y"].copy()
    rows[:, [one, other]] = rows[:, [other, one]]
    return single(rows)


def jumps(got: dict[str, Any]) -> bool:
    measured = [measure_all(each, ROWS, CASE, IO) for each in (got, single(ROWS["y"]))]
    return _jumps(CASE, measured[0], measured[1], Swapping, ROWS, IO)


def test_two_rows_that_rounding_may_swap_are_explained() -> None:
    assert jumps(swapped(2, 3))
    assert jumps(swapped(0, 1))  # of about the same size


def test_what_is_wrong_in_more_rows_is_not() -> None:
    assert not jumps(single(np.roll(ROWS["y"], 1, 1)))
    assert not jumps(single(1.5 * ROWS["y"] + 3))
    assert not jumps(single(np.full_like(ROWS["y"], np.nan)))
