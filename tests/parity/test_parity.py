from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from attnport.artifacts import (
    PLANS,
    Argmax,
    CaseResult,
    InvarianceResult,
    IOContract,
    NonFinite,
    ParityReport,
    RuntimeParity,
    Verdict,
)
from attnport.cases.inputs import Case
from attnport.dims import Dim, TensorSpec
from attnport.jsonfile import from_json, read, to_json
from attnport.parity import bound as parity
from attnport.parity.invariance import Spread

HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 4))
POOLED = TensorSpec("pooled", "float32", ("batch", 4))
IO = IOContract((), (HIDDEN, POOLED), (Dim("batch", 1, 2, 4), Dim("seq", 1, 6, 8)))
RNG = np.random.default_rng(0)
FP32 = parity.Yardstick("fp32", {})
EXPECTED = {"hidden": RNG.standard_normal((2, 6, 4)), "pooled": RNG.standard_normal((2, 4))}
VALID = np.ones((2, 6), dtype=bool)
VALID[1, 3:] = False
CASE = Case("c", {}, {"hidden": VALID, "pooled": np.ones(2, dtype=bool)}, "masks")
SMALL = 1e-6


def off(by: float, name: str = "hidden") -> np.ndarray:
    signs = np.where(np.arange(EXPECTED[name].size) % 2 == 0, 1.0, -1.0).reshape(EXPECTED[name].shape)
    return (EXPECTED[name] + by * signs).astype(np.float64)


def measured(got: np.ndarray | None, name: str = "hidden") -> parity.Errors:
    spec = next(spec for spec in IO.outputs if spec.name == name)
    return parity.measure(got, EXPECTED[name], CASE.valid[name], spec)


def yardstick(plan: str = "fp32", rms: float = SMALL, largest: float = SMALL) -> parity.Yardstick:
    errors = parity.Errors(elements=36, rms=rms, max=largest, reference_rms=1.0)
    return parity.Yardstick(plan, {"c": {"hidden": errors, "pooled": errors}})


def judged(got: np.ndarray | None, name: str = "hidden", by: parity.Yardstick | None = None) -> parity.CaseResult:
    return parity.judge("c", name, measured(got, name), by or yardstick())


def floor(name: str = "hidden", plan: str = "fp32") -> float:
    step = {"fp32": 2**-23, "fp16": 2**-10, "bf16": 2**-7}[plan]  # from one number that the type holds to the next
    return 4 * step * measured(EXPECTED[name], name).reference_rms


def test_the_reference_itself_passes() -> None:
    result = judged(EXPECTED["hidden"].astype(np.float32))
    assert result.verdict == "PASS"
    assert result.reason == ""
    assert result.elements == 9 * 4


def test_rms_error_is_bounded_by_twice_eagers_plus_the_floor() -> None:
    bound = 2 * SMALL + floor()
    assert judged(off(0.99 * bound)).verdict == "PASS"
    result = judged(off(1.01 * bound), by=yardstick(largest=1.0))
    assert result.verdict == "FAIL"
    assert "RMS" in result.reason
    assert result.rms_bound == pytest.approx(bound)


def test_max_error_is_bounded_by_three_times_eagers_on_the_same_case() -> None:
    usual = parity.Errors(elements=36, rms=1.0, max=5e-6, reference_rms=1.0)
    other = parity.Errors(elements=36, rms=1.0, max=1.0, reference_rms=1.0)
    by = parity.Yardstick("fp32", {"c": {"hidden": usual}, "other": {"hidden": other}})
    for factor, verdict in ((0.99, "PASS"), (1.01, "FAIL")):
        got = EXPECTED["hidden"].copy()
        got[0, 0, 0] += factor * (3 * 5e-6 + floor())
        result = judged(got, by=by)
        assert result.verdict == verdict
        assert result.max_bound == pytest.approx(3 * 5e-6 + floor())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (5 * EXPECTED["hidden"], "RMS"),
        (np.zeros_like(EXPECTED["hidden"]), "RMS"),
        (EXPECTED["hidden"][::-1], "RMS"),
        (EXPECTED["hidden"][:, :5], "shape"),
        (EXPECTED["hidden"][0], "shape"),
        (EXPECTED["hidden"][:, :0], "shape"),
        (EXPECTED["hidden"][..., None], "shape"),
        (EXPECTED["hidden"].astype(np.int32), "dtype"),
        (EXPECTED["hidden"].astype(bool), "dtype"),
        (EXPECTED["hidden"].astype(complex), "dtype"),
        (EXPECTED["hidden"].astype(object), "dtype"),
        (None, "missing"),
    ],
)
def test_wrong_answers_fail_and_say_why(wrong: np.ndarray | None, why: str) -> None:
    result = judged(wrong)
    assert result.verdict == "FAIL"
    assert why in result.reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_nan_or_inf_fails_in_valid_rows_and_in_padded_ones(value: float) -> None:
    inside, padded = EXPECTED["hidden"].copy(), EXPECTED["hidden"].copy()
    inside[0, 2, 1], padded[1, 5, 0] = value, value
    result = judged(inside)
    assert (result.verdict, result.nonfinite, result.rms_error) == ("FAIL", 1, None)
    assert "valid" in result.reason
    result = judged(padded)
    assert result.verdict == "FAIL"
    assert "padded query rows" in result.reason


