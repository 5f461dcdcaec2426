"""Several starts of the same processes: each is faster or slower throughout, and the interval includes this."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.artifacts import Interval, LatencyReport
from attnport.errors import UsageError
from attnport.latency import measuring
from attnport.latency.choice import ratio
from attnport.latency.measuring import MIN_ROUNDS
from attnport.latency.regression import regression
from attnport.latency.rows import Measured, rows
from attnport.latency.statistics import change_interval, ratio_interval, students_quantile
from attnport.processes.isolated import Child
from attnport.verbs.bench import bench

CALL = "batch=1,seq=3"
ROUNDS, STARTS = 12, (12, 12, 12, 12, 12)
Rounds = list[list[int]]


def world(seed: int, factor: float = 1.0) -> tuple[Rounds, Rounds]:
    """Two runtimes in five starts: each start makes each of them faster or slower by 3 %, each round by 1 %."""
    rng = np.random.default_rng(seed)

    def side(speed: float) -> Rounds:
        start = np.repeat(rng.normal(0, 0.03, len(STARTS)), ROUNDS)
        return (5e6 * speed * np.exp(start + rng.normal(0, 0.01, start.shape)))[:, None].astype(int).tolist()

    return side(factor), side(1.0)


def apart(found: list[Interval]) -> float:
    """The share of intervals that do not hold 1."""
    return sum(not low <= 1 <= high for low, _, high in found) / len(found)


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [(0.995, 1, 63.657), (0.995, 4, 4.604), (0.975, 4, 2.776), (0.995, 30, 2.750), (0.9999, 8, 6.442), (0.5, 3, 0)],
)
def test_the_quantiles_are_those_of_printed_tables(share: float, freedom: int, expected: float) -> None:
    assert students_quantile(share, freedom) == pytest.approx(expected, abs=2e-3)


def test_equal_runtimes_differ_in_one_run_of_a_hundred_and_without_starts_in_most() -> None:
    worlds = [world(seed) for seed in range(400)]
    assert apart([ratio_interval(*sides, seed, starts=STARTS) for seed, sides in enumerate(worlds)]) <= 0.03
    first = [ratio_interval(ours[:ROUNDS], theirs[:ROUNDS], seed) for seed, (ours, theirs) in enumerate(worlds[:100])]
    assert apart(first) > 0.5, "or the test above would show nothing"


def test_a_difference_of_a_fifth_is_found() -> None:
    found = [ratio_interval(*world(seed, 1.2), seed, starts=STARTS) for seed in range(100)]
    assert sum(low > 1 for low, _, _ in found) >= 95
    assert np.mean([middle for _, middle, _ in found]) == pytest.approx(1.2, rel=0.01)


@pytest.mark.parametrize("alone", [False, True])
def test_equal_runs_show_no_change_and_slower_ones_do(alone: bool) -> None:
    def change(seed: int, factor: float) -> Interval:
        sides = [(ours, None if alone else base) for ours, base in (world(10_000 + seed, factor), world(seed))]
        return change_interval(sides[0], sides[1], seed, starts=(STARTS, STARTS))

    assert apart([change(seed, 1.0) for seed in range(300)]) <= 0.03
    assert sum(change(seed, 1.25)[0] > 1 for seed in range(100)) >= 95


def report(seed: int, starts: tuple[int, ...] = STARTS, factor: float = 1.0) -> LatencyReport:
    """With `starts` of (), the first start alone."""
    ours, theirs = (list(map(tuple, side[: sum(starts) or ROUNDS])) for side in world(seed, factor))
    found = {"torch_eager": Measured(theirs, starts=[*starts]), "ort_cpu": Measured(ours, starts=[*starts])}
    settings: dict[str, Any] = {"threads": 1, "machine": "a processor", "starts": max(1, len(starts))}
    return LatencyReport(
        "torch_eager", settings, {CALL: rows(found, "torch_eager", 1, 3, precision=0.001)}, {CALL: 1}, {CALL: 3}, "m"
    )


def test_two_reports_are_compared_by_their_starts() -> None:
    assert regression(report(1), report(2)).verdict == "no regression shown"
    assert regression(report(1), report(2, factor=1.3)).verdict == "REGRESSION"
    seeds = range(1, 9)
    assert {regression(report(seed), report(seed + 1)).verdict for seed in seeds} == {"no regression shown"}
    alone = [regression(report(seed, ()), report(seed + 1, ())).verdict for seed in seeds]
    assert "REGRESSION" in alone, "or the line above would show nothing"


def test_reports_of_other_numbers_of_starts_are_not_compared() -> None:
    with pytest.raises(UsageError, match="starts 5 before, 1 after"):
        regression(report(1), report(2, ()))


@pytest.mark.parametrize("starts", [(12, 12), (100, 100), (60, 0), (72, -12)])
def test_starts_that_are_not_those_of_the_rounds_are_not_compared(starts: tuple[int, ...]) -> None:
    before, after = report(1), report(2)
    edited = {CALL: {name: replace(row, starts=starts) for name, row in after.shapes[CALL].items()}}
    found = regression(before, replace(after, shapes=edited))
    assert found.verdict == "NOT_COMPARED"
    assert "expected those of the starts" in found.rows[0].reason
    ours, theirs = (edited[CALL][name] for name in ("ort_cpu", "torch_eager"))
    assert ratio(ours, theirs) is None


def test_a_row_has_the_interval_of_its_starts_and_says_why_it_is_wide() -> None:
    row = report(1).shapes[CALL]["ort_cpu"]
    assert row.ratio == ratio_interval(*world(1), starts=STARTS)
    assert "starts of the processes differ: its ratio is known within" in row.reason


class Seen(Child):
    """A child that is counted; the one of ONNX Runtime that is `failing` does not open."""

    started = 0
    opened = 0
    failing = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        type(self).started += 1

    def send(self, op: str, **fields: Any) -> None:
        if op == "open" and fields["runtime"] == "ort_cpu":
            type(self).opened += 1
            if self.opened == self.failing:
                fields["model"] = "nothing.onnx"
        super().send(op, **fields)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, idle: None) -> type[Seen]:
    kind = type("Counted", (Seen,), {})
    monkeypatch.setattr(measuring, "Child", kind)
    return kind


def test_every_start_is_timed_in_new_processes(tiny_artifact: Path, seen: type[Seen]) -> None:
    found = bench(tiny_artifact, ["ort_cpu"], [CALL], threads=1, within=9.0, starts=3, cold=False)
    assert seen.started == 2 * 3
    for row in found.shapes[CALL].values():
        assert len(row.starts) == 3
        assert min(row.starts) >= MIN_ROUNDS
        assert sum(row.starts) == len(row.rounds_ns) == found.settings[f"rounds {CALL}"]
    assert found.settings["starts"] == 3
    low, middle, high = found.shapes[CALL]["ort_cpu"].ratio or (0, 0, 0)
    assert 0 < low < middle < high


def test_one_start_is_not_told_in_rows(tiny_artifact: Path) -> None:
    found = bench(tiny_artifact, ["ort_cpu"], [CALL], threads=1, within=9.0, cold=False)
    assert {row.starts for row in found.shapes[CALL].values()} == {()}


@pytest.mark.slow
def test_what_fails_in_a_later_start_is_not_run(tiny_artifact: Path, seen: type[Seen]) -> None:
    seen.failing = 2
    found = bench(tiny_artifact, ["ort_cpu"], [CALL], threads=1, within=9.0, starts=3, cold=False)
    row = found.shapes[CALL]["ort_cpu"]
    assert row.verdict == "NOT_RUN"
    assert (row.kind, bool(row.reason)) == ("unavailable", True)
    assert seen.opened == 2, "it is not started again"
    assert len(found.shapes[CALL]["torch_eager"].starts) == 3
