"""What a model of a bundle takes for an array, and what of it fits the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport_bundle import FeedError, load
from attnport_bundle.model import Model


@pytest.fixture
def model(made_bundle: Path) -> Model:
    return load(made_bundle)


def given(batch: int = 2, size: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    return {"ids": np.ones((batch, size), np.int64), "attention_mask": np.ones((batch, size), np.int64)}


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


WRONG = {
    "unknown": ({"x": np.ones(1)}, "input 'x': the model has no such input"),
    "missing": ({"ids": None}, "input 'ids' is missing; expected ids=int64[batch,seq]"),
    "dtype": ({"ids": np.ones((2, 5), np.int32)}, "input 'ids': got dtype int32; expected int64"),
    "list": ({"ids": [[1]]}, "input 'ids': got list; expected numpy.ndarray of int64; numpy.asarray makes one"),
    "scalar": ({"ids": np.int64(1)}, "input 'ids': got numpy.int64; expected numpy.ndarray of int64"),
    "hidden values": (
        {"ids": np.ma.masked_equal(np.arange(10).reshape(2, 5), 3)},
        "input 'ids': got numpy.ma.MaskedArray; expected numpy.ndarray of int64; .filled(value) makes one",
    ),
    "masked, nothing hidden": ({"ids": np.ma.ones((2, 5), np.int64)}, "input 'ids': got numpy.ma.MaskedArray"),
    "looks like an array": ({"ids": Duck()}, "Duck; expected numpy.ndarray of int64; numpy.asarray makes one"),
    "memory": ({"ids": memoryview(np.ones((2, 5), np.int64))}, "input 'ids': got memoryview; expected numpy.ndarray"),
    "a subclass that lies of its dtype": ({"ids": np.ones((2, 5), np.int32).view(Liar)}, "got dtype int32; expected"),
    "byte order": ({"ids": np.ones((2, 5), ">i8")}, "input 'ids': got dtype >i8; expected int64"),
    "rank": ({"ids": np.ones((2, 5, 1), np.int64)}, "input 'ids': got rank 3, shape [2, 5, 1]; expected rank 2"),
    "differing": (
        {"attention_mask": np.ones((2, 4), np.int64)},
        "got seq=4 on axis 1; expected seq=5 as in input 'ids'",
    ),
    "too large": (given(size=17), "input 'ids': got seq=17 on axis 1; expected 1 to 16"),
    "empty": (given(batch=0), "input 'ids': got batch=0 on axis 0; expected 1 to 8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_feeds_are_refused_by_name(model: Model, name: str) -> None:
    change, words = WRONG[name]
    feeds = {key: value for key, value in {**given(), **change}.items() if value is not None}  # type: ignore[dict-item]
    with pytest.raises(FeedError, match=re.escape(words)):
        model.run(**feeds)


def test_subclasses_of_an_array_give_what_arrays_give(model: Model, tmp_path: Path) -> None:
    wanted = model.run(**given())
    for name, array in given().items():
        array.tofile(tmp_path / name)
    mapped = {name: np.memmap(tmp_path / name, array.dtype, "r", shape=array.shape) for name, array in given().items()}
    for feeds in (mapped, {name: array.view(Liar) for name, array in given().items()}):
        found = model.run(**feeds)
        assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_a_subclass_cannot_hide_an_id_outside_the_vocabulary(model: Model) -> None:
    with pytest.raises(FeedError, match="input 'ids': got values 50 to 50"):
        model.run(**{**given(), "ids": np.full((2, 5), 50).view(Liar)})


@pytest.mark.parametrize("value", [-1, 50])
def test_ids_outside_the_vocabulary_are_refused_where_onnx_would_wrap_them_around(model: Model, value: int) -> None:
    feeds = given()
    feeds["ids"][1, 2] = value
    with pytest.raises(FeedError, match=r"input 'ids': got values .*; expected 0 to 49"):
        model.run(**feeds)
