"""What `bench` does with a session that times its device by events, on a pretended one: no GPU is needed or shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import DEVICE_PARTS
from attnport.latency import measuring
from attnport.processes.isolated import Child
from attnport.processes.worker import Worker
from attnport.verbs.bench import bench

HERE = Path(__file__).parent
PRETENDED = """
import runpy, sys
sys.path.insert(0, {here!r})
from attnport.processes.worker import serve
from test_bench_device import PretendedWorker
serve(PretendedWorker())
"""


class Pretended:
    """A session whose parts take 3, 5 and 2 ms; as a graph, the device takes 1."""

    modes = ("stream", "graph")

    def __init__(self, session: Any) -> None:
        self._session, self.ran = session, session.ran
        self.captured = 0

    def run(self, feeds: Mapping[str, Any]) -> Any:
        raise AssertionError("a session with modes is timed by them")

    def run_timed(self, feeds: Mapping[str, Any], mode: str) -> Mapping[str, int]:
        parts = {"host_to_device": 3_000_000, "device": 1_000_000 if mode == "graph" else 5_000_000}
        parts["device_to_host"] = 2_000_000
        time.sleep(sum(parts.values()) * 1e-9)
        return parts

    def close(self) -> None:
        self._session.close()


class PretendedWorker(Worker):
    """Opens ONNX Runtime as if it had a device."""

    def do_open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        answer = super().do_open(message)
        if message["runtime"] != "ort_cpu":
            return answer
        self._session = Pretended(self._session)
        return {**answer, "modes": list(self._session.modes)}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    program = PRETENDED.format(here=str(HERE))
    monkeypatch.setattr(measuring, "Child", lambda threads, command, memory_bytes: Child(threads, ("-c", program)))


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_copies_and_computing_are_told_apart_and_a_graph_has_a_row_of_its_own(tiny_artifact: Path) -> None:
    report = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], threads=1, within=9.0)
    rows = report.shapes["batch=1,seq=3"]
    assert list(rows) == ["torch_eager", "ort_cpu", "ort_cpu (graph)"]
    assert rows["torch_eager"].parts_ns == {}
    assert rows["ort_cpu"].parts_ns == {"host_to_device": 3e6, "device": 5e6, "device_to_host": 2e6}
    assert rows["ort_cpu (graph)"].parts_ns == {"host_to_device": 3e6, "device": 1e6, "device_to_host": 2e6}
    for name, whole_ns in (("ort_cpu", 10e6), ("ort_cpu (graph)", 6e6)):
        row = rows[name]
        assert row.median_ns is not None
        assert row.median_ns > whole_ns  # the clock around the call stays the figure that runtimes are compared by
        assert row.ratio is not None
        assert row.first_ns is not None
        assert row.peak_bytes is not None


class Session:
    """Counts."""

    modes = ("stream",)

    def __init__(self) -> None:
        self.modes_run: list[str] = []

    def run_timed(self, feeds: Mapping[str, Any], mode: str) -> Mapping[str, int]:
        self.modes_run.append(mode)
        return dict.fromkeys(DEVICE_PARTS, len(self.modes_run))


def test_untimed_calls_of_a_turn_leave_no_parts() -> None:
    worker = Worker()
    worker._session, worker._feeds = session, _ = Session(), {"w": {}}
    answer = worker.do_run({"name": "w", "calls": 3, "warm": 2, "mode": "graph"})
    assert answer["parts"] == {part: [3, 4, 5] for part in DEVICE_PARTS}
    assert len(answer["ns"]) == 3
    assert session.modes_run == ["graph"] * 5
    assert worker._session is session


def test_a_process_stays_on_the_processors_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def refuse(pid: int, cpus: list[int]) -> None:
        given.append(cpus)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setaffinity", refuse, raising=False)
    answer = Worker().do_settle({"processors": [5]})
    assert given == [[5]]
    assert answer["pinned"] == []
    assert "Operation not permitted" in answer["problem"]
    assert Worker().do_settle({"processors": []})["problem"] == ""