def test_padded_rows_may_hold_anything_finite() -> None:
    got = EXPECTED["hidden"].copy()
    got[1, 3:] = 1e30
    assert judged(got).verdict == "PASS"


def test_nothing_to_compare_is_a_failure() -> None:
    errors = parity.measure(EXPECTED["hidden"], EXPECTED["hidden"], np.zeros((2, 6), dtype=bool), HIDDEN)
    assert parity.judge("c", "hidden", errors, yardstick()).verdict == "FAIL"


def test_a_row_that_the_module_leaves_undefined_is_not_compared_and_the_others_are() -> None:
    """As of a mean over no key."""
    vectors = TensorSpec("vectors", "float32", ("batch", 4))
    valid, expected = np.ones(2, bool), EXPECTED["hidden"][:, 0].copy()
    expected[1] = np.nan
    assert parity.measure(expected, expected, valid, vectors).problem == ""
    assert parity.measure(np.zeros_like(expected), expected, valid, vectors).max
    wrong = expected.copy()
    wrong[0] = np.nan
    assert "NaN" in parity.measure(wrong, expected, valid, vectors).problem
    expected[0] = np.nan
    assert "reference" in parity.measure(expected, expected, valid, vectors).problem


def test_a_reference_that_is_not_finite_shows_nothing() -> None:
    expected = EXPECTED["hidden"].copy()
    expected[0, 0, 0] = np.nan
    assert "reference" in parity.measure(expected, expected, VALID, HIDDEN).problem


def test_bfloat16_results_are_floating() -> None:
    errors = measured(EXPECTED["hidden"].astype(ml_dtypes.bfloat16))
    assert errors.rms is not None
    assert 0 < errors.rms < 0.01


def test_integer_outputs_are_compared_as_integers() -> None:
    spec = TensorSpec("top", "int64", ("batch",))
    expected, valid = np.array([3, 4]), np.ones(2, dtype=bool)
    assert parity.measure(np.array([3, 4]), expected, valid, spec).max == 0
    assert parity.measure(np.array([3, 5]), expected, valid, spec).max == 1
    assert parity.measure(np.array([3.0, 4.0]), expected, valid, spec).problem


def test_cosine_is_a_gate_of_its_own_for_float32_embeddings_alone() -> None:
    turned = EXPECTED["pooled"].copy()
    turned[1] += 0.02 * np.array([1, -1, 1, -1])
    for plan in PLANS:
        result = judged(turned, "pooled", yardstick(plan, rms=1.0, largest=1.0))
        assert result.cosine is not None
        assert result.cosine < parity.COSINE
        assert result.verdict == ("FAIL" if plan == "fp32" else "PASS")
    opposite = judged(-EXPECTED["hidden"], by=yardstick(rms=1e3, largest=1e3))
    assert opposite.cosine == pytest.approx(-1)
    assert opposite.verdict == "PASS"  # no embedding: the bound of its errors is what counts


def test_cosine_is_the_smallest_over_rows_and_one_zero_row_does_not_agree() -> None:
    got = EXPECTED["pooled"].copy()
    got[0] *= -1
    assert measured(got, "pooled").cosine == pytest.approx(-1)
    got[0] = 0
    assert measured(got, "pooled").cosine == 0
    zero = np.zeros((2, 4))
    assert parity.measure(zero, zero, np.ones(2, dtype=bool), POOLED).cosine == 1


