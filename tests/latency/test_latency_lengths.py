from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_model import IO, LONGEST

from attnport.artifacts import IOContract
from attnport.cases.inputs import keeps, real_tokens
from attnport.dims import Dim, TensorSpec
from attnport.errors import UsageError
from attnport.latency.workloads import ragged_case, read_lengths, spread
from attnport.masks import MaskSpec


def test_lengths_are_read_one_a_line_or_with_a_count_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("7\n3:2\n\n 7 : 40 \n3\n")
    assert read_lengths(path) == {3: 3, 7: 41}
    assert list(read_lengths(path)) == [3, 7]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no length"),
        ("\n \n", "holds no length"),
        ("5\nsix\n", "line 2: got 'six'"),
        ("0", "line 1: got '0'"),
        ("5:0", "line 1: got '5:0'"),
        ("-3", "line 1"),
        ("1.5", "line 1"),
        ("5:", "line 1"),
        ("9" * 40, "line 1"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_lengths(path)
    assert said in str(caught.value)
    assert "LENGTH:COUNT" in caught.value.hint


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_lengths(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read"):
        read_lengths(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe1")
    with pytest.raises(UsageError, match="not a text file"):
        read_lengths(tmp_path / "binary")


def test_the_lengths_of_a_batch_stand_for_the_histogram() -> None:
    assert spread({5: 1}, 3) == [5, 5, 5]
    assert spread({1: 50, 10: 40, 100: 10}, 10) == [1] * 5 + [10] * 4 + [100]
    assert spread({1: 50, 10: 40, 100: 10}, 1) == [1]  # the median
    assert spread({3: 10**15, 4: 10**15}, 2) == [3, 4]


def test_a_ragged_batch_has_these_lengths_and_no_other_tokens() -> None:
    case = ragged_case(IO, [1, 5, 5, 20], seed=3)
    assert case.feeds["input_ids"].shape == (4, 20)
    keep_BT = keeps(IO, case.feeds)["attention_mask"]
    assert sorted(keep_BT.sum(axis=1)) == [1, 5, 5, 20]
    assert (np.diff(keep_BT.astype(int), axis=1) <= 0).all()  # padded on the right
    assert real_tokens(IO, case.feeds) == 31
    assert case.name == "4 of lengths 1-20"
    np.testing.assert_array_equal(case.feeds["input_ids"], ragged_case(IO, [20, 5, 5, 1][::-1], 3).feeds["input_ids"])


def test_a_ragged_batch_is_padded_to_a_multiple_of_the_step() -> None:
    case = ragged_case(replace(IO, dims=(IO.dims[0], Dim("seq", 8, 16, 32, 8))), [1, 17], seed=3)
    assert case.feeds["input_ids"].shape == (2, 24)
    assert sorted(case.feeds["attention_mask"].sum(axis=1)) == [1, 17]


def test_a_mask_that_carries_lengths_gets_them() -> None:
    io = IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", 4)), TensorSpec("lengths", "int32", ("batch",))),
        (TensorSpec("y", "float32", ("batch", "seq", 4)),),
        IO.dims,
        (MaskSpec(("padding",), "lengths", carries="lengths"),),
    )
    case = ragged_case(io, [2, 9])
    assert sorted(case.feeds["lengths"]) == [2, 9]
    assert case.feeds["lengths"].dtype == np.int32


def test_lengths_that_the_model_does_not_take_are_refused() -> None:
    with pytest.raises(UsageError, match=f"seq from 1 to {LONGEST}"):
        ragged_case(IO, [LONGEST + 1])
    with pytest.raises(UsageError, match="batch from 1 to 32"):
        ragged_case(IO, [1] * 33)


def test_a_model_whose_batches_cannot_be_ragged_is_refused() -> None:
    with pytest.raises(UsageError, match="no padding mask"):
        ragged_case(replace(IO, masks=()), [1, 2])
    pairs = TensorSpec("attention_mask", "int64", ("batch", "seq", "seq"))
    with pytest.raises(UsageError, match="more than a padding mask"):
        ragged_case(replace(IO, inputs=(IO.inputs[0], pairs)), [1, 2])


def test_dims_of_a_dim_that_starts_above_one_are_kept() -> None:
    io = replace(IO, dims=(Dim("batch", 2, 4, 8), Dim("seq", 4, 8, 48)))
    with pytest.raises(UsageError, match="batch from 2 to 8"):
        ragged_case(io, [5])
    with pytest.raises(UsageError, match="seq from 4"):
        ragged_case(io, [2, 3])
