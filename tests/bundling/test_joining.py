"""Requests that are joined into one call get the answers that they get alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnport_bundle.errors import FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.serve.joining import Joining

BATCH, SEQ, SIZE = Dim("batch", 1, 2, 4), Dim("seq", 1, 4, 16), Dim("size", 1, 4, 16)
Arrays = dict[str, np.ndarray[Any, Any]]


def text_io(polarity: str = "keep", outputs: tuple[TensorSpec, ...] = ()) -> IO:
    shape = ("batch", "seq")
    return IO(
        (TensorSpec("ids", "int64", shape, high=500), TensorSpec("mask", "int64", shape, high=2)),
        outputs or (TensorSpec("tokens", "float32", (*shape, 2)), TensorSpec("vector", "float32", ("batch", 1))),
        (BATCH, SEQ),
        (MaskSpec(("padding",), "mask", polarity),),
    )


def request(*lengths: int, width: int, hide: bool = False) -> Arrays:
    real = np.arange(width) < np.array(lengths)[:, None]
    ids = np.where(real, np.arange(width) + 10 * len(lengths), 0)
    return {"ids": ids, "mask": (real != hide).astype("int64")}


def run(feeds: Arrays, hide: bool = False) -> Arrays:
    """A model that keeps to its mask."""
    ids = np.where((feeds["mask"] != 0) != hide, feeds["ids"], 0).astype("float32")
    return {"tokens": np.stack([ids, -ids], -1), "vector": ids.sum(1, keepdims=True)}


@pytest.mark.parametrize("polarity", ["keep", "hide"])
def test_each_request_gets_what_it_gets_alone(polarity: str) -> None:
    hide = polarity == "hide"
    joining = Joining(text_io(polarity))
    requests = [request(3, 1, width=5, hide=hide), request(7, width=7, hide=hide), request(2, 2, 1, width=2, hide=hide)]
    joined = joining.join(requests)
    assert joined["ids"].shape == (6, 7)
    for answer, feeds in zip(joining.split(run(joined, hide), requests), requests, strict=True):
        for name, expected in run(feeds, hide).items():
            np.testing.assert_array_equal(answer[name], expected)


def test_tokens_are_the_real_places_and_not_the_padding() -> None:
    joining = Joining(text_io())
    assert joining.tokens(request(3, 1, width=5)) == 4
    assert joining.tokens(request(0, width=5)) == 1


def test_a_request_may_have_more_items_than_a_batch_and_is_checked_whole() -> None:
    joining = Joining(text_io())
    many = request(*[2] * 11, width=3)
    joining.check(many)
    many["ids"][10, 0] = 500
    with pytest.raises(FeedError, match="expected 0 to 499"):
        joining.check(many)
    for wrong in (
        {**many, "mask": many["mask"][:9]},
        {"ids": many["ids"]},
        {**many, "mask": np.int64(1)},
        request(17, width=17),
        {"ids": many["ids"][:0], "mask": many["mask"][:0]},
    ):
        with pytest.raises(FeedError):
            joining.check({name: np.asarray(array) for name, array in wrong.items()})


def test_without_a_padding_mask_only_equal_sizes_are_alike() -> None:
    shape = ("batch", "size")
    joining = Joining(IO((TensorSpec("x", "float32", shape),), (TensorSpec("y", "float32", shape),), (BATCH, SIZE)))
    first, second, wide = (np.ones((rows, size), "float32") for rows, size in ((1, 3), (2, 3), (1, 4)))
    assert joining.alike({"x": first}) == joining.alike({"x": second}) != joining.alike({"x": wide})
    assert joining.join([{"x": first}, {"x": second}])["x"].shape == (3, 3)
    assert joining.tokens({"x": second}) == 2


@pytest.mark.parametrize(
    "output",
    [
        TensorSpec("y", "float32", ("seq", "batch")),
        TensorSpec("y", "float32", ("batch", "2*seq")),
        TensorSpec("y", "float32", ("batch", "batch")),
        TensorSpec("y", "float32", (3,)),
        TensorSpec("y", "float32", ("batch", "size")),
    ],
    ids=str,
)
def test_an_output_that_would_change_beside_other_requests_is_in_the_way(output: TensorSpec) -> None:
    io = text_io(outputs=(output,))
    with pytest.raises(FeedError, match="y=float32"):
        Joining(IO(io.inputs, io.outputs, (BATCH, SEQ, SIZE), io.masks)).require_independence()
