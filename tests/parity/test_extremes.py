from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnport.artifacts import IOContract
from attnport.cases import inputs
from attnport.cases.inputs import EQUAL_ROWS, EXTREMES, LARGE, LARGE_VALUES, ZEROS
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

IDS = TensorSpec("ids", "int64", ("batch", "seq"), 100)
X = TensorSpec("x", "float16", ("batch", 2, "seq", 8))
MASK = TensorSpec("mask", "int64", ("batch", "seq"), 2)
BIAS = TensorSpec("bias", "float32", ("batch", 1, "seq", "seq"))
OUTPUT = TensorSpec("y", "float32", ("batch", "seq", 8))
IO = IOContract(
    (IDS, X, MASK, BIAS),
    (OUTPUT,),
    (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512)),
    (MaskSpec(("padding",), "mask"), MaskSpec(("bias", "padding"), "bias", "additive")),
)


@pytest.fixture
def found() -> dict[str, inputs.Case]:
    return {case.name: case for case in inputs.cases(IO) if case.group == "extremes"}


def test_each_has_a_case_of_usual_sizes_with_a_mask_as_it_was(found: dict[str, inputs.Case]) -> None:
    assert list(found) == list(EXTREMES)
    for case in found.values():
        assert case.feeds["ids"].shape == (4, 32)
        assert case.feeds["mask"].any(axis=1).all()
        assert {name: array.dtype for name, array in case.feeds.items()} == {
            "ids": np.int64, "x": np.float16, "mask": np.int64, "bias": np.float32,
        }  # fmt: skip


def test_large_values_saturate_and_stand_in_padded_places_too(found: dict[str, inputs.Case]) -> None:
    feeds = found[LARGE_VALUES].feeds
    assert 0.8 * LARGE < feeds["x"].astype(np.float64).std() < 1.2 * LARGE
    assert set(np.unique(feeds["ids"])) == {0, 99}
    hidden = np.isneginf(feeds["bias"])
    assert hidden.any()
    assert 0.8 * LARGE < feeds["bias"][~hidden].std() < 1.2 * LARGE
    padded = feeds["mask"] == 0
    assert np.abs(feeds["x"].transpose(0, 2, 1, 3)[padded]).max() > LARGE


def test_zeros_are_zeros_and_nothing_else(found: dict[str, inputs.Case]) -> None:
    feeds = found[ZEROS].feeds
    assert not feeds["ids"].any()
    assert not feeds["x"].any()
    assert feeds["mask"].all()


def test_equal_rows_stand_twice_or_more_often_in_every_item_and_items_differ(found: dict[str, inputs.Case]) -> None:
    feeds = found[EQUAL_ROWS].feeds
    for item, different in enumerate((16, 8, 4, 2)):
        x = feeds["x"][item]
        assert len(np.unique(x.astype(np.float32), axis=1)[0]) == different
        assert (x[:, :different] == x[:, -different:]).all()
        assert (feeds["ids"][item, :different] == feeds["ids"][item, -different:]).all()
    assert (feeds["x"][0] != feeds["x"][1]).any()
    assert (feeds["x"][0, 0, 0] != feeds["x"][0, 1, 0]).any()
    assert feeds["mask"].all()


@pytest.mark.parametrize("longest", [1, 2])
def test_what_would_change_nothing_is_no_case(longest: int) -> None:
    short = dataclasses.replace(IO, dims=(IO.dims[0], Dim("seq", 1, longest, longest)))
    assert EQUAL_ROWS not in {case.name for case in inputs.cases(short)}
    assert {ZEROS, LARGE_VALUES} <= {case.name for case in inputs.cases(short)}
