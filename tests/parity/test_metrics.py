"""Each metric is fed right answers and wrong ones."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from attnport.artifacts import Argmax, NonFinite, Ulps
from attnport.dims import TensorSpec
from attnport.parity import metrics
from attnport.parity.bound import Yardstick, judge
from attnport.parity.metrics import Errors, measure

HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 4))
LOGITS = TensorSpec("logits", "float32", ("batch", "seq", 4))
OVER_POSITIONS = TensorSpec("start_logits", "float32", ("batch", "seq"))
EXPECTED = np.random.default_rng(0).standard_normal((2, 6, 4))
VALID = np.ones((2, 6), dtype=bool)
VALID[1, 3:] = False


def changed(where: tuple[int, ...], value: float) -> np.ndarray:
    got = EXPECTED.copy()
    got[where] = value
    return got


def errors(got: np.ndarray, spec: TensorSpec = HIDDEN) -> Errors:
    return measure(got, EXPECTED, VALID, spec)


def test_valid_and_padded_rows_are_measured_apart() -> None:
    found = errors(changed((1, 5, 0), EXPECTED[1, 5, 0] + 3.0))
    assert (found.rms, found.max, found.relative) == (0.0, 0.0, 0.0)
    assert found.padded is not None
    assert (found.padded.elements, found.padded.max_error) == (12, pytest.approx(3.0))
    assert found.padded.rms_error == pytest.approx(3.0 / math.sqrt(12))
    found = errors(changed((0, 5, 0), EXPECTED[0, 5, 0] + 3.0))
    assert (found.max, found.padded.max_error if found.padded else None) == (pytest.approx(3.0), 0.0)
    assert measure(EXPECTED, EXPECTED, np.ones((2, 6), dtype=bool), HIDDEN).padded is None


def test_the_census_tells_nan_from_inf_and_valid_rows_from_padded_ones() -> None:
    got = EXPECTED.copy()
    got[0, 0, :2], got[0, 1, 0], got[0, 2, :3] = np.nan, np.inf, -np.inf
    got[1, 4, 0] = np.nan
    found = errors(got)
    assert found.census == NonFinite(2, 1, 3)
    assert found.padded is not None
    assert (found.padded.nonfinite, found.padded.rms_error) == (NonFinite(1, 0, 0), None)
    assert found.problem == "NaN or Inf in 6 of 36 valid elements (2 NaN, 1 Inf, 3 -Inf)"
    assert (found.rms, found.ulps, found.cosine) == (None, None, None)


def test_padded_rows_that_are_not_finite_leave_the_errors_of_valid_ones_as_they_are() -> None:
    got = changed((1, 5, 0), np.inf)
    got[0, 0, 0] += 0.25
    found = errors(got)
    assert "padded query rows" in found.problem
    assert found.census == NonFinite()
    assert found.max == pytest.approx(0.25)


def test_the_relative_norm_is_that_of_the_reference_and_none_of_a_zero_one() -> None:
    assert errors(1.5 * EXPECTED).relative == pytest.approx(0.5)
    zero = np.zeros_like(EXPECTED)
    assert measure(zero + 1, zero, VALID, HIDDEN).relative is None


def test_the_cosine_is_the_least_over_valid_rows() -> None:
    got = EXPECTED.copy()
    got[1, 5] *= -1
    assert errors(got).cosine == pytest.approx(1)
    got[0, 5] *= -1
    assert errors(got).cosine == pytest.approx(-1)
    got[0, 5] = 0
    assert errors(got).cosine == 0
    assert errors(1e200 * EXPECTED).cosine == pytest.approx(1)  # its squares overflow
    turned = np.zeros((1, 3, 4)), np.zeros((1, 3, 4))
    turned[0][0, 0, 0], turned[1][0, 0, 1] = 1.0, 1.0
    assert measure(*turned, np.ones((1, 3), dtype=bool), HIDDEN).cosine == 0


@pytest.mark.parametrize(
    ("dtype", "eps"), [(np.float32, 2.0**-23), (np.float16, 2.0**-10), (ml_dtypes.bfloat16, 2.0**-7), (float, 2.0**-52)]
)
def test_ulps_are_those_of_the_dtype_that_came_back(dtype: type, eps: float) -> None:
    ones, valid = np.ones((2, 500)), np.ones((2, 500), dtype=bool)
    got = ones.copy()
    got[0, :200] += eps  # one ULP above 1
    got[1, 0] += 8 * eps
    found = measure(got.astype(dtype), ones, valid, TensorSpec("y", "float32", ("batch", "seq")))
    assert found.ulps is not None
    assert (found.ulps.p50, found.ulps.p90, found.ulps.p99, found.ulps.max) == (0, 1, 1, 8)


def test_a_result_that_is_rounded_once_is_half_an_ulp_off_at_every_magnitude() -> None:
    wanted = np.random.default_rng(1).standard_normal(4000) * 10.0 ** np.linspace(-44, 37, 4000)
    wanted[:2] = 0, 1e-46
    spec, valid = TensorSpec("y", "float32", ("n",)), np.ones(4000, dtype=bool)
    found = measure(wanted.astype(np.float32), wanted, valid, spec)
    assert found.ulps is not None
    assert 0.45 < found.ulps.max <= 0.5
    twice = measure(wanted.astype(np.float32) * np.float32(1 + 2**-20), wanted, valid, spec).ulps
    assert twice is not None
    assert twice.p50 > 4


def test_an_error_beside_zero_counts_in_the_least_there_is() -> None:
    def ulps(error: np.ndarray, dtype: str) -> Ulps:
        found = metrics._quantiles([metrics._distances(error, np.zeros_like(error), dtype)])
        assert found is not None
        return found

    found = ulps(np.array([1.0, -3.0, 5.0]) * 2.0**-149, "float32")
    assert (found.p50, found.max) == (3, 5)
    assert metrics._distances(np.ones(2), np.zeros(2), "int64") is None
    assert math.isfinite(ulps(np.full(2, 1e300), "float64").max)


def test_argmax_counts_valid_rows_alone() -> None:
    top = EXPECTED[0, 0].argmax()
    assert errors(EXPECTED, LOGITS).argmax == Argmax(9, 9)
    assert errors(changed((0, 0, (top + 1) % 4), 50.0), LOGITS).argmax == Argmax(9, 8)
    assert errors(changed((1, 4, 0), 50.0), LOGITS).argmax == Argmax(9, 9)
    assert errors(np.zeros_like(EXPECTED), LOGITS).argmax != Argmax(9, 9)
    assert errors(EXPECTED).argmax is None  # no logits by its name


def test_argmax_of_logits_over_positions_leaves_padded_ones_out() -> None:
    expected = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 99.0]])
    valid = np.array([[True, True, True], [True, True, False]])
    got = expected.copy()
    got[1, 2] = -99.0
    assert measure(got, expected, valid, OVER_POSITIONS).argmax == Argmax(2, 2)
    got[1, 0] = 5.0
    assert measure(got, expected, valid, OVER_POSITIONS).argmax == Argmax(2, 1)


def test_rows_whose_largest_stands_twice_agree_with_either() -> None:
    expected = np.array([[[1.0, 1.0, 0.0]]])
    valid, spec = np.ones((1, 1), dtype=bool), TensorSpec("logits", "float32", ("batch", "seq", 3))
    for got, agree in (([0.9, 1.1, 0.0], 1), ([1.1, 0.9, 0.0], 1), ([0.0, 0.0, 1.0], 0)):
        assert measure(np.array([[got]]), expected, valid, spec).argmax == Argmax(1, agree)
    assert metrics.argmax_agreement(np.zeros((2, 1)), np.zeros((2, 1)), np.ones(2, dtype=bool)) is None


def test_a_root_mean_square_neither_overflows_nor_vanishes() -> None:
    assert metrics.rms(np.array([3e300, 4e300])) == pytest.approx(math.sqrt(12.5) * 1e300)
    assert metrics.rms(np.array([3e-300, 4e-300])) == pytest.approx(math.sqrt(12.5) * 1e-300)
    assert metrics.rms(np.zeros(3)) == 0


def test_what_is_measured_a_few_rows_at_a_time_is_what_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    got = EXPECTED + np.random.default_rng(1).standard_normal(EXPECTED.shape) * 10.0 ** -np.arange(1.0, 13.0).reshape(
        2, 6, 1
    )
    spoilt, beside = changed((0, 5, 0), np.inf), changed((1, 5, 0), np.nan)
    reference = EXPECTED.copy()
    reference[0, 2, 1] = np.nan
    for one, other in ((got, EXPECTED), (spoilt, EXPECTED), (beside, EXPECTED), (got, reference)):
        whole = measure(one, other, VALID, LOGITS)
        with monkeypatch.context() as patch:
            patch.setattr(metrics, "_BLOCK", 8)  # two rows
            parts = measure(one, other, VALID, LOGITS)
        for field in dataclasses.fields(Errors):
            mine, theirs = getattr(parts, field.name), getattr(whole, field.name)
            if field.name == "padded" and theirs:
                assert (mine.elements, mine.nonfinite) == (theirs.elements, theirs.nonfinite)
                assert (mine.rms_error, mine.max_error) == pytest.approx((theirs.rms_error, theirs.max_error))
            else:
                assert mine == (pytest.approx(theirs) if isinstance(theirs, float) else theirs), field.name


def test_measuring_takes_little_more_memory_than_what_is_measured() -> None:
    got = np.ones((4, 100, 20_000), np.float32)  # 64 MB as a reference
    wanted, valid = got.astype(np.float64), np.ones((4, 100), dtype=bool)
    tracemalloc.start()
    assert measure(got, wanted, valid, TensorSpec("logits", "float32", ("batch", "seq", 20_000))).max == 0
    assert tracemalloc.get_traced_memory()[1] < 4 * wanted.nbytes
    tracemalloc.stop()


LOWEST = {name: float(ml_dtypes.finfo(name).min) for name in ("float64", "float32", "float16", "bfloat16")}


@pytest.mark.parametrize(
    ("fill", "own"),
    [
        (-1e4, -1e4),
        (-1e9, -1e9),
        (-1e9, -np.inf),
        (-np.inf, -np.inf),
        (np.inf, np.inf),
        (-1e9, -65504.0),
        *((LOWEST["float64"], own) for own in LOWEST.values()),
    ],
)
def test_fill_values_hide_no_error_of_the_others(fill: float, own: float) -> None:
    wanted, got = EXPECTED.copy(), EXPECTED.copy()
    wanted[..., 3], got[..., 3] = fill, own
    right = measure(got, wanted, VALID, LOGITS)
    assert (right.problem, right.rms, right.max) == ("", 0.0, 0.0)
    assert right.reference_rms < 3
    assert right.argmax is not None
    assert right.argmax.agree == right.argmax.rows
    got[0, 0, 0] += 1
    wrong = measure(got, wanted, VALID, LOGITS)
    assert (wrong.max, wrong.reference_rms) == (pytest.approx(1), right.reference_rms)


@pytest.mark.parametrize("own", [0.0, -2.0, 1e9, -1.2e9, -1.006e9, np.nan, np.inf, 65504.0])
def test_another_number_in_the_place_of_a_fill_value_is_an_error(own: float) -> None:
    wanted, got = EXPECTED.copy(), EXPECTED.copy()
    wanted[..., 3] = got[..., 3] = -1e9
    got[0, 0, 3] = own
    found = measure(got, wanted, VALID, LOGITS)
    assert found.problem or (found.max or 0.0) > 1e6


def test_large_numbers_among_large_numbers_stand_for_themselves() -> None:
    wanted = EXPECTED * 1e8
    found = measure(wanted + 1e4, wanted, VALID, HIDDEN)
    assert found.max == pytest.approx(1e4)
    assert found.reference_rms > 1e7


def test_no_whole_number_is_another_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, wanted = TensorSpec("ids", "int64", ("batch", "seq")), np.arange(12).reshape(2, 6) + 10**9
    found = measure(wanted + 1, wanted, VALID, spec)
    assert (found.unequal, found.reference_rms) == (9, 0.0)
    monkeypatch.setattr(metrics, "_BLOCK", 2)
    assert measure(wanted + 1, wanted, VALID, spec).unequal == 9
    exact = measure(wanted, wanted, VALID, spec)
    for plan in ("fp32", "fp16", "bf16"):
        assert judge("c", "ids", exact, Yardstick(plan, {"c": {"ids": exact}})).verdict == "PASS"
        assert judge("c", "ids", found, Yardstick(plan, {"c": {"ids": exact}})).verdict == "FAIL"
    few = measure(np.where(wanted == 10**9, wanted + 5000, wanted), wanted, VALID, spec)
    assert judge("c", "ids", found, Yardstick("fp16", {"c": {"ids": few}})).verdict == "FAIL"
    assert judge("c", "ids", few, Yardstick("fp16", {"c": {"ids": few}})).verdict == "PASS"


@pytest.mark.parametrize(
    ("wanted", "got"),
    [([0, 0, 0, 20000], 20100), ([1e-3, 2e-3, 3e-3, 1e5], 99500), ([1, 2, 3, 5e5], np.inf), ([1, 2, 2e5, 2e5], 65504),
        ([0, 0, 16000, 32000], 32200), ([0.2, 0.1, 12000, 12000], 12100), ([0, 1, -2e4, -2e4], -65504),
        ([0, 1, -2e4, -2e4], -np.inf)],
)  # fmt: skip
def test_a_large_number_that_means_something_is_compared(wanted: list[float], got: float) -> None:
    result = np.array([*wanted[:3], got], np.float32)
    found = measure(result, np.array(wanted, np.float64), np.ones(4, bool), TensorSpec("y", "float32", ("n",)))
    assert found.problem or (found.max or 0.0) > 90


def test_a_scalar_may_be_infinite_and_whole_numbers_stand_for_themselves() -> None:
    one, other = metrics.without_fills(np.array(-np.inf, np.float32), np.array(-np.inf))
    assert one == other == 0
    ids, others = np.array([0, 0, 30522, 30522]), np.array([0, 0, 30300, 30522])
    kept = metrics.without_fills(ids, others)
    assert kept[0] is ids
    assert kept[1] is others


@pytest.mark.parametrize(
    ("reference", "level"),
    [
        ([0.1, 1, 1, -2e4, -2e4], 2e3), ([10, 20, 30, -2e4, -2e4], None), ([0.01, 0.02, -5000, -5000], None),
        ([0.1, 0.2, -2e4, -3e4], None), ([0.1, 0.2, 2e4, 2e4], None), ([0.1, 0.2, -1e9], None),
        ([0.1, 0.2, -3.4028e38], 3.4e37), ([0.1, 0.2, -1e9, -1e9, -3.4028e38], 1e8), ([0.1, -1e9, -2e9, -1e9], 2e8),
        ([0.1, 0.2, np.nan, -np.inf], np.inf), ([np.nan, 0.1], None), ([-1e9, -1e9], None),
    ],
)  # fmt: skip
def test_a_fill_value_is_one_of_several_and_far_from_all_others(reference: list[float], level: float | None) -> None:
    found = metrics.fills_of(np.array(reference))
    assert (found.level if found else None) == (pytest.approx(level, rel=1e-2) if level else None)


def test_a_fill_value_never_is_the_largest_logit_and_padded_rows_have_none() -> None:
    wanted = -1 - np.abs(EXPECTED)
    wanted[..., 0] = -1e9
    right = measure(wanted, wanted, VALID, LOGITS)
    wrong = wanted.copy()
    wrong[0, 0, 1 + int(wanted[0, 0, 1:].argmax() == 0)] = 0.0
    found = measure(wrong, wanted, VALID, LOGITS)
    assert right.argmax is not None
    assert found.argmax is not None
    assert (right.argmax.agree, found.argmax.agree) == (right.argmax.rows, right.argmax.rows - 1)
    padded = EXPECTED.copy()
    padded[1, 3:] = -1e9
    assert metrics.fills_of(padded, VALID) is None


@pytest.mark.parametrize("valid", [None, np.arange(3000) % 3 > 0])
def test_fills_are_found_in_outputs_of_many_blocks(valid: np.ndarray | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_BLOCK", 1000)
    wanted = np.random.default_rng(0).standard_normal((3000, 7))
    wanted[:, 5], wanted[::2, 6] = -1e9, -2e9
    found = metrics.fills_of(wanted, valid)
    assert found is not None
    counted = wanted if valid is None else wanted[valid]
    assert (found.low, found.high) == (counted[counted > -1e8].min(), counted.max())
    assert 1e8 <= found.level < 1e9
