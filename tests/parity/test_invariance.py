from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnport.artifacts import IOContract
from attnport.cases import inputs
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.parity.invariance import (
    MORE,
    Spread,
    follows,
    item_masks,
    not_tried,
    rows_of,
    tells_items,
    untold,
    variants,
)
from attnport_bundle.feeds import check_feeds

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
    beside = [padded["ids"][0, variant.length :] for variant in made for _, padded in variant.padded.values()]
    assert any(ids.any() for ids in beside), "zeros alone might not be noticed"


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


def masked(mask: TensorSpec, *specs: MaskSpec, dims: tuple[Dim, ...] = IO.dims) -> IOContract:
    return dataclasses.replace(IO, inputs=(IO.inputs[0], mask), masks=specs, positions="none", dims=dims)


@pytest.mark.parametrize(
    ("io", "sides"),
    [
        (masked(IO.inputs[1], MaskSpec(("padding", "causal"), "mask")), 2),
        (masked(IO.inputs[1], IO.masks[0], MaskSpec(("causal",))), 2),
        (masked(TensorSpec("mask", "float32", ("batch", 1, 1, "seq")), MaskSpec(("padding",), "mask", "additive")), 2),
        (masked(TensorSpec("mask", "bool", ("batch", 1, "seq", "seq")), MaskSpec(("padding", "causal"), "mask")), 2),
        (masked(TensorSpec("mask", "bool", ("batch", "seq", "seq")), MaskSpec(("padding",), "mask", "hide")), 2),
        (masked(TensorSpec("mask", "int32", ("batch",)), MaskSpec(("padding",), "mask", carries="lengths")), 1),
        (masked(IO.inputs[1], MaskSpec(("documents", "padding"), "mask", carries="ids")), 2),
    ],
    ids=lambda found: str(found.masks[0]) if isinstance(found, IOContract) else "",
)
def test_every_mask_that_tells_the_padding_of_an_item_is_tested(io: IOContract, sides: int) -> None:
    names = ("right padding", "documents of several lengths")
    case = next(case for case in inputs.cases(io) if case.name in names)
    made = list(variants(io, case))
    assert len(made) == 4
    for one in made:
        assert inputs.keeps(io, one.alone)["mask"].tolist() == [[True] * one.length]
        assert len(one.padded) == sides
        for start, feeds in one.padded.values():
            kept = [False] * start + [True] * one.length + [False] * (MORE - start)
            assert inputs.keeps(io, feeds)["mask"].tolist() == [kept]
            check_feeds(io, feeds)


def test_a_middle_axis_that_nobody_explains_is_not_taken_for_queries() -> None:
    dims = (*IO.dims, Dim("chunks", 1, 4, 8))
    io = masked(TensorSpec("mask", "int64", ("batch", "chunks", "seq")), MaskSpec(("padding",), "mask"), dims=dims)
    assert item_masks(io) == []
    assert item_masks(dataclasses.replace(io, dims=(Dim("batch", 1, 8, 64),), inputs=IO.inputs, masks=())) == []


def test_why_no_item_was_run_with_other_padding_is_told() -> None:
    chunks = (*IO.dims, Dim("chunks", 1, 4, 8))
    middle = masked(TensorSpec("mask", "int64", ("batch", "chunks", "seq")), IO.masks[0], dims=chunks)
    reasons = {
        "no input says which keys of an item are padding": dataclasses.replace(IO, masks=()),
        "do not tell which part of mask is that of one item": middle,
        "takes 2 or more at a time (batch)": dataclasses.replace(IO, dims=(Dim("batch", 2, 8, 64), IO.dims[1])),
        "of outputs do not tell": dataclasses.replace(IO, outputs=(TensorSpec("y", "float32", ("batch*seq",)),)),
        "no case has an item with padding on the right": IO,
    }
    for words, io in reasons.items():
        assert words in not_tried(io)


