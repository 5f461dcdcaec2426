from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from attnport.latency import clocks
from attnport.latency.clocks import DriftWatch, processors, resolution_ns
from attnport.latency.measured import TimedRuntime, samples_of


def test_the_resolution_is_the_smallest_step_of_the_timer() -> None:
    assert resolution_ns(itertools.count(0, 100).__next__) == 100
    coarse = (number // 50 * 15_600_000 for number in itertools.count())  # a timer of 64 Hz, read often between steps
    assert resolution_ns(coarse.__next__) == 15_600_000
    assert 0 < resolution_ns() < 1_000_000


def test_a_timer_that_stands_still_ends_the_measurement_of_it() -> None:
    assert resolution_ns(lambda: 5) == 0


def test_a_timer_that_is_too_coarse_for_a_call_is_said_in_its_row() -> None:
    found = TimedRuntime(rounds_ns={"w": [(1000, 1010)] * 12}, resolution_ns=20)
    assert "too coarse" in samples_of(found, "w", 0.0).note
    found.resolution_ns = 9
    assert samples_of(found, "w", 0.0).note == ""


def test_a_timer_that_runs_fast_is_told_in_parts_per_million() -> None:
    times = iter([0, 0, 1_001_000, 1_000_000])
    watch = DriftWatch(lambda: next(times), lambda: next(times))
    assert watch.ppm() == pytest.approx(1000)
    assert DriftWatch(lambda: 5, lambda: 5).ppm() == 0


def test_processes_stay_on_one_processor_of_each_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}

    class Topology(type(tmp_path)):  # type: ignore[misc]
        def is_file(self) -> bool:
            return True

        def read_text(self, *args: object, **kwargs: object) -> str:
            return siblings[int("".join(filter(str.isdigit, self.parts[5])))]

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(clocks, "Path", Topology)
    monkeypatch.setattr(clocks, "physical_cores", lambda: 2)
    assert processors(1) == [1]
    assert processors(2) == [0, 1]
    assert processors(3) == [0, 1, 2, 3]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors(1) == []
