"""gpu-check keeps its budget, and measures other calls than a model's own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from test_gpu_check import pretend

from attnport.latency import measuring
from attnport.processes import isolated
from attnport.processes.isolated import Child
from attnport.transaction import OWN
from attnport.verbs import gpu_check as verb
from attnport.verbs.gpu_check import OVER, Piece, gpu_check, raise_for

SPARE_S = 4.0
"""What a run may take beyond its budget: a call, and the end of processes."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts that are exported and checked, once for all tests."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, runtimes=("torch_eager", "ort_cpu"))
        patch.setattr(verb, "check", then_over(patch, verb.check))
        report = gpu_check(folder, precisions=("fp32",), budget_s=1e6)
    assert report.pieces["tiny fp32"].parity is not None
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were started, none of which may stay."""
    pretend(monkeypatch, runtimes=("torch_eager", "ort_cpu"))
    return []


def then_over(patch: pytest.MonkeyPatch, work: Any) -> Any:
    """A step after which the time is over."""

    def run(*given: Any, **options: Any) -> Any:
        done = work(*given, **options)
        patch.setattr(time, "monotonic", lambda: 1e12)
        return done

    return run


class Later:
    """A callback by whose message the time is over."""

    def __init__(self, patch: pytest.MonkeyPatch, message: str) -> None:
        self.patch, self.message = patch, message

    def __call__(self, said: str) -> None:
        if self.message in said:
            self.patch.setattr(time, "monotonic", lambda: 1e12)


def silent(started: list[int], op: str) -> type[Child]:
    """Children that do not answer a request of this kind."""

    class Silent(Child):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            started.append(self.pid)

        def send(self, asked: str, /, **fields: Any) -> None:  # type: ignore[override]
            if asked != op:
                super().send(asked, **fields)

    return Silent


@pytest.mark.slow
def test_a_check_is_ended_when_the_time_is_over_and_left_whole_for_the_next_run(
    work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in (work / "tiny").rglob("*") if path.is_file()}
    said: list[str] = []
    with monkeypatch.context() as patch:
        late = Later(patch, "ort_cpu: 3/")
        report = gpu_check(
            work, precisions=("fp32", "fp16"), budget_s=1e6, force=True,
            progress=lambda line: (said.append(line), late(line)),
        )  # fmt: skip
    assert "ort_cpu: 3/" in said[-1]  # nothing went on behind it
    assert {name: piece.problem for name, piece in report.pieces.items()} == {"tiny fp32": OVER, "tiny fp16": OVER}
    assert report.pieces["tiny fp32"].parity is None
    raise_for(report)
    assert {path: path.read_bytes() for path in (work / "tiny").rglob("*") if path.is_file()} == before
    assert not [name for name in OWN if (work / "tiny" / name).exists()]
    piece = gpu_check(work, precisions=("fp32",)).pieces["tiny fp32"]
    assert piece.problem == ""
    assert piece.latency is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "op", "judged", "options"),
    [(measuring, "run", True, {}), (isolated, "open", False, {"force": True})],
    ids=["a call of bench", "an opening in check"],
)
def test_what_does_not_answer_is_waited_for_no_longer_than_the_budget(
    module: Any, op: str, judged: bool, options: dict[str, Any],
    work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "Child", silent(started, op))
    monkeypatch.setattr(verb.base.get("ort_cpu").__class__, "isolated", True)
    monkeypatch.setattr(verb, "probe_all", lambda runtimes: {one.name: one.probe() for one in runtimes})
    monkeypatch.setattr("attnport.verbs.check.probe_all", lambda runtimes, limits: verb.probe_all(runtimes))
    monkeypatch.setattr(verb, "CALL_S", 2.0)
    began_s = time.monotonic()
    piece = gpu_check(work, precisions=("fp32",), budget_s=12.0, **options).pieces["tiny fp32"]
    assert time.monotonic() - began_s < 12.0 + SPARE_S
    assert piece.problem == OVER
    assert (piece.parity is not None, piece.latency) == (judged, None)
    assert not [name for name in OWN if (work / "tiny" / name).exists()]
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_export_that_has_begun_is_finished_and_kept(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        report = gpu_check(tmp_path, precisions=("fp32",), budget_s=1e6, progress=Later(patch, "checking sizes"))
    assert report.pieces["tiny fp32"] == Piece(OVER)
    assert (tmp_path / "tiny" / "model.onnx").is_file()


@pytest.mark.slow
def test_calls_that_were_timed_stay_when_the_time_is_over_in_a_later_one(
    work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"precisions": ("fp32",), "cold": False, "force": True}
    with monkeypatch.context() as patch:
        latency = gpu_check(work, **options, budget_s=1e6, progress=Later(patch, "batch=3,seq=5: round 2")).pieces[
            "tiny fp32"
        ].latency  # fmt: skip
    assert latency is not None
    first, second = (latency.shapes[call] for call in ("batch=1,seq=5", "batch=3,seq=5"))
    assert all(row.median_ns and row.ratio for name, row in first.items() if name != latency.baseline)
    assert {row.kind for row in second.values() if row.kind} == {"late"}
    again = gpu_check(work, precisions=("fp32",), cold=False).pieces["tiny fp32"].latency
    assert again is not None
    assert all(row.median_ns for rows in again.shapes.values() for row in rows.values())


@pytest.mark.slow
def test_other_calls_than_the_model_s_own_are_checked_and_timed_without_cold_starts(
    work: Path, started: list[int]
) -> None:
    calls = ("batch=2,seq=3", "batch=1,seq=7")
    piece = gpu_check(work, only=("tiny",), precisions=("fp32",), shapes=calls, cold=False).pieces["tiny fp32"]
    assert piece.latency is not None
    assert tuple(piece.latency.shapes) == calls
    assert piece.parity is not None
    assert set(calls) <= {case.case for case in piece.parity.runtimes["ort_cpu"].cases}
    rows = [row for found in piece.latency.shapes.values() for row in found.values()]
    assert all(row.median_ns and row.peak_bytes is None and row.load_ns is None for row in rows)
