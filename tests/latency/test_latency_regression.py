from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.errors import CouldNotTell, LatencyRegressed, UsageError
from attnport.latency.regression import raise_for, regression
from attnport.latency.rows import Measured, rows

SETTINGS: dict[str, Any] = {"threads": 1, "machine": "a processor", "starts": 1}
SETTINGS |= {"version torch": "2.13", "version onnxruntime": "1"}


def report(seed: int, **factors: float) -> LatencyReport:
    """A run in which `torch_eager` takes 1 ms and every other runtime `factors` of it, with 2 % of noise."""
    rng = np.random.default_rng(seed)

    def samples(ms: float) -> Measured:
        noise = np.exp(np.abs(rng.normal(0, 0.02, (30, 2))))
        return Measured([tuple(int(1e6 * ms * one) for one in calls) for calls in noise])

    found = {"torch_eager": samples(1.0)} | {name: samples(factor) for name, factor in factors.items()}
    shapes = {"batch=1": rows(found, "torch_eager", 1, 8)}
    return LatencyReport("torch_eager", SETTINGS, shapes, {"batch=1": 1}, {"batch=1": 8}, "model", "digest")


def slowed(given: LatencyReport, factor: float) -> LatencyReport:
    """The same run on a machine that is slower throughout."""
    shapes = {
        shape: {
            name: replace(
                row,
                median_ns=(row.median_ns or 0) * factor,
                samples_ns=tuple(int(one * factor) for one in row.samples_ns),
            )
            for name, row in found.items()
        }
        for shape, found in given.shapes.items()
    }
    return replace(given, shapes=shapes)


def verdicts(before: LatencyReport, after: LatencyReport) -> dict[str, str]:
    return {row.runtime: row.verdict for row in regression(before, after).rows}


def test_what_became_slower_or_faster_is_told_and_what_did_not_is_not() -> None:
    before, after = report(1, ort_cpu=0.5, openvino=0.4, same=0.6), report(2, ort_cpu=0.55, openvino=0.3, same=0.6)
    found = regression(before, after)
    assert {row.runtime: row.verdict for row in found.rows} == {
        "torch_eager": "baseline",
        "ort_cpu": "slower",
        "openvino": "faster",
        "same": "no difference shown",
    }
    assert found.verdict == "REGRESSION"
    row = found.rows[1]
    assert row.change is not None
    assert row.change[0] < 1.1 < row.change[2]
    assert row.before_ns == before.shapes["batch=1"]["ort_cpu"].median_ns


def test_a_run_compared_with_itself_shows_no_regression() -> None:
    same = report(1, ort_cpu=0.5)
    found = regression(same, same)
    assert found.verdict == "no regression shown"
    assert all(row.change and row.change[1] == pytest.approx(1) for row in found.rows)


def test_a_machine_that_was_slower_throughout_is_no_regression_of_a_runtime() -> None:
    before, after = report(1, ort_cpu=0.5), slowed(report(2, ort_cpu=0.5), 1.3)
    found = regression(before, after)
    assert {row.runtime: row.verdict for row in found.rows} == {
        "torch_eager": "baseline",
        "ort_cpu": "no difference shown",
    }
    assert found.verdict == "no regression shown"
    raise_for(found)
    (note,) = found.notes
    assert note.startswith("torch_eager itself took 1.31 times as long after as before on batch=1: ")


def test_the_intervals_of_many_rows_are_those_that_hold_together() -> None:
    names = [f"runtime{number}" for number in range(24)]
    before = report(1, **dict.fromkeys(names, 0.5))
    after = report(2, **{**dict.fromkeys(names, 0.5), "runtime7": 0.55})
    many = {row.runtime: row for row in regression(before, after).rows}
    assert {name for name, row in many.items() if row.verdict == "slower"} == {"runtime7"}
    pair = [
        replace(one, shapes={"batch=1": {name: one.shapes["batch=1"][name] for name in ("torch_eager", "runtime7")}})
        for one in (before, after)
    ]
    alone = {row.runtime: row for row in regression(*pair).rows}
    wide, narrow = many["runtime7"].change, alone["runtime7"].change
    assert wide
    assert narrow
    assert wide[0] < narrow[0] < narrow[2] < wide[2]
    assert wide[2] - wide[0] > 1.2 * (narrow[2] - narrow[0])  # 1.6 by the normal distribution


