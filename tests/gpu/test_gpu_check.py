"""gpu-check from end to end, with the processor in the place of a GPU: what is measured here is measured, and kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretended_torch import HostDevice

from attnport.artifacts import LatencyReport, LatencyRow, RuntimeParity
from attnport.errors import ParityFailed, SpecError, UnavailableError, UsageError
from attnport.folder.machine import find_gpus, machine
from attnport.jsonfile import read, to_json
from attnport.latency.measuring import Measuring
from attnport.processes.child import ChildError
from attnport.processes.isolated import reason_of_failure
from attnport.runtimes import base
from attnport.verbs import gpu_check as verb
from attnport.verbs.gpu import run as gpu_run
from attnport.verbs.gpu.costs import Work
from attnport.verbs.gpu.report import GpuReport, Piece, file_name, raise_for
from attnport.verbs.gpu.run import Ground
from attnport.verbs.gpu.subjects import Subject
from attnport.verbs.gpu_check import GPU, gpu_check

TINY = Path(__file__).parent.parent / "tiny_model.py"
DEVICE = "the processor, in the place of a GPU"
RUNTIMES = ("ort_cpu", "tensorrt_rtx", "torch_eager")


def subject(name: str = "tiny", *grids: str) -> Subject:
    return Subject(
        name, f"{TINY}:spec", "one attention", grids or ("batch=1/3,seq=5",), ("batch=1:2:4,seq=1:5:16",),
        lambda sizes, element_bytes: Work(1000 * sizes["batch"] * sizes["seq"], element_bytes * 100 * sizes["batch"]),
    )  # fmt: skip


def ground(*subjects: Subject, runtimes: Sequence[str] = RUNTIMES, **changes: Any) -> Ground:
    return dataclasses.replace(
        Ground(
            lambda: (DEVICE, 90),
            HostDevice,
            "torch_eager",
            lambda: runtimes,
            subjects or (subject(),),
            peak_sizes=(32, 64),
            copy_bytes=1 << 20,
        ),
        **changes,
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where artifacts are made, once for all tests."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module", autouse=True)
def short_calls() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_run, "CALL_S", 1.0)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, work: Path) -> tuple[GpuReport, Path]:
    """A run on the processor."""
    folder = tmp_path_factory.mktemp("gpu-check")
    return gpu_check(folder, work, dtypes=("fp32",), threads=1, ground=ground()), folder


def test_parity_and_latency_of_every_runtime_are_written_as_one_file(measured: tuple[GpuReport, Path]) -> None:
    report, folder = measured
    path = folder / "gpu-the-processor-in-the-place-of-a-gpu.json"
    assert read(GpuReport, path) == report
    assert list(report.pieces) == ["tiny fp32"]
    piece = report.pieces["tiny fp32"]
    assert list(piece.parity) == ["torch_eager", "ort_cpu", "tensorrt_rtx"]
    assert [one.verdict for one in piece.parity.values()] == ["PASS", "PASS", "NOT_RUN"]
    assert "results within their bounds" in piece.parity["ort_cpu"].reason
    assert piece.parity["tensorrt_rtx"].reason
    assert piece.fused == {"ort_cpu": "1/1"}
    assert piece.latency is not None
    assert list(piece.latency.shapes) == ["batch=1,seq=5", "batch=3,seq=5"]
    assert report.left == ()
    raise_for(report)


def test_rates_are_work_over_time_beside_the_measured_peaks(measured: tuple[GpuReport, Path]) -> None:
    report, _ = measured
    piece = report.pieces["tiny fp32"]
    assert report.peaks is not None
    assert set(report.peaks.flops) == {"fp16", "bf16", "fp32"}
    assert all(peak.per_s > 0 and len(peak.samples_ns) == 10 for peak in report.peaks.flops.values())
    assert report.peaks.copy is not None
    assert piece.latency is not None
    for call, rows in piece.latency.shapes.items():
        assert rows["ort_cpu"].ratio is not None
        for name, row in rows.items():
            rates = piece.achieved[call][name]
            assert row.median_ns is not None
            assert rates.by == "call"
            assert rates.flops_per_s == pytest.approx(piece.work[call].flops / row.median_ns * 1e9)
            assert rates.flops_share == pytest.approx(rates.flops_per_s / report.peaks.flops["fp32"].per_s)
            assert rates.bytes_share == pytest.approx(rates.bytes_per_s / report.peaks.copy.per_s)


def test_what_was_done_with_the_same_inputs_stays(
    measured: tuple[GpuReport, Path], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, folder = measured
    monkeypatch.setattr(gpu_run, "prepare", lambda *given: pytest.fail("it is all there"))
    monkeypatch.setattr(gpu_run.gpu_peaks, "measure", lambda *given: pytest.fail("they are there"))
    again = gpu_check(folder, work, dtypes=("fp32",), threads=1, ground=ground())
    assert again.pieces == report.pieces
    assert again.peaks == report.peaks


def test_a_runtime_whose_process_failed_is_judged_again(
    measured: tuple[GpuReport, Path], work: Path, tmp_path: Path
) -> None:
    report, _ = measured
    piece = report.pieces["tiny fp32"]
    failed = RuntimeParity("NOT_RUN", reason_of_failure(ChildError("it hung")), "fp32")
    piece = dataclasses.replace(piece, parity={**piece.parity, "ort_cpu": failed})
    kept = dataclasses.replace(report, pieces={"tiny fp32": piece})
    (tmp_path / file_name(DEVICE)).write_text(to_json(kept))
    again = gpu_check(tmp_path, work, dtypes=("fp32",), threads=1, ground=ground())
    assert again.pieces == report.pieces  # and what was timed stays


def test_a_run_out_of_time_says_what_is_left_and_the_next_goes_on(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = tmp_path, list[str]()
    both = ground(subject("tiny", "batch=1,seq=5", "batch=3,seq=5"), runtimes=("torch_eager",))
    over = [False]
    monkeypatch.setattr(gpu_run.Run, "_over", lambda self: over[0])
    time_one = Measuring._time

    def one_and_no_more(self: Measuring, *given: Any) -> None:
        time_one(self, *given)
        over[0] = True

    monkeypatch.setattr(Measuring, "_time", one_and_no_more)
    report = gpu_check(folder, work, dtypes=("fp32", "fp16"), threads=1, ground=both, tell=told.append)
    assert report.left == ("tiny fp32: batch=3,seq=5", "tiny fp16")
    assert len(told) == 2
    first = report.pieces["tiny fp32"].latency
    assert first is not None
    assert list(first.shapes) == ["batch=1,seq=5"]

    over[0] = False
    monkeypatch.setattr(Measuring, "_time", time_one)
    monkeypatch.setattr(gpu_run.Judging, "judged", lambda *given: pytest.fail("parity is there"))
    report = gpu_check(folder, work, dtypes=("fp32",), threads=1, ground=both)
    second = report.pieces["tiny fp32"].latency
    assert second is not None
    assert list(second.shapes) == ["batch=1,seq=5", "batch=3,seq=5"]
    assert second.shapes["batch=1,seq=5"] == first.shapes["batch=1,seq=5"]
    assert report.left == ()


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_run, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_check(tmp_path, work, dtypes=("fp32",), threads=1, ground=ground(runtimes=("torch_eager",)))
    kept = read(GpuReport, tmp_path / file_name(DEVICE))
    assert kept.peaks is not None
    assert kept.pieces == {}


def test_a_measurement_that_fails_keeps_the_calls_that_were_timed(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = "batch=1,seq=5"

    def report(self: Measuring, settings: Any, go_on: Any) -> None:
        rows = {"torch_eager": LatencyRow("baseline", "", median_ns=2e6)}
        go_on(LatencyReport("torch_eager", settings, {call: rows}, {call: 1}, {call: 5}))
        raise SpecError("the weights changed")

    passed = RuntimeParity("PASS", "as ever", "fp32")
    monkeypatch.setattr(gpu_run.Judging, "judged", lambda *given: {"torch_eager": passed})
    monkeypatch.setattr(Measuring, "report", report)
    wanted = ground(runtimes=("torch_eager",))
    piece = gpu_check(tmp_path, work, dtypes=("fp32",), threads=1, ground=wanted).pieces["tiny fp32"]
    assert piece.problem == "the weights changed"
    assert piece.parity == {"torch_eager": passed}
    assert piece.latency is not None
    assert list(piece.latency.shapes) == [call]
    assert "version torch" in piece.latency.settings
    assert piece.achieved[call]["torch_eager"].flops_per_s == pytest.approx(5000 / 2e-3)


def test_a_model_that_fails_keeps_no_other_from_being_measured(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    broken = dataclasses.replace(subject("broken"), spec=f"{TINY}:nothing")
    monkeypatch.setattr(gpu_run.Run, "_latency", lambda *given: None)
    report = gpu_check(
        tmp_path, work, dtypes=("fp32",), threads=1, tell=told.append,
        ground=ground(broken, subject(), runtimes=("torch_eager",)),
    )  # fmt: skip
    assert "there is no 'nothing'" in report.pieces["broken fp32"].problem
    assert "there is no 'nothing'" in told[0]
    assert report.pieces["tiny fp32"].parity["torch_eager"].verdict == "PASS"
    with pytest.raises(UnavailableError, match=r"broken fp32 was not measured: .*there is no 'nothing'"):
        raise_for(report)


def test_a_runtime_that_computes_something_else_fails(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def __init__(self, runtime: Any, opening: Any, *given: Any) -> None:
            self._session = runtime.open(opening)
            self.ran = self._session.ran

        def run(self, feeds: Any) -> Any:
            return {name: array * np.float32(1.001) for name, array in self._session.run(feeds).items()}

        def close(self) -> None:
            self._session.close()

    monkeypatch.setattr("attnport.verbs.gpu.parity.IsolatedSession", Wrong)
    monkeypatch.setattr(gpu_run.Run, "_latency", lambda *given: None)
    wanted = ground(runtimes=("torch_eager", "ort_cpu"))
    report = gpu_check(tmp_path, work, dtypes=("fp32",), threads=1, ground=wanted)
    found = report.pieces["tiny fp32"].parity
    assert found["ort_cpu"].verdict == "FAIL"
    assert 0 < len(found["ort_cpu"].cases) <= 10
    with pytest.raises(ParityFailed, match="tiny fp32: ort_cpu fails"):
        raise_for(report)


def test_a_device_whose_float64_is_not_the_processors_judges_nothing(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnport.verbs.gpu.parity import Sliced

    exact = Sliced.run
    monkeypatch.setattr(
        Sliced, "run", lambda self, feeds: {name: a * (1 + 1e-7) for name, a in exact(self, feeds).items()}
    )
    wanted = ground(runtimes=("torch_eager",))
    report = gpu_check(tmp_path, work, dtypes=("fp32",), threads=1, ground=wanted)
    piece = report.pieces["tiny fp32"]
    assert "is not the processor's" in piece.problem
    assert piece.parity == {}
    assert piece.latency is None
    with pytest.raises(ParityFailed, match=r"tiny fp32 was not measured: float64 on .* is not the processor's"):
        raise_for(report)


def test_a_named_runtime_that_no_piece_could_run_is_an_error() -> None:
    rows = {"torch_eager": RuntimeParity("PASS", "", "fp16"), "ort_cpu": RuntimeParity("NOT_RUN", "SM 90.", "fp16")}
    piece = Piece("about", "inputs", parity=rows)
    report = GpuReport(1, "0", DEVICE, "torch_eager", machine(), {}, {}, pieces={"tiny fp16": piece})
    raise_for(report)
    raise_for(report, ("torch-eager",))
    with pytest.raises(UnavailableError, match="ort_cpu was not run: SM 90"):
        raise_for(report, ("torch_eager", "ort-cpu"))


def test_what_a_device_cannot_do_is_an_error_only_where_it_does_nothing_else() -> None:
    cannot = Piece("about", "inputs", problem="no bf16 here", exit_code=3)
    did = Piece("about", "inputs", parity={"torch_eager": RuntimeParity("PASS", "", "fp16")})
    report = GpuReport(1, "0", DEVICE, "torch_eager", machine(), {}, {}, pieces={"tiny bf16": cannot, "tiny fp16": did})
    raise_for(report)
    with pytest.raises(UnavailableError, match="tiny bf16 was not measured: no bf16 here"):
        raise_for(dataclasses.replace(report, pieces={"tiny bf16": cannot}))


def test_half_precision_is_bounded_by_the_larger_of_eagers_two_ways(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[bool] = []
    eager = base.get("torch_eager")
    opened = type(eager).open

    def noting(self: Any, opening: Any) -> Any:
        if opening.plan == "fp16":
            ways.append(opening.step_by_step)
        return opened(self, opening)

    monkeypatch.setattr(type(eager), "open", noting)
    monkeypatch.setattr(gpu_run.Run, "_latency", lambda *given: None)
    report = gpu_check(tmp_path, work, dtypes=("fp16",), threads=1, ground=ground(runtimes=("torch_eager",)))
    assert report.pieces["tiny fp16"].parity["torch_eager"].verdict == "PASS"
    assert ways == [False, True]


@pytest.mark.slow
def test_a_plan_that_nothing_but_torch_has_is_judged_all_the_same(tmp_path: Path, work: Path) -> None:
    wanted = ground(runtimes=("torch_eager", "ort_cpu"))
    report = gpu_check(tmp_path, work, dtypes=("bf16",), threads=1, ground=wanted)
    piece = report.pieces["tiny bf16"]
    assert piece.parity["torch_eager"].verdict == "PASS"
    assert piece.parity["ort_cpu"].verdict == "NOT_RUN"
    assert "not in bf16" in piece.parity["ort_cpu"].reason
    assert piece.latency is not None
    assert list(next(iter(piece.latency.shapes.values()))) == ["torch_eager"]


def test_a_report_of_another_device_or_a_damaged_one_is_not_gone_on_with(tmp_path: Path, work: Path) -> None:
    wanted = ground(runtimes=("torch_eager",))
    (tmp_path / file_name(DEVICE)).write_text('{"format": 1')
    report = gpu_check(tmp_path, work, dtypes=("fp32",), budget_s=1e-9, ground=wanted)
    assert report.pieces == {}
    assert report.left == ("peak rates", "tiny fp32")
    assert json.loads((tmp_path / file_name(DEVICE)).read_text())["left"] == ["peak rates", "tiny fp32"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ("gpt",)}, ["gpt", "tiny"]),
        ({"dtypes": ("int8",)}, ["int8", "fp16"]),
        ({"runtimes": ("openvino",)}, ["openvino", "ort_cpu, tensorrt_rtx, torch_eager"]),
        ({"runtimes": ("nothing",)}, ["nothing"]),
    ],
)
def test_what_there_is_not_is_refused_before_a_gpu_is_looked_for(
    tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_check(tmp_path, ground=ground(find=lambda: pytest.fail("too late")), **options)
    for word in words:
        assert word in caught.value.message


def test_without_a_gpu_it_says_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "find_gpus", lambda: ((), "no NVIDIA driver: libcuda.so.1 cannot be loaded.", ""))
    with pytest.raises(UnavailableError, match=r"libcuda\.so\.1.*PyTorch: ") as caught:
        gpu_check(tmp_path)
    assert "docs/gpu.md" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_pytorch_cannot_use_is_said_by_name(tmp_path: Path) -> None:
    wanted = ground(eager="torch_eager_cuda", runtimes=("torch_eager_cuda",))
    if base.get("torch_eager_cuda").probe().available:
        pytest.skip("PyTorch has a GPU here")
    with pytest.raises(UnavailableError, match=f"{DEVICE} is there, but PyTorch"):
        gpu_check(tmp_path, ground=wanted)


def test_it_measures_the_runtimes_that_compute_on_a_gpu() -> None:
    assert list(GPU.runtimes()) == [
        "ort_cuda",
        "ort_tensorrt",
        "ort_tensorrt_rtx",
        "tensorrt",
        "tensorrt_rtx",
        "torch_compile_cuda",
        "torch_eager_cuda",
    ]
    assert GPU.eager in GPU.runtimes()


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    if not find_gpus()[0]:
        pytest.skip("there is no GPU here to be measured")
    small = dataclasses.replace(GPU, subjects=(subject(),), peak_sizes=(1024,), copy_bytes=1 << 26)
    report = gpu_check(tmp_path, tmp_path / "work", dtypes=("fp16",), budget_s=300, ground=small)
    piece = report.pieces["tiny fp16"]
    assert piece.parity["torch_eager_cuda"].verdict == "PASS"
    assert piece.latency is not None
    for call in piece.latency.shapes:
        assert piece.achieved[call]["torch_eager_cuda"].by == "events"
    raise_for(report)
