"""First runs from nothing and from what was kept, by a runtime that pretends to compile: a row tells them apart."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.console.terminal import shown
from attnport.latency import measuring
from attnport.processes.isolated import Child
from attnport.processes.worker import Worker
from attnport.runtimes.ort_cpu import OrtCpu
from attnport.verbs.bench import bench

HERE = Path(__file__).parent
COMPILES_S = 0.3
PRETENDED = """
import runpy, sys
sys.path.insert(0, {here!r})
from attnport.processes.worker import serve
from test_bench_cold import CompilingWorker
serve(CompilingWorker())
"""


class Compiling:
    """A session whose first call compiles, unless an earlier process left what it compiled in the cache."""

    def __init__(self, session: Any, cache: str | None) -> None:
        self._session, self.ran = session, session.ran
        self._kept = Path(cache, "kernels") if cache else None
        self._ready = bool(self._kept and self._kept.is_file())

    def run(self, feeds: Mapping[str, Any]) -> Any:
        if not self._ready:
            time.sleep(COMPILES_S)
        self._ready = True
        return self._session.run(feeds)

    def close(self) -> None:
        if self._kept:
            assert self._kept.parent.stat().st_mode & 0o077 == 0
            self._kept.write_text("compiled")
        self._session.close()


class CompilingWorker(Worker):
    """ONNX Runtime as if it compiled on a device."""

    def do_open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        answer = super().do_open(message)
        if message["runtime"] == "ort_cpu":
            self._session = Compiling(self._session, message.get("cache"))
        return answer


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, tiny_artifact: Path) -> Any:
    program = PRETENDED.format(here=str(HERE))
    monkeypatch.setattr(
        measuring, "Child", lambda threads, command, memory_bytes: Child(threads, ("-c", program), memory_bytes)
    )

    def run(keeps: bool) -> LatencyRow:
        monkeypatch.setattr(OrtCpu, "keeps", keeps)
        report = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], threads=1, within=9.0, force=True)
        assert report.shapes["batch=1,seq=3"]["torch_eager"].cached_first_ns is None
        return report.shapes["batch=1,seq=3"]["ort_cpu"]

    return run


@pytest.mark.slow
def test_a_runtime_that_keeps_what_it_compiled_has_a_first_run_of_each_kind(measure: Any) -> None:
    row = measure(True)
    assert row.first_ns > COMPILES_S * 1e9
    assert row.cached_first_ns < COMPILES_S * 1e9
    assert row.cached_load_ns > 0
    assert row.load_ns > 0
    assert row.peak_bytes is not None


@pytest.mark.slow
def test_one_that_keeps_nothing_has_one(measure: Any) -> None:
    row = measure(False)
    assert row.first_ns > COMPILES_S * 1e9
    assert row.cached_first_ns is None
    assert row.cached_load_ns is None


def test_both_are_shown() -> None:
    row = LatencyRow(
        "baseline", "", median_ns=1e6, samples_ns=(1,), load_ns=5_000_000, first_ns=900_000_000,
        cached_load_ns=4_000_000, cached_first_ns=30_000_000,
    )  # fmt: skip
    report = LatencyReport("tensorrt_rtx", {}, {"w": {"tensorrt_rtx": row}}, {"w": 1}, {"w": 1})
    text = shown(report, "whole")
    assert "cached ms" in text
    assert "900" in text
    assert "30.0" in text