def test_without_eagers_errors_there_is_no_bound_to_pass() -> None:
    by = parity.Yardstick("fp16", {"c": {"hidden": parity.Errors(problem="NaN")}})
    result = judged(EXPECTED["hidden"], by=by)
    assert result.verdict == "FAIL"
    assert "eager at fp16" in result.reason


def test_outputs_that_nobody_declared_are_an_error() -> None:
    found = parity.measure_all({**EXPECTED, "extra": EXPECTED["pooled"]}, EXPECTED, CASE, IO)
    assert "extra" in found["hidden"].problem
    assert not parity.measure_all(EXPECTED, EXPECTED, CASE, IO)["hidden"].problem
    assert parity.measure_all({"hidden": EXPECTED["hidden"]}, EXPECTED, CASE, IO)["pooled"].problem


IN_A_BATCH = ("alone against in a padded batch", "hidden")


def spreads(difference: float) -> dict[tuple[str, str], Spread]:
    found = {IN_A_BATCH: Spread()}
    found[IN_A_BATCH].add(np.zeros(50), np.full(50, difference))
    return found


def test_padding_may_change_rows_by_rounding_alone() -> None:
    bound = 2 * (2 * SMALL + 4 * PLANS["fp32"].eps)
    (passed,) = parity.judge_invariance(spreads(0.99 * bound), yardstick(), ["c"])
    (failed,) = parity.judge_invariance(spreads(1.01 * bound), yardstick(), ["c"])
    assert (passed.verdict, failed.verdict) == ("PASS", "FAIL")
    found = spreads(0.0)
    found[IN_A_BATCH].add(np.zeros(3), np.zeros(0))
    (failed,) = parity.judge_invariance(found, yardstick(), ["c"])
    assert failed.verdict == "FAIL"
    assert "shapes" in failed.comparison


def test_a_runtime_fails_by_one_case_by_one_pair_or_by_having_none() -> None:
    good, bad = judged(EXPECTED["hidden"]), judged(None)
    (leak,) = parity.judge_invariance(spreads(1.0), yardstick(), ["c"])
    assert parity.conclude(FP32, None, [good]).verdict == "PASS"
    failed = parity.conclude(FP32, None, [good, bad], note="n")
    assert failed.verdict == "FAIL"
    assert "1 of 2" in failed.reason
    assert failed.reason.endswith("; n")
    assert parity.conclude(FP32, None, []).verdict == "FAIL"
    empty = dataclasses.replace(good, elements=0, rms_error=0.0, max_error=0.0)
    assert parity.conclude(FP32, None, [good, empty]).verdict == "PASS"
    nothing = parity.conclude(FP32, None, [empty, empty])
    assert (nothing.verdict, nothing.reason) == ("FAIL", "no case was compared")
    leaky = parity.conclude(FP32, None, [good], [leak])
    assert isinstance(leaky.invariance[0], InvarianceResult)
    assert leaky.verdict == "FAIL"
    assert "padding changes" in leaky.reason


def result(case: str, error: float | None, output: str = "y") -> CaseResult:
    """A result of a case whose bound is 1."""
    verdict: Verdict = "PASS" if error is not None and error <= 1 else "FAIL"
    reason = "" if verdict == "PASS" else f"error {error}"
    return CaseResult(case, output, verdict, reason, 8, error, 1.0, error, 1.0, relative=None, cosine=None, nonfinite=0)


def test_a_failure_names_what_passes_where_little_does_and_the_worst_with_its_sizes() -> None:
    found = [result(name, 3.0) for name in "abcd"] + [result("worst", 9.0), result("zeros", 0.1)]
    told = parity.conclude(FP32, None, found, sizes={"worst": "batch=4, seq=32"}).reason
    worst = "case worst (batch=4, seq=32), output 'y': error 9.0"
    assert told == f"5 of 6 results fail; these pass: zeros; worst: {worst}"


def test_a_failure_names_what_fails_where_little_does() -> None:
    found = [result(name, 0.1) for name in "abcde"] + [result("large", 2.0), result("zeros", 3.0)]
    told = parity.conclude(FP32, None, found).reason
    assert told == "2 of 7 results fail (large; zeros); worst: case zeros, output 'y': error 3.0"
    told = parity.conclude(FP32, None, [*found[:6], result("a", 4.0, "z")]).reason
    assert told == "2 of 7 results fail (large, y; a, z); worst: case a, output 'z': error 4.0"