def test_with_another_torch_times_are_compared_as_they_are_and_it_is_said() -> None:
    before, after = report(1, ort_cpu=0.5), slowed(report(2, ort_cpu=0.5), 1.3)
    found = regression(before, replace(after, settings=SETTINGS | {"version torch": "3"}))
    assert not found.relative
    assert {row.runtime: row.verdict for row in found.rows} == {"torch_eager": "baseline", "ort_cpu": "slower"}
    assert any("torch: 2.13 before, 3 after" in note for note in found.notes)
    assert any("not the same before and after" in note for note in found.notes)


def test_a_module_with_other_code_that_is_slower_everywhere_is_no_change_of_the_machine() -> None:
    before, after = report(1, ort_cpu=0.5), slowed(report(2, ort_cpu=0.5), 1.9)
    assert regression(before, after).verdict == "no regression shown"  # of one module: the machine is slower
    found = regression(before, replace(after, code="each layer twice"))
    assert found.verdict == "REGRESSION"
    assert {row.runtime: row.verdict for row in found.rows} == {"torch_eager": "baseline", "ort_cpu": "slower"}
    assert not any("taken as a change of the machine" in note for note in found.notes)
    assert any("code of the model is not the same" in note for note in found.notes)


def test_versions_and_weights_that_differ_are_said() -> None:
    before = report(1, ort_cpu=0.5)
    after = replace(before, weights="other", settings=SETTINGS | {"version onnxruntime": "2"})
    found = regression(before, after)
    assert found.notes[:2] == ("onnxruntime: 1 before, 2 after", "the weights differ")


def test_a_model_that_is_slower_in_pytorch_too_is_slower() -> None:
    before, after = report(1, ort_cpu=0.5), replace(slowed(report(2, ort_cpu=0.5), 2.0), weights="other")
    assert verdicts(before, after) == {"torch_eager": "baseline", "ort_cpu": "slower"}
    assert verdicts(report(1), replace(slowed(report(2), 2.0), weights="other")) == {"torch_eager": "slower"}


@pytest.mark.parametrize("spread", [0, 1_500_000], ids=["slower", "could-not-tell"])
def test_a_gate_is_not_of_pytorch_where_another_runtime_was_timed(spread: int) -> None:
    before, after = report(1, ort_cpu=0.5), replace(report(2, ort_cpu=0.2), weights="other")
    samples = 2_000_000 + spread * np.random.default_rng(0).random(60) ** 8
    eager = replace(after.shapes["batch=1"]["torch_eager"], samples_ns=tuple(map(int, samples)))
    after = replace(after, shapes={"batch=1": {**after.shapes["batch=1"], "torch_eager": eager}})
    found = regression(before, after, limit=1.1)
    assert {row.runtime: row.verdict for row in found.rows} == {"torch_eager": "baseline", "ort_cpu": "faster"}
    assert found.rows[0].change
    assert found.verdict == "no regression shown"
    raise_for(found)


def test_a_change_that_is_not_known_is_no_verdict_and_no_gate_passes_by_it() -> None:
    pairs = [(report(1, ort_cpu=0.5), report(2, ort_cpu=0.2)), (report(3, ort_cpu=0.2), report(4, ort_cpu=0.5))]
    found = regression(*pairs[0], pairs[1])
    assert {row.runtime: row.verdict for row in found.rows} == {"torch_eager": "baseline", "ort_cpu": "could not tell"}
    with pytest.raises(CouldNotTell, match=r"ort_cpu on batch=1 became slower could not be told: too few") as caught:
        raise_for(found)
    assert caught.value.exit_code != LatencyRegressed.exit_code
    nothing = regression(pairs[0][0], replace(pairs[0][0], tokens={"batch=1": 9}))
    with pytest.raises(CouldNotTell, match="nothing could be compared"):
        raise_for(nothing)


