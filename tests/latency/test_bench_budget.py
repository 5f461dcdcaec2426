"""What bench does with its time: the budget, the end of a verb that runs it, and cold starts that are left out."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import LatencyReport
from attnport.latency import measuring
from attnport.latency.measuring import MIN_ROUNDS
from attnport.processes import isolated
from attnport.processes.isolated import Child, OutOfTime, ending_at
from attnport.verbs.bench import bench

CALL = "batch=1,seq=3"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, idle: None) -> list[int]:
    """The processes that were started."""
    found: list[int] = []

    class Seen(Child):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(self.pid)

    monkeypatch.setattr(measuring, "Child", Seen)
    return found


def measured(folder: Path, **options: Any) -> LatencyReport:
    return bench(folder, ["ort_cpu"], [CALL], threads=1, **options)


def without_cold(report: LatencyReport) -> bool:
    rows = report.shapes[CALL].values()
    return all((row.peak_bytes, row.load_ns, row.first_ns) == (None,) * 3 for row in rows)


def test_a_budget_that_was_too_small_is_said_and_has_no_cold_starts(tiny_artifact: Path, started: list[int]) -> None:
    report = measured(tiny_artifact, budget_s=0.1)
    assert [note for note in report.notes if "s of a budget of 0 s: 12 rounds of each workload are the least" in note]
    cold = "load time, first call and peak memory of torch_eager, ort_cpu were not measured: the time was over"
    assert cold in report.notes
    assert without_cold(report)
    assert len(started) == 2
    assert report.settings[f"rounds {CALL}"] >= MIN_ROUNDS


@pytest.mark.slow
def test_one_that_was_kept_is_not_said_and_has_them(tiny_artifact: Path, started: list[int]) -> None:
    report = measured(tiny_artifact, budget_s=60.0, within=9.0)
    assert not any("budget" in note or "measured" in note for note in report.notes)
    assert all(row.peak_bytes is not None and row.load_ns and row.first_ns for row in report.shapes[CALL].values())
    assert len(started) == 4


def test_cold_starts_are_made_unless_they_are_not_wanted(tiny_artifact: Path, started: list[int]) -> None:
    report = measured(tiny_artifact, budget_s=60.0, within=9.0, cold=False)
    assert without_cold(report)
    assert len(started) == 2
    assert "load time, first call and peak memory were not measured, as was asked for" in report.notes


@pytest.mark.slow
def test_the_end_of_the_verb_that_runs_it_counts_whatever_its_own_budget_is(
    tiny_artifact: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "MAX_ROUNDS", 1_000_000)
    began_s = time.monotonic()
    with ending_at(began_s + 12):
        report = measured(tiny_artifact, budget_s=1000.0, within=1e-9)
    assert time.monotonic() - began_s < 16
    assert [note for note in report.notes if "s of its budget of 1000 s were left" in note]
    assert report.settings["budget_s"] == 1000
    assert report.settings[f"ended by {CALL}"] == "time"


@pytest.mark.slow
def test_a_cold_start_that_takes_too_long_is_ended_and_the_rest_is_kept(
    tiny_artifact: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(message: str) -> None:
        if message == "memory of torch_eager":
            isolated._END_S.set(time.monotonic() + 1)
            monkeypatch.setattr(measuring.Child, "send", lambda self, op, **fields: None)  # no answer comes

    with ending_at(None):
        report = measured(tiny_artifact, within=9.0, progress=hang)
        assert time.monotonic() - isolated.end_s() < 3
    assert without_cold(report)
    assert report.shapes[CALL]["ort_cpu"].ratio is not None
    assert [note for note in report.notes if "peak memory of torch_eager, ort_cpu were not measured" in note]
    with pytest.raises(ProcessLookupError):
        os.kill(started[-1], 0)


def test_without_time_for_the_least_rounds_nothing_is_written_and_no_process_stays(
    tiny_artifact: Path, started: list[int]
) -> None:
    def late(message: str) -> None:
        if "round 2" in message:
            raise OutOfTime

    with pytest.raises(OutOfTime):
        measured(tiny_artifact, progress=late)
    assert not (tiny_artifact / "latency.json").exists()
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_runtime_that_is_alone_disturbs_nobody(tiny_artifact: Path, started: list[int]) -> None:
    report = bench(tiny_artifact, ["torch_eager"], [CALL], threads=1, cold=False, within=9.0)
    assert not [key for key in report.settings if key.startswith("idle processor share")]
    assert report.settings["spinning"] is False
    assert "while others ran" not in report.shapes[CALL]["torch_eager"].reason
