"""Several pairs of runs before and after a change: what one run differs by from the next is part of the interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.artifacts import LatencyReport
from attnport.errors import UsageError
from attnport.jsonfile import to_json
from attnport.latency.regression import RegressionReport, compare, regression
from attnport.latency.rows import Measured, rows

ROUNDS = 12


def report(seed: int, factor: float = 1.0, **settings: Any) -> LatencyReport:
    """A run of two runtimes: each is faster or slower by 3 % throughout the run, and by 1 % in each round."""
    rng = np.random.default_rng(seed)

    def samples(ms: float) -> Measured:
        noise = np.exp(rng.normal(0, 0.03) + rng.normal(0, 0.01, (ROUNDS, 1)))
        return Measured([tuple(map(int, calls)) for calls in 1e6 * ms * noise])

    found = {"torch_eager": samples(1.0), "ort_cpu": samples(factor)}
    settings = {"threads": 1, "machine": "a processor", "starts": 1, "version torch": "2.13"} | settings
    return LatencyReport(
        "torch_eager", settings, {"one": rows(found, "torch_eager", 1, 3)}, {"one": 1}, {"one": 3}, "m"
    )


def compared(seed: int, pairs: int, factor: float = 1.0) -> RegressionReport:
    first, *more = [(report(seed + 2 * pair), report(seed + 2 * pair + 1, factor)) for pair in range(pairs)]
    return regression(*first, *more)


def test_equal_versions_differ_in_one_comparison_of_a_hundred_and_with_one_pair_in_most() -> None:
    wrong = [compared(10 * seed, 5).verdict == "REGRESSION" for seed in range(200)]
    assert sum(wrong) <= 4
    alone = [compared(10 * seed, 1).rows[1].verdict != "no difference shown" for seed in range(100)]
    assert sum(alone) > 50, "or the line above would show nothing"


def test_a_slowdown_is_found() -> None:
    found = [compared(10 * seed, 5, 1.25) for seed in range(50)]
    assert sum(each.verdict == "REGRESSION" for each in found) >= 47
    middles = [each.rows[1].change[1] for each in found if each.rows[1].change]
    assert np.mean(middles) == pytest.approx(1.25, rel=0.02)


def test_times_are_the_medians_of_the_runs() -> None:
    pairs = [(report(seed), report(seed + 50, 2.0)) for seed in range(3)]
    row = regression(*pairs[0], *pairs[1:]).rows[1]
    for side, got in enumerate((row.before_ns, row.after_ns)):
        assert got == sorted(pair[side].shapes["one"]["ort_cpu"].median_ns or 0 for pair in pairs)[1]


def test_what_one_run_did_not_measure_is_not_compared() -> None:
    after = report(3)
    part = replace(after, shapes={"one": {"torch_eager": after.shapes["one"]["torch_eager"]}})
    found = regression(report(1), report(2), (report(4), part))
    assert [(row.verdict, row.reason) for row in found.rows][1] == ("NOT_COMPARED", "not measured after")
    neither = replace(report(4), shapes=part.shapes)
    row = regression(report(1), report(2), (neither, part)).rows[1]
    assert (row.verdict, row.reason) == ("NOT_COMPARED", "not measured before")


def test_pairs_of_other_changes_or_machines_are_refused() -> None:
    new = {"version onnxruntime": "2"}
    pair = report(1, **{"version onnxruntime": "1"}), report(2, **new)
    assert any("onnxruntime: 1 before, 2 after" in note for note in regression(*pair, pair).notes)
    with pytest.raises(UsageError, match=r"not of the same change: .*1 before, 2 after.* and \(no other version\)"):
        regression(*pair, (report(3, **new), report(4, **new)))
    with pytest.raises(UsageError, match="machine a processor before, another after"):
        regression(*pair, (report(3, machine="another"), report(4, machine="another")))


def test_a_report_that_is_given_twice_or_copied_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.json" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_text(to_json(report(number)))
    assert compare(paths[0], paths[1], (paths[2], paths[3])).pairs == 2
    copy = tmp_path / "copy.json"
    copy.write_bytes(paths[0].read_bytes())
    for again in (paths[0], copy):
        with pytest.raises(UsageError, match="given twice"):
            compare(paths[0], paths[1], (again, paths[3]))