def test_several_masks_are_tested_one_after_another_and_rows_padded_by_the_others_are_left_out() -> None:
    memory = (
        TensorSpec("memory", "float32", ("batch", "mem", 4)),
        TensorSpec("memory_mask", "int64", ("batch", "mem")),
    )
    io = dataclasses.replace(
        IO, inputs=(*IO.inputs, *memory), dims=(*IO.dims, Dim("mem", 1, 64, 256)),
        masks=(*IO.masks, MaskSpec(("padding",), "memory_mask")),
    )  # fmt: skip
    made = list(variants(io, right(io)))
    assert [(one.about, one.keys) for one in made[::4]] == [(", of mask", "seq"), (", of memory_mask", "mem")]
    last = made[-1]
    assert last.alone["memory"].shape[1] == last.length < 32
    assert last.alone["ids"].shape == (1, 32)  # not its own padding
    result = np.arange(4 * 32 * 8, dtype=np.float64).reshape(4, 32, 8)
    valid = right(io).feeds["mask"][3] == 1
    assert (last.part(io, io.outputs[0], result, 3, 0) == result[3, valid]).all()
    assert not valid.all()
    assert last.part(io, io.outputs[0], result[0], 3, 0).size == 0


def test_rows_of_an_item_are_cut_where_the_output_has_the_dims() -> None:
    hidden, pooled = np.arange(4 * 9 * 8).reshape(4, 9, 8), np.arange(32).reshape(4, 8)
    assert (rows_of(IO, "seq", IO.outputs[0], hidden, 2, 1, {"seq": 5}) == hidden[2:3, 1:6]).all()
    assert (rows_of(IO, "seq", IO.outputs[1], pooled, 2, 1, {"seq": 5}) == pooled[2:3]).all()
    assert (
        rows_of(IO, "seq", IO.outputs[0], pooled, 2, 1, {"seq": 5}).size == 0
    )  # a result of another rank never compares equal


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


def test_an_output_in_which_the_rows_of_an_item_cannot_be_told_is_left_out() -> None:
    dims = (Dim("batch", 1, 2, 4), Dim("seq", 1, 3, 8), Dim("past", 0, 4, 9))
    x, mask = TensorSpec("x", "float32", ("batch", "seq", 4)), TensorSpec("m", "int64", ("batch", "past"))
    told, grown = TensorSpec("y", "float32", ("batch", "seq", 4)), TensorSpec("k", "float32", ("batch", "past+seq", 4))
    io = IOContract((x, mask), (told, grown), dims, (MaskSpec(("padding",), "m"),))
    assert [tells_items(io, "past", output) for output in io.outputs] == [True, False]
    assert not tells_items(io, "other", TensorSpec("flat", "float32", ("batch*seq", 4)))
    assert tells_items(io, "past", TensorSpec("twice", "float32", ("batch", "2*seq", 4)))
    assert [output.name for output in untold(io)] == ["k"]


@pytest.mark.parametrize(
    ("dim", "rows"),
    [("(seq-1)//2+1", 3), ("2*seq", 10), ("seq+1", 6), ("min(seq,4)", 4), ("seq%4", None), ("8-seq", None),
     ("batch*seq", None), ("other+seq", None), ("seq-3", None), ("other", None)],
)  # fmt: skip
def test_rows_that_follow_from_the_keys_are_the_first_as_many_as_the_size_gives(dim: str, rows: int | None) -> None:
    io = dataclasses.replace(IO, dims=(IO.dims[0], Dim("seq", 1, 8, 16), Dim("other", 1, 2, 4)))
    output = TensorSpec("y", "float32", ("batch", dim, 2))
    assert follows(io, "seq", output) is (rows is not None)
    if rows is not None:
        result = np.arange(3 * 12 * 2).reshape(3, 12, 2)
        sizes = {"batch": 1, "seq": 5}
        assert (rows_of(io, "seq", output, result, 2, 0, sizes) == result[2:3, :rows]).all()
