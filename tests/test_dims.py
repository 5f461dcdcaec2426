"""Named dims, declarations, profiles and the check of feeds: what fits passes, what does not says what and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnport.dims import Dim, Profile, TensorSpec, parse_profile, parse_sizes, profiles_digest
from attnport.errors import FeedError, ProfileError, UsageError
from attnport_bundle.feeds import check_feeds
from attnport_bundle.format.contract import IO

BATCH, SEQ = Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512)
DIMS = (BATCH, SEQ)
IDS = TensorSpec("input_ids", "int64", ("batch", "seq"), high=1000)
X = TensorSpec("x", "float32", ("batch", "seq", 16))
INPUTS = (IDS, X)


def feeds(batch: int = 2, seq: int = 5) -> dict[str, Any]:
    return {"input_ids": np.zeros((batch, seq), np.int64), "x": np.zeros((batch, seq, 16), np.float32)}


@pytest.mark.parametrize(("low", "opt", "high"), [(2, 1, 3), (1, 4, 3), (-1, 1, 2), (-1, -1, 1), (3, 2, 1)])
def test_a_dim_that_contradicts_itself_is_refused(low: int, opt: int, high: int) -> None:
    with pytest.raises(ProfileError, match=f"got min={low}, opt={opt}, max={high}"):
        Dim("seq", low, opt, high)


@pytest.mark.parametrize("name", ["", "1st", "a b", "a-b", "a=b", "a:b", "é"])
def test_a_dim_name_that_a_profile_could_not_name_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="not an identifier"):
        Dim(name, 1, 1, 1)


def test_an_unknown_dtype_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(UsageError, match=r"dtype 'float8' is not one of float32, .*bool"):
        TensorSpec("x", "float8", ("batch",))


def test_a_declaration_gives_its_shape_and_reads_like_the_command_line() -> None:
    assert X.shape({"batch": 3, "seq": 7}) == (3, 7, 16)
    assert str(X) == "x=float32[batch,seq,16]"
    assert str(SEQ) == "seq=1:128:512"


def test_a_profile_is_read_and_a_dim_left_out_keeps_its_range() -> None:
    assert parse_profile(" seq = 2:64:256 ", DIMS) == Profile((BATCH, Dim("seq", 2, 64, 256)))
    assert parse_profile("batch=4,seq=7", DIMS) == Profile((Dim("batch", 4, 4, 4), Dim("seq", 7, 7, 7)))
    assert parse_profile("", DIMS) == Profile(DIMS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq=8:4:16", "got min=8, opt=4, max=16"),
        ("seq=1:64:32", "got min=1, opt=64, max=32"),
        ("length=1:2:3", "got dim 'length'; the model's dims are batch, seq"),
        ("seq=1:128:513", "the model takes seq from 1 to 512"),
        ("batch=0:1:2", "the model takes batch from 1 to 64"),
        ("seq=1:2:3,seq=1:2:3", "given twice"),
        ("seq=1:2", "cannot read 'seq=1:2'"),
        ("seq=1:2:3:4", "cannot read"),
        ("seq", "cannot read"),
        ("seq=", "cannot read"),
        ("seq=-1:2:3", "cannot read"),
        ("seq=1.5", "cannot read"),
        ("seq=1e3", "cannot read"),
        ("seq=1:128:512;batch=1", "cannot read"),
        ("seq=" + "9" * 5000, "cannot read"),
        ("seq=" + "9" * 18, "the model takes seq from 1 to 512"),
    ],
)
def test_a_profile_that_does_not_fit_says_why(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as raised:
        parse_profile(text, DIMS)
    assert said in str(raised.value)


def test_a_size_that_cannot_be_read_is_not_called_a_profile() -> None:
    with pytest.raises(ProfileError) as raised:
        parse_sizes("nonsense", DIMS)
    assert "profile" not in raised.value.message
    assert "DIM=SIZE" in raised.value.hint


@given(st.text(alphabet="seqbatch=:,0123456789 -", max_size=30))
def test_any_text_is_a_profile_within_the_models_limits_or_a_profile_error(text: str) -> None:
    try:
        profile = parse_profile(text, DIMS)
    except ProfileError:
        return
    for dim, limit in zip(profile.dims, DIMS, strict=True):
        assert limit.min <= dim.min <= dim.opt <= dim.max <= limit.max


@given(st.lists(st.integers(1, 512), min_size=3, max_size=3).map(sorted))
def test_a_profile_reads_back_as_it_was_written(sizes: list[int]) -> None:
    profile = Profile((BATCH, Dim("seq", *sizes)))
    assert parse_profile(str(profile), DIMS) == profile


def test_sizes_left_out_take_the_usual_one() -> None:
    assert parse_sizes("batch=3", DIMS) == {"batch": 3, "seq": 128}
    with pytest.raises(ProfileError, match="the model takes batch from 1 to 64"):
        parse_sizes("batch=65", DIMS)


def test_a_profile_knows_its_sizes_and_what_it_admits() -> None:
    profile = Profile(DIMS)
    assert profile.sizes("max") == {"batch": 64, "seq": 512}
    assert profile.admits({"batch": 64, "seq": 1})
    assert not profile.admits({"batch": 65, "seq": 1})
    assert not profile.admits({"batch": 1, "seq": 0})


def test_the_digest_of_profiles_tells_them_and_their_order_apart() -> None:
    one, other = Profile((BATCH,)), Profile((SEQ,))
    digests = {profiles_digest(profiles) for profiles in ([one], [other], [one, other], [other, one], [])}
    assert len(digests) == 5
    assert profiles_digest([one]) == profiles_digest([Profile((Dim("batch", 1, 8, 64),))])


@pytest.mark.parametrize(("dtype", "high"), [("int64", 0), ("int32", -4), ("float32", 2)])
def test_a_bound_of_values_is_above_zero_and_of_integers(dtype: str, high: int) -> None:
    with pytest.raises(UsageError, match=f"x: got high {high} for {dtype}"):
        TensorSpec("x", dtype, ("batch",), high)


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 5), (64, 512)])
def test_feeds_that_fit_give_their_sizes(batch: int, seq: int) -> None:
    assert check_feeds(IO(INPUTS, (), DIMS), feeds(batch, seq)) == {"batch": batch, "seq": seq}


def test_arrays_of_half_precision_are_understood() -> None:
    inputs = (TensorSpec("x", "bfloat16", ("batch",)),)
    assert check_feeds(IO(inputs, (), DIMS), {"x": np.zeros(3, ml_dtypes.bfloat16)}) == {"batch": 3}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": np.zeros((2, 5), np.int64)}, "input 'inputs': the model has no such input; expected input_ids, x"),
        ({"x": None}, "input 'x': got NoneType; expected numpy.ndarray of float32"),
        ({"x": [[0.0]]}, "input 'x': got list; expected numpy.ndarray of float32; numpy.asarray makes one"),
        ({"x": np.ma.zeros((2, 5, 16), np.float32)}, "input 'x': got numpy.ma.MaskedArray; expected numpy.ndarray"),
        ({"input_ids": np.zeros((2, 5), np.int32)}, "input 'input_ids': got dtype int32; expected int64"),
        ({"input_ids": np.zeros((2, 5), ">i8")}, "input 'input_ids': got dtype >i8; expected int64"),
        ({"x": np.zeros((2, 5))}, "input 'x': got dtype float64; expected float32"),
        ({"x": np.zeros((2, 80), np.float32)}, "input 'x': got rank 2, shape [2, 80]; expected rank 3, x=float32"),
        ({"x": np.zeros((2, 5, 17), np.float32)}, "input 'x': got size 17 on axis 2; expected 16"),
        ({"x": np.zeros((2, 6, 16), np.float32)}, "got seq=6 on axis 1; expected seq=5 as in input 'input_ids'"),
        ({"x": np.zeros((3, 5, 16), np.float32)}, "got batch=3 on axis 0; expected batch=2 as in input 'input_ids'"),
        ({"input_ids": np.zeros((2, 513), np.int64)}, "input 'input_ids': got seq=513 on axis 1; expected 1 to 512"),
        ({"input_ids": np.zeros((0, 5), np.int64)}, "input 'input_ids': got batch=0 on axis 0; expected 1 to 64"),
    ],
)
def test_feeds_that_do_not_fit_name_the_tensor_what_came_and_what_was_expected(
    change: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(FeedError) as raised:
        check_feeds(IO(INPUTS, (), DIMS), {**feeds(), **change})
    assert said in str(raised.value)


def test_a_missing_input_is_named_with_its_declaration() -> None:
    given = feeds()
    del given["x"]
    with pytest.raises(FeedError, match=r"input 'x' is missing; expected x=float32\[batch,seq,16\]"):
        check_feeds(IO(INPUTS, (), DIMS), given)


def test_a_dim_that_one_input_has_twice_must_agree_with_itself() -> None:
    square = (TensorSpec("bias", "float32", ("seq", "seq")),)
    assert check_feeds(IO(square, (), DIMS), {"bias": np.zeros((4, 4), np.float32)}) == {"seq": 4}
    with pytest.raises(FeedError, match="got seq=5 on axis 1; expected seq=4 as in input 'bias'"):
        check_feeds(IO(square, (), DIMS), {"bias": np.zeros((4, 5), np.float32)})


def test_profiles_and_sizes_keep_to_the_step_of_a_dim() -> None:
    dims = (Dim("batch", 1, 8, 64), Dim("seq", 4, 128, 512, 4))
    profile = parse_profile("seq=8:16:24", dims)
    assert str(profile) == "batch=1:8:64,seq=8:16:24:4"
    assert (profile.admits({"seq": 12}), profile.admits({"seq": 14})) == (True, False)
    assert parse_sizes("seq=12", dims) == {"batch": 8, "seq": 12}
    for text in ("seq=10", "seq=4:10:12", "seq=4:8:516"):
        with pytest.raises(ProfileError, match=r"the model takes seq from 4 to 512 in steps of 4\.$"):
            parse_profile(text, dims)