def test_a_failure_names_the_first_where_many_do_both_and_an_error_that_is_no_number_is_the_worst() -> None:
    found = [result(f"pass {n}", 0.1) for n in range(5)] + [result(f"fail {n}", 2.0) for n in range(5)]
    told = parity.conclude(FP32, None, [*found, result("raised", None)]).reason
    which = "6 of 11 results fail (fail 0; fail 1; fail 2; fail 3; 2 more)"
    assert told == f"{which}; worst: case raised, output 'y': error None"
    all_fail = parity.conclude(FP32, None, found[5:]).reason
    assert all_fail == "5 of 5 results fail; worst: case fail 0, output 'y': error 2.0"


def test_the_report_fails_with_any_and_passes_only_with_a_runtime_that_passes() -> None:
    runs = {verdict: RuntimeParity(verdict, "r", "fp32") for verdict in ("PASS", "FAIL", "NOT_RUN")}

    def verdict(runtimes: list[str], forms: list[str]) -> str:
        return parity.report(
            {f"r{index}": runs[name] for index, name in enumerate(runtimes)},
            {f"f{index}": runs[name] for index, name in enumerate(forms)},
        ).verdict

    assert verdict(["PASS", "NOT_RUN"], ["PASS", "NOT_RUN"]) == "PASS"
    assert verdict(["PASS", "FAIL"], []) == "FAIL"
    assert verdict(["PASS"], ["FAIL"]) == "FAIL"
    assert verdict(["NOT_RUN"], ["PASS"]) == "NOT_RUN"
    assert verdict([], []) == "NOT_RUN"


def test_the_relative_error_is_that_of_the_reference() -> None:
    result = judged(off(1e-6))
    assert result.relative == pytest.approx(1e-6 / measured(EXPECTED["hidden"]).reference_rms, rel=1e-6)


def with_extreme(plan: str, extreme: parity.Errors) -> parity.Yardstick:
    usual = parity.Errors(elements=36, rms=SMALL, max=SMALL, reference_rms=1.0)
    return parity.Yardstick(plan, {"c": {"hidden": usual}, "large values": {"hidden": extreme}}, ["large values"])


def test_an_error_that_no_rounding_explains_is_told_from_one_that_it_might() -> None:
    bound = 2 * SMALL + floor()
    for factor, explained in ((1.5, True), (99, True), (101, False)):
        assert parity.within_rounding(judged(off(factor * bound))) == explained
    for got in (None, np.full((2, 6, 4), np.nan)):
        assert not parity.within_rounding(judged(got))
    exact = parity.Yardstick("fp32", {"c": {"hidden": parity.Errors(elements=36, rms=0.0, max=0.0)}})
    zeros, valid = np.zeros((2, 6, 4)), VALID
    wrong = parity.judge("c", "hidden", parity.measure(zeros + SMALL, zeros, valid, HIDDEN), exact)
    assert not parity.within_rounding(wrong)  # there is no bound that it is a multiple of


def test_an_extreme_case_that_overflows_in_eager_too_is_not_run_and_any_other_fails() -> None:
    by = with_extreme("fp16", parity.Errors(elements=36, reference_rms=1.0, problem="NaN or Inf"))
    beyond = parity.judge("large values", "hidden", measured(EXPECTED["hidden"]), by)
    assert (beyond.verdict, "no finite result here either" in beyond.reason) == ("NOT_RUN", True)
    assert parity.judge("large values", "hidden", parity.Errors(problem="it raised"), by).verdict == "FAIL"
    assert parity.judge("unknown", "hidden", measured(EXPECTED["hidden"]), by).verdict == "FAIL"
    good = parity.judge("c", "hidden", measured(EXPECTED["hidden"]), by)
    both = parity.conclude(by, None, [good, beyond])
    assert both.verdict == "PASS"
    assert "1 results within" in both.reason
    assert "1 extreme results without a bound" in both.reason
    assert parity.conclude(by, None, [beyond]).verdict == "FAIL"  # nothing was shown


