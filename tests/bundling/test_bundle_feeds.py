"""What a model of a bundle takes for an array, and what of it fits the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention as tiny

from attnport_bundle import FeedError
from attnport_bundle.feeds import check_feeds
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.model import Model


class Duck:
    """Says what an array says of itself, and gives another."""

    dtype, shape, size = np.dtype(np.int64), (2, 5), 10

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.full((2, 5), 99)

    def min(self) -> int:
        return 0

    def max(self) -> int:
        return 0


class Liar(np.ndarray[Any, Any]):
    """An array that says something else of itself than its elements are."""

    dtype = np.dtype(np.int64)

    def min(self, *args: Any, **kwargs: Any) -> Any:
        return 0

    def max(self, *args: Any, **kwargs: Any) -> Any:
        return 0


# What is no array of NumPy's, or only looks like one; tests/test_dims.py has the rest of what does not fit.
WRONG: dict[str, tuple[Any, str]] = {
    "scalar": (np.int64(1), "got numpy.int64; expected numpy.ndarray of int64"),
    "hidden values": (
        np.ma.masked_equal(np.arange(10).reshape(2, 5), 3),
        "got numpy.ma.MaskedArray; expected numpy.ndarray of int64; .filled(value) makes one",
    ),
    "looks like an array": (Duck(), "Duck; expected numpy.ndarray of int64; numpy.asarray makes one"),
    "memory": (memoryview(np.ones((2, 5), np.int64)), "got memoryview; expected numpy.ndarray"),
    "a subclass that lies of its dtype": (np.ones((2, 5), np.int32).view(Liar), "got dtype int32; expected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_feeds_are_refused_by_name(model: Model, name: str) -> None:
    ids, words = WRONG[name]
    with pytest.raises(FeedError, match=f"input 'ids': .*{re.escape(words)}"):
        model.run(**{**tiny.ones(), "ids": ids})


def test_subclasses_of_an_array_give_what_arrays_give(model: Model, tmp_path: Path) -> None:
    given = tiny.ones()
    wanted = model.run(**given)
    for name, array in given.items():
        array.tofile(tmp_path / name)
    mapped = {name: np.memmap(tmp_path / name, array.dtype, "r", shape=array.shape) for name, array in given.items()}
    for feeds in (mapped, {name: array.view(Liar) for name, array in given.items()}):
        found = model.run(**feeds)
        assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_a_subclass_cannot_hide_an_id_outside_the_vocabulary(model: Model) -> None:
    with pytest.raises(FeedError, match="input 'ids': got values 50 to 50"):
        model.run(**{**tiny.ones(), "ids": np.full((2, 5), 50).view(Liar)})


@pytest.mark.parametrize("value", [-1, 50])
def test_ids_outside_the_vocabulary_are_refused_where_onnx_would_wrap_them_around(model: Model, value: int) -> None:
    feeds = tiny.ones()
    feeds["ids"][1, 2] = value
    with pytest.raises(FeedError, match=r"input 'ids': got values .*; expected 0 to 49"):
        model.run(**feeds)


@pytest.mark.parametrize(("length", "fits"), [(-1, False), (0, True), (5, True), (6, False)])
def test_a_length_is_at_most_the_size_of_what_it_counts(length: int, fits: bool) -> None:
    specs = (TensorSpec("frames", "float32", ("batch", "seq")), TensorSpec("lengths", "int64", ("batch",)))
    dims = (Dim("batch", 1, 1, 4), Dim("seq", 1, 5, 9))
    io = IO(specs, specs[:1], dims, (MaskSpec(("padding",), "lengths", carries="lengths", keys="seq"),))
    given = {"frames": np.zeros((2, 5), np.float32), "lengths": np.array([5, length])}
    if fits:
        assert check_feeds(io, given) == {"batch": 2, "seq": 5}
        return
    with pytest.raises(FeedError, match=r"input 'lengths': got values .*; expected 0 to 5"):
        check_feeds(io, given)
