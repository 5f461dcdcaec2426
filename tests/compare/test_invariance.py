from __future__ import annotations

import dataclasses

import numpy as np

from attnport.artifacts import IOContract
from attnport.compare import inputs
from attnport.compare.invariance import MORE, Spread, rows_of, variants
from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec

IO = IOContract(
    (TensorSpec("ids", "int64", ("batch", "seq"), 100), TensorSpec("mask", "int64", ("batch", "seq"))),
    (TensorSpec("hidden", "float32", ("batch", "seq", 8)), TensorSpec("pooled", "float32", ("batch", 8))),
    (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512)),
    (MaskSpec(("padding",), "mask"),),
)


def right(io: IOContract = IO) -> inputs.Case:
    return next(case for case in inputs.cases(io) if case.name == "right padding")


def test_each_item_stands_alone_and_with_more_padding_on_the_right() -> None:
    case = right()
    made = list(variants(IO, case))
    assert [variant.row for variant in made] == [0, 1, 2, 3]
    for variant in made:
        assert variant.length == case.feeds["mask"][variant.row].sum()
        assert (variant.alone["ids"][0] == case.feeds["ids"][variant.row, : variant.length]).all()
        ((start, padded),) = variant.padded.values()
        assert start == 0
        assert padded["mask"].tolist() == [[1] * variant.length + [0] * MORE]
        assert (padded["ids"][0, : variant.length] == variant.alone["ids"][0]).all()


def test_a_model_without_positions_is_padded_on_both_sides() -> None:
    io = dataclasses.replace(IO, positions="none")
    (left,) = (found for name, found in next(variants(io, right(io))).padded.items() if "left" in name)
    start, feeds = left
    assert start == MORE
    assert not feeds["mask"][0, :MORE].any()
    assert feeds["mask"][0, MORE:].all()


def test_more_padding_stays_within_the_models_limit() -> None:
    io = dataclasses.replace(IO, dims=(IO.dims[0], Dim("seq", 1, 32, 32)))
    made = list(variants(io, right(io)))
    assert not made[0].padded  # fills the limit already
    assert all(feeds["ids"].shape[1] <= 32 for one in made for _, feeds in one.padded.values())


def test_items_without_keys_or_not_padded_on_the_right_are_left_out() -> None:
    by_name = {case.name: case for case in inputs.cases(IO)}
    assert [one.row for one in variants(IO, by_name["one row fully masked"])] == [0, 1, 2]
    assert [one.row for one in variants(IO, by_name["left padding"])] == [0]


def test_models_without_a_padding_mask_have_no_variants() -> None:
    io = IOContract((IO.inputs[0],), IO.outputs, IO.dims)
    assert not list(variants(io, inputs.cases(io)[0]))


def test_rows_of_an_item_are_cut_where_the_output_has_the_dims() -> None:
    hidden, pooled = np.arange(4 * 9 * 8).reshape(4, 9, 8), np.arange(32).reshape(4, 8)
    assert (rows_of(IO, IO.outputs[0], hidden, 2, 1, 5) == hidden[2:3, 1:6]).all()
    assert (rows_of(IO, IO.outputs[1], pooled, 2, 1, 5) == pooled[2:3]).all()
    assert rows_of(IO, IO.outputs[0], pooled, 2, 1, 5).size == 0  # a result of another rank never compares equal


def test_a_spread_gathers_differences_over_pairs() -> None:
    spread = Spread()
    spread.add(np.zeros(3), np.array([0, 3, 0]))
    spread.add(np.zeros(1), np.array([4.0]))
    assert spread.rms == 2.5
    assert spread.largest == 4


def test_pairs_that_cannot_be_compared_are_a_problem_never_equal() -> None:
    for one, other in (
        (np.zeros(3), np.zeros(4)),
        (np.zeros(0), np.zeros(0)),
        (np.array([np.nan]), np.array([np.nan])),
    ):
        spread = Spread()
        spread.add(np.zeros(2), np.zeros(2))
        spread.add(one, other)
        assert spread.problem
        assert spread.rms is None
    assert Spread().rms is None