def test_a_gate_passes_only_where_a_slowdown_of_its_limit_is_excluded_for_every_runtime() -> None:
    before = report(1, ort_cpu=0.5, openvino=0.5)
    wild = np.random.default_rng(0).integers(500_000, 1_000_000, 60)
    busy = replace(before.shapes["batch=1"]["ort_cpu"], samples_ns=tuple(map(int, wild)))
    before = replace(before, shapes={"batch=1": {**before.shapes["batch=1"], "ort_cpu": busy}})
    for limit, verdict in ((1.5, "no regression shown"), (1.05, "could not tell")):
        found = regression(before, before, limit=limit)
        assert found.verdict == verdict
        change = next(row.change for row in found.rows if row.runtime == "ort_cpu")
        assert change is not None
        assert 1.05 < change[2] < 1.5
        assert next(row.verdict for row in found.rows if row.runtime == "openvino") == "no difference shown"
    with pytest.raises(CouldNotTell, match=r"whether ort_cpu on batch=1 became slower .*1.05 times as slow\.$"):
        raise_for(found)
    assert [note for note in found.notes if "to be surer" in note] == [found.notes[-1]]
    assert "measure 5 pairs of runs" in found.notes[-1]
    raise_for(regression(before, before))


def test_two_pairs_tell_no_interval_of_anything_that_is_as_good_as_unknown() -> None:
    scaled = [replace(report(seed, ort_cpu=0.5), settings=SETTINGS) for seed in range(4)]
    pairs = [(scaled[0], slowed(scaled[1], 30.0)), (scaled[2], scaled[3])]
    found = regression(*pairs[0], pairs[1])
    (baseline,) = (row for row in found.rows if row.verdict == "baseline")
    assert (baseline.change, baseline.reason) == (None, "too few pairs of runs for an interval (2 of 5 needed)")
    assert "too few pairs of runs for an interval (2 of 5 needed)" in str(found)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "other"}, "model model before, other after"),
        ({"model": ""}, "not recorded after"),
        ({"settings": SETTINGS | {"threads": 2}}, "threads 1 before, 2 after"),
        ({"settings": SETTINGS | {"machine": "another"}}, "machine a processor before, another after"),
        ({"baseline": "ort_cpu"}, "baseline torch_eager before, ort_cpu after"),
    ],
)
def test_reports_that_are_not_comparable_are_refused(changed: dict[str, Any], said: str) -> None:
    before = report(1, ort_cpu=0.5)
    with pytest.raises(UsageError) as caught:
        regression(before, replace(before, **changed))
    assert said in str(caught.value)


def test_what_one_run_lacks_is_not_compared_and_is_no_regression() -> None:
    before, after = report(1, ort_cpu=0.5, gone=0.5), report(2, ort_cpu=0.5, new=2.0)
    shapes = {"batch=1": {**after.shapes["batch=1"], "gone": LatencyRow(reason="it ended by SIGSEGV", kind="died")}}
    found = regression(before, replace(after, shapes=shapes))
    assert {row.runtime: row.verdict for row in found.rows if row.runtime in ("gone", "new")} == {
        "gone": "NOT_COMPARED",
        "new": "NOT_COMPARED",
    }
    assert next(row.reason for row in found.rows if row.runtime == "gone") == "not measured after: it ended by SIGSEGV"
    assert found.verdict == "no regression shown"
    absent = replace(after, absent={"gone": "it is not installed"})
    assert "not measured after: it is not installed" in {row.reason for row in regression(before, absent).rows}


def test_workloads_of_other_content_are_not_compared() -> None:
    before = report(1, ort_cpu=0.5)
    found = regression(before, replace(before, tokens={"batch=1": 9}))
    assert {row.verdict for row in found.rows} == {"NOT_COMPARED"}
    assert found.verdict == "NOT_COMPARED"


def test_samples_that_do_not_fill_their_rounds_are_not_compared() -> None:
    before = report(1, ort_cpu=0.5)
    broken = {"batch=1": {name: replace(row, calls=7) for name, row in before.shapes["batch=1"].items()}}
    found = regression(before, replace(before, shapes=broken))
    assert {row.verdict for row in found.rows} == {"NOT_COMPARED"}
    assert "with equally many calls in each" in found.rows[0].reason


def test_intervals_that_could_hide_a_slowdown_are_said() -> None:
    before = report(1, ort_cpu=0.5)
    assert regression(before, before).notes == ()
    wild = np.random.default_rng(0).integers(500_000, 1_000_000, 60)
    row = replace(before.shapes["batch=1"]["ort_cpu"], samples_ns=tuple(map(int, wild)))
    after = replace(before, shapes={"batch=1": {**before.shapes["batch=1"], "ort_cpu": row}})
    assert any("may not show" in note for note in regression(before, after).notes)
