"""Golden arrays in a safetensors file: what its own library writes is read, and what contradicts itself is not."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from damaged_safetensors import BAD, DATA, ENTRY, GOOD, SECOND, file

from attnport.bundling import golden
from attnport_bundle import IntegrityError
from attnport_bundle.goldens import read_safetensors

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "case/in/ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "case/in/lengths": np.array([1, 2], dtype=np.int32),
    "case/in/half": np.array([1.5, -0.25], dtype=np.float16),
    "case/in/x": np.linspace(0, 1, 7, dtype=np.float32),
    "case/in/gr\u00f6\u00dfe": np.array(4.5),
    "case/valid/y": np.array([[True], [False]]),
    "case/out/y": np.zeros((2, 0, 3)),
}


def check(got: dict[str, np.ndarray[Any, Any]]) -> None:
    assert set(got) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(got[name], array)
        assert got[name].flags.c_contiguous
        assert got[name].flags.writeable


def test_what_the_library_of_the_format_writes_is_read() -> None:
    check(read_safetensors(safetensors.numpy.save(ARRAYS, {"format": "np"}), "a"))


def test_what_a_bundle_carries_is_read_here_and_by_the_library_of_the_format(tmp_path: Path) -> None:
    golden.write(tmp_path / "a", {**ARRAYS, "case/eager/y": np.zeros(3)})
    check(read_safetensors((tmp_path / "a").read_bytes(), "a"))
    check(safetensors.numpy.load_file(tmp_path / "a"))


def test_equal_goldens_give_equal_bytes_in_any_order_and_layout(tmp_path: Path) -> None:
    arrays = {
        "c/in/x": np.arange(6.0).reshape(2, 3),
        "c/out/y": np.ones((3, 2), np.float32),
        "c/valid/y": np.ones(3, bool),
    }
    golden.write(tmp_path / "a", arrays)
    golden.write(tmp_path / "b", {name: np.asfortranarray(array) for name, array in reversed(arrays.items())})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_safetensors((tmp_path / "a").read_bytes(), "a")["c/out/y"].dtype == np.float64


def test_the_order_of_the_header_need_not_be_that_of_the_data() -> None:
    got = read_safetensors(
        file({"b": SECOND, "none": {**SECOND, "shape": [0], "data_offsets": [24, 24]}, "a": ENTRY}), "a"
    )
    assert {name: array.tolist() for name, array in got.items()} == {"b": [True, False], "none": [], "a": [0.0] * 3}


def test_what_the_damages_start_from_is_read() -> None:
    got = read_safetensors(GOOD, "a")
    assert {name: array.tolist() for name, array in got.items()} == {"a": [0.0, 0.0, 0.0], "b": [True, False]}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_damaged_or_contradict_themselves_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError, match=r"^goldens: "):
        read_safetensors(BAD[name], "goldens")


def test_a_shape_takes_no_memory_before_it_is_refused() -> None:
    data = file({"a": {**ENTRY, "shape": [1 << 27]}, "b": SECOND}, DATA)  # 1 GiB, the most that an array may take
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="does not fit its data"):
            read_safetensors(data, "a")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
