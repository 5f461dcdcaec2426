"""gpu-check keeps its budget, tells where the time went, and measures other calls than a model's own."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_gpu_check import DEVICE, pretend, subject

from attnport.cli import cli
from attnport.errors import UnavailableError
from attnport.jsonfile import read
from attnport.latency import measuring
from attnport.processes import isolated
from attnport.processes.child import Child
from attnport.transaction import OWN
from attnport.verbs import gpu_check as verb
from attnport.verbs.gpu_check import GpuReport, file_name, gpu_check

SPARE_S = 4.0
"""What a run may take beyond its budget: a call, and the end of processes."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts that are exported and checked, once for all tests."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, runtimes=("torch_eager", "ort_cpu"))
        patch.setattr(verb, "bench", lambda *given, **options: pytest.fail("no time is left"))
        gpu_check(
            folder, folder, precisions=("fp32",), threads=1, tell=Later(patch, "tiny fp32: parity,"), budget_s=1e6
        )
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were started, none of which may stay."""
    pretend(monkeypatch, runtimes=("torch_eager", "ort_cpu"))
    return []


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


def kept(folder: Path) -> GpuReport:
    return read(GpuReport, folder / file_name(DEVICE))


@pytest.mark.slow
def test_a_check_is_ended_when_the_time_is_over_and_left_whole_for_the_next_run(
    tmp_path: Path, work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in (work / "tiny").rglob("*") if path.is_file()}
    options: dict[str, Any] = {"dtypes": ("fp32",), "threads": 1}
    said: list[str] = []
    with monkeypatch.context() as patch:
        late = Later(patch, "ort_cpu: 3/")
        report = gpu_check(
            tmp_path, work, **options, budget_s=1e6, force=True, progress=lambda line: (said.append(line), late(line))
        )
    assert "ort_cpu: 3/" in said[-1]  # nothing went on behind it
    assert report.left == ("tiny fp32: parity",)
    assert report.pieces == {}
    assert kept(tmp_path) == report
    assert {path: path.read_bytes() for path in (work / "tiny").rglob("*") if path.is_file()} == before
    assert not [name for name in OWN if (work / "tiny" / name).exists()]
    report = gpu_check(tmp_path, work, **options)
    assert report.left == ()
    assert report.pieces["tiny fp32"].latency is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "op", "left", "options"),
    [
        (measuring, "run", "tiny fp32: latency", {}),
        (isolated, "open", "tiny fp32: parity", {"force": True}),
    ],
    ids=["a call of bench", "an opening in check"],
)
def test_what_does_not_answer_is_waited_for_no_longer_than_the_budget(
    module: Any, op: str, left: str, options: dict[str, Any],
    tmp_path: Path, work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "Child", silent(started, op))
    monkeypatch.setattr(verb.base.get("ort_cpu").__class__, "isolated", True)
    monkeypatch.setattr(verb, "probe_all", lambda runtimes: {one.name: one.probe() for one in runtimes})
    monkeypatch.setattr("attnport.verbs.check.probe_all", lambda runtimes, limits: verb.probe_all(runtimes))
    monkeypatch.setattr(verb, "CALL_S", 2.0)
    began_s = time.monotonic()
    report = gpu_check(tmp_path, work, precisions=("fp32",), threads=1, budget_s=6.0, **options)
    assert time.monotonic() - began_s < 6.0 + SPARE_S
    assert report.left == (left,)
    assert kept(tmp_path) == report
    assert not [name for name in OWN if (work / "tiny" / name).exists()]
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_export_that_has_begun_is_finished_and_kept(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        late = Later(patch, "checking sizes")
        report = gpu_check(tmp_path, tmp_path / "work", precisions=("fp32",), threads=1, budget_s=1e6, progress=late)
    assert report.left == ("tiny fp32",)
    assert (tmp_path / "work" / "tiny" / "model.onnx").is_file()


@pytest.mark.slow
def test_calls_that_were_timed_stay_when_the_time_is_over_in_a_later_one(
    tmp_path: Path, work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"dtypes": ("fp32",), "threads": 1, "cold": False}
    with monkeypatch.context() as patch:
        late = Later(patch, "batch=3,seq=5: round 2")
        report = gpu_check(tmp_path, work, **options, budget_s=1e6, progress=late)
    latency = report.pieces["tiny fp32"].latency
    assert latency is not None
    first, second = (latency.shapes[call] for call in ("batch=1,seq=5", "batch=3,seq=5"))
    assert all(row.median_ns and row.ratio for name, row in first.items() if name != latency.baseline)
    assert {row.why.kind for row in second.values() if row.why} == {"late"}
    assert {row.verdict for row in second.values()} == {"NOT_RUN"}
    assert report.left == ("tiny fp32: latency of some calls",)
    again = gpu_check(tmp_path, work, **options)
    assert again.left == ()
    assert all(row.median_ns for rows in again.pieces["tiny fp32"].latency.shapes.values() for row in rows.values())


@pytest.mark.slow
def test_bench_has_the_time_that_is_left_and_its_result_stays(
    tmp_path: Path, work: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "CALL_S", 500.0)
    monkeypatch.setattr(measuring, "precise", lambda *given: False)
    began_s = time.monotonic()
    report = gpu_check(tmp_path, work, precisions=("fp32",), threads=1, budget_s=20.0)
    assert time.monotonic() - began_s < 20.0 + SPARE_S
    assert report.left == ()
    latency = report.pieces["tiny fp32"].latency
    assert latency is not None
    assert [note for note in latency.notes if re.match(r"only \d+ s of its budget of 1000 s were left", note)]
    monkeypatch.setattr(measuring, "Child", None)  # starting one would fail
    assert gpu_check(tmp_path, work, precisions=("fp32",), threads=1, budget_s=60.0).pieces == report.pieces


def test_each_step_tells_how_long_it_took(tmp_path: Path, work: Path, started: list[int]) -> None:
    told: list[str] = []
    gpu_check(tmp_path, work, precisions=("fp32",), threads=1, cold=False, tell=told.append)
    steps = [f"tiny fpN: {step}, N s" for step in ("files", "parity", "latency")]
    assert [re.sub(r"\d+", "N", line) for line in told] == steps


@pytest.mark.slow
def test_other_calls_than_the_model_s_own_are_checked_and_timed_without_cold_starts(
    tmp_path: Path, work: Path, started: list[int]
) -> None:
    shapes = ("batch=2,seq=3", "batch=1,seq=7")
    report = gpu_check(
        tmp_path, tmp_path / "work", only=("tiny",), precisions=("fp32",), shapes=shapes, threads=1, cold=False
    )
    piece = report.pieces["tiny fp32"]
    calls = ["batch=2,seq=3", "batch=1,seq=7"]
    assert piece.latency is not None
    assert list(piece.latency.shapes) == calls
    assert piece.parity is not None
    assert set(calls) <= {case.case for case in piece.parity.runtimes["ort_cpu"].cases}
    rows = [row for found in piece.latency.shapes.values() for row in found.values()]
    assert all(row.median_ns and row.peak_bytes is None and row.load_ns is None for row in rows)
    assert [note for note in piece.latency.notes if "were not measured, as was asked for" in note]


def test_shapes_go_with_one_model_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, subject("tiny"), subject("other"))
    for only in ((), ("tiny", "other")):
        with pytest.raises(verb.UsageError, match="it goes with one model"):
            gpu_check(tmp_path, only=only, shapes=("batch=1",))


def test_the_command_line_passes_all_of_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def run(**options: Any) -> None:
        given.update(options)
        raise UnavailableError("there is no GPU here.")

    monkeypatch.setattr(verb, "gpu_check", run)
    line = "gpu-check --only tiny --shape batch=8/16 --shape batch=1 --no-cold --budget 7"
    assert CliRunner().invoke(cli, line.split()).exit_code == UnavailableError.exit_code
    assert given["shapes"] == ("batch=8/16", "batch=1")
    assert (given["cold"], given["budget_s"], given["only"]) == (False, 7.0, ("tiny",))