def test_what_the_module_raises_in_half_precision_leaves_no_bound_and_is_no_failure() -> None:
    raised = parity.failed(IO, "it raised: expected dtype (m.py, line 7: y = q @ k)")["hidden"]
    by = with_extreme("fp16", raised)
    one = parity.judge("large values", "hidden", measured(EXPECTED["hidden"]), by)
    assert one.verdict == "NOT_RUN"
    assert "PyTorch cannot run the module in fp16, so there is no bound: it raised: expected dtype (m.py" in one.reason
    assert parity.judge("large values", "hidden", parity.Errors(problem="NaN or Inf"), by).verdict == "FAIL"
    in_fp32 = parity.Yardstick("fp32", {"c": {"hidden": raised}})
    assert judged(EXPECTED["hidden"], by=in_fp32).verdict == "FAIL"
    every = parity.conclude(by, None, [one])
    assert (every.verdict, every.reason) == ("NOT_RUN", one.reason)
    some = parity.conclude(by, None, [one, parity.judge("c", "hidden", measured(EXPECTED["hidden"]), by)])
    assert (some.verdict, "1 results without a bound: PyTorch cannot run" in some.reason) == ("PASS", True)
    assert parity.conclude(by, None, [one, parity.judge("c", "hidden", parity.Errors(), by)]).verdict == "FAIL"


def test_padding_is_not_judged_where_the_module_has_no_result_in_half_precision() -> None:
    raised = parity.failed(IO, "it raised: expected dtype")
    for errors, verdicts in ((raised, []), ({"hidden": parity.Errors(elements=3, rms=SMALL, max=SMALL)}, ["FAIL"])):
        by = parity.Yardstick("bf16", {"c": errors})
        assert [pair.verdict for pair in parity.judge_invariance(spreads(1.0), by, ["c"])] == verdicts


def test_a_wrong_argmax_is_said_where_errors_fail_and_is_no_reason_within_them() -> None:
    spec = TensorSpec("logits", "float32", ("batch", "seq", 4))
    expected = np.zeros((2, 6, 4))
    expected[..., 2], expected[..., 1] = 1.0, 1.0 - SMALL / 4
    equal_but_for_rounding, wrong = expected.copy(), expected.copy()
    equal_but_for_rounding[0, 0, 1] = 1.0 + SMALL / 4
    wrong[0, :2, 3] = 9.0
    by = parity.Yardstick("fp32", {"c": {"logits": parity.Errors(elements=36, rms=SMALL, max=SMALL)}})
    near, far = (
        parity.judge("c", "logits", parity.measure(got, expected, VALID, spec), by)
        for got in (equal_but_for_rounding, wrong)
    )
    assert (near.verdict, near.argmax) == ("PASS", Argmax(9, 8))
    assert (far.verdict, far.argmax) == ("FAIL", Argmax(9, 7))
    assert "argmax differs in 2 of 9 rows" in far.reason


def test_every_metric_of_a_result_is_in_the_report() -> None:
    got = EXPECTED["hidden"].astype(np.float32)
    got[1, 4, 0] = 100.0
    result = judged(got)
    assert result.verdict == "PASS"
    assert result.ulps is not None
    assert result.ulps.max <= 0.5
    assert result.census == NonFinite()
    assert result.padded is not None
    assert result.padded.elements == 12
    assert result.padded.max_error == pytest.approx(100.0 - EXPECTED["hidden"][1, 4, 0])
    assert result.argmax is None


def test_a_report_written_before_there_were_more_metrics_is_read(tmp_path: Path) -> None:
    report = parity.report({"r": parity.conclude(FP32, None, [judged(off(SMALL))])}, {})
    new = json.loads(to_json(report))
    for added in ("ulps", "census", "padded", "argmax"):
        del new["runtimes"]["r"]["cases"][0][added]
    (tmp_path / "parity.json").write_text(json.dumps(new), encoding="utf-8")
    old = read(ParityReport, tmp_path / "parity.json").runtimes["r"].cases[0]
    assert (old.rms_error, old.ulps) == (report.runtimes["r"].cases[0].rms_error, None)
    assert from_json(ParityReport, to_json(report), "a report") == report


def test_the_worse_of_two_errors_has_the_larger_of_both_and_stays_where_one_is_not_finite() -> None:
    one, other, none = parity.Errors(4, 1.0, 5.0), parity.Errors(4, 2.0, 3.0), parity.Errors(4)
    assert parity.worse(one, other) == parity.worse(other, one) == parity.Errors(4, 2.0, 5.0)
    assert parity.worse(one, none) == one
    assert parity.worse(none, one) == none
