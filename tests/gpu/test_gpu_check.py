"""gpu-check from end to end, with the processor in the place of a GPU: what is measured here is measured, and kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import ParityReport, RuntimeParity
from attnport.errors import ArtifactError, ParityFailed, ProfileError, UnavailableError, UsageError
from attnport.folder.machine import find_gpus, machine
from attnport.jsonfile import read
from attnport.runtimes import base
from attnport.verbs import gpu_check as verb
from attnport.verbs._gpu_models import Subject
from attnport.verbs.gpu_check import GpuReport, Piece, file_name, gpu_check, raise_for

TINY = Path(__file__).parent.parent / "tiny_model.py"
DEVICE = "the processor, in the place of a GPU"
RUNTIMES = ("ort_cpu", "tensorrt_rtx", "torch_eager")


def subject(name: str = "tiny", *grids: str) -> Subject:
    return Subject(name, f"{TINY}:spec", "one attention", grids or ("batch=1/3,seq=5",), ("batch=1:2:4,seq=1:5:16",))


def pretend(
    patch: pytest.MonkeyPatch, *subjects: Subject, runtimes: Sequence[str] = RUNTIMES, eager: str = "torch_eager"
) -> None:
    """Puts the processor in the place of a GPU."""
    patch.setattr(verb, "found_gpu", lambda: (DEVICE, 90))
    patch.setattr(verb, "EAGER", eager)
    patch.setattr(verb, "gpu_runtimes", lambda: list(runtimes))
    patch.setattr(verb, "SUBJECTS", subjects or (subject(),))
    patch.setattr(verb, "CALL_S", 1.0)


@pytest.fixture
def eager_alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    pretend(monkeypatch, runtimes=("torch_eager",))
    return monkeypatch


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where artifacts are made, once for all tests."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, work: Path) -> tuple[GpuReport, Path]:
    """A run on the processor."""
    folder = tmp_path_factory.mktemp("gpu-check")
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        return gpu_check(folder, work, precisions=("fp32",), threads=1), folder


def test_parity_and_latency_of_every_runtime_are_written_as_one_file(measured: tuple[GpuReport, Path]) -> None:
    report, folder = measured
    path = folder / "gpu-the-processor-in-the-place-of-a-gpu.json"
    assert read(GpuReport, path) == report
    assert [one.name for one in folder.iterdir()] == [path.name]
    assert list(report.pieces) == ["tiny fp32"]
    piece = report.pieces["tiny fp32"]
    assert piece.parity is not None
    found = piece.parity.runtimes
    assert {name: row.verdict for name, row in found.items()} == {
        "torch_eager": "PASS",
        "ort_cpu": "PASS",
        "tensorrt_rtx": "NOT_RUN",
    }
    assert "batch=3,seq=5" in {case.case for case in found["ort_cpu"].cases}  # a timed call is judged too
    assert found["ort_cpu"].invariance
    assert found["tensorrt_rtx"].reason
    assert piece.fused == {"ort_cpu": "1/1"}
    assert piece.latency is not None
    assert list(piece.latency.shapes) == ["batch=1,seq=5", "batch=3,seq=5"]
    assert piece.latency.baseline == "torch_eager"
    assert report.left == ()
    raise_for(report)


def test_what_was_done_with_the_same_inputs_stays(
    measured: tuple[GpuReport, Path], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, folder = measured
    pretend(monkeypatch)
    said: list[str] = []
    again = gpu_check(folder, work, precisions=("fp32",), threads=1, progress=said.append)
    assert again.pieces == report.pieces
    assert not [line for line in said if "reference" in line or "round" in line or "tracing" in line]


def test_a_run_out_of_time_says_what_is_left_and_the_next_continues(
    tmp_path: Path, work: Path, eager_alone: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    check = verb.check

    def slow(*given: Any, **options: Any) -> ParityReport:
        found = check(*given, **options)
        eager_alone.setattr(time, "monotonic", lambda: 1e12)
        return found

    eager_alone.setattr(verb, "check", slow)
    report = gpu_check(tmp_path, work, precisions=("fp32", "fp16"), threads=1, budget_s=1e6, tell=told.append)
    assert report.left == ("tiny fp32: latency", "tiny fp16")
    assert [line for line in told if line.startswith("out of time")] == [
        "out of time: tiny fp32: latency is left for the next run",
        "out of time: tiny fp16 is left for the next run",
    ]
    piece = report.pieces["tiny fp32"]
    assert piece.parity is not None
    assert piece.latency is None

    eager_alone.undo()
    pretend(eager_alone, runtimes=("torch_eager",))
    said: list[str] = []
    report = gpu_check(tmp_path, work, precisions=("fp32",), threads=1, progress=said.append)
    assert report.pieces["tiny fp32"].parity == piece.parity
    assert report.pieces["tiny fp32"].latency is not None
    assert not [line for line in said if "reference" in line]
    assert report.left == ()


def test_a_run_of_another_model_or_an_interrupted_one_keeps_what_the_file_has(
    tmp_path: Path, work: Path, eager_alone: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    eager_alone.setattr(verb, "SUBJECTS", (subject(), subject("other")))
    first = gpu_check(tmp_path, work, only=("tiny",), precisions=("fp32",), threads=1, cold=False)
    report = gpu_check(tmp_path, work, only=("other",), precisions=("fp32",), threads=1, budget_s=1e-9)
    assert report.left == ("other fp32",)
    assert report.pieces == first.pieces
    assert list(first.pieces) == ["tiny fp32"]
    eager_alone.setattr(verb, "export", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_check(tmp_path, work, only=("other",), precisions=("fp32",), threads=1)
    assert read(GpuReport, tmp_path / file_name(DEVICE)) == report


def test_a_model_that_fails_keeps_no_other_from_being_measured(
    tmp_path: Path, work: Path, eager_alone: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    broken = dataclasses.replace(subject("broken"), spec=f"{TINY}:nothing")
    eager_alone.setattr(verb, "SUBJECTS", (broken, subject()))
    report = gpu_check(tmp_path, work, precisions=("fp32",), threads=1, tell=told.append)
    assert "there is no 'nothing'" in report.pieces["broken fp32"].problem
    assert [line for line in told if line.startswith("broken fp32: ") and "there is no 'nothing'" in line]
    parity = report.pieces["tiny fp32"].parity
    assert parity is not None
    assert parity.runtimes["torch_eager"].verdict == "PASS"
    with pytest.raises(UnavailableError, match=r"broken fp32 was not measured: .*there is no 'nothing'"):
        raise_for(report)


def test_a_piece_without_a_sound_reference_has_a_problem_and_no_latency(
    tmp_path: Path, work: Path, eager_alone: pytest.MonkeyPatch
) -> None:
    def unsound(*given: Any, **options: Any) -> None:
        raise ParityFailed("float64 on a GPU is not the processor's")

    eager_alone.setattr(verb, "check", unsound)
    eager_alone.setattr(verb, "bench", lambda *given, **options: pytest.fail("nothing is there to judge it by"))
    report = gpu_check(tmp_path, work, precisions=("fp32",), threads=1)
    with pytest.raises(ParityFailed, match=r"tiny fp32 was not measured: float64 on .* is not the processor's"):
        raise_for(report)


def test_what_a_device_cannot_do_is_an_error_only_where_it_does_nothing_else() -> None:
    rows = {"torch_eager": RuntimeParity("PASS", "", "fp16"), "ort_cpu": RuntimeParity("NOT_RUN", "SM 90.", "fp16")}
    did, cannot = (
        Piece("about", parity=ParityReport("PASS", rows, {}, ())),
        Piece("about", problem="no bf16 here", exit_code=3),
    )
    report = GpuReport("0", DEVICE, "torch_eager", machine(), {}, {}, pieces={"a bf16": cannot, "a fp16": did})
    raise_for(report)
    raise_for(report, ("torch-eager",))
    with pytest.raises(UnavailableError, match="ort_cpu was not run: SM 90"):
        raise_for(report, ("torch_eager", "ort-cpu"))
    with pytest.raises(UnavailableError, match="a bf16 was not measured: no bf16 here"):
        raise_for(dataclasses.replace(report, pieces={"a bf16": cannot}))


@pytest.mark.parametrize("text", ['{"format": 1', '{"schema": "attnport/gpu-check/1", "format": 2}'])
def test_a_file_that_is_not_read_is_refused_in_words_and_stays(
    tmp_path: Path, text: str, eager_alone: pytest.MonkeyPatch
) -> None:
    path = tmp_path / file_name(DEVICE)
    path.write_text(text)
    with pytest.raises(ArtifactError, match=f"{path.name} is not a valid GpuReport"):
        gpu_check(tmp_path, tmp_path, precisions=("fp32",), budget_s=1e-9)
    assert path.read_text() == text
    report = gpu_check(tmp_path, tmp_path, precisions=("fp32",), budget_s=1e-9, force=True)
    assert report.left == ("tiny fp32",)
    assert read(GpuReport, path) == report


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ("gpt",)}, ["gpt", "tiny"]),
        ({"dtypes": ("int8",)}, ["int8", "fp16"]),
        ({"runtimes": ("openvino",)}, ["openvino", "ort_cpu, tensorrt_rtx, torch_eager"]),
        ({"runtimes": ("nothing",)}, ["nothing"]),
        ({"shapes": ("batch=2,seq=4",)}, ["--shape batch=2,seq=4", "one model"]),
        ({"shapes": ("batch=2,seq=x",), "only": ("tiny",)}, ["seq=x"]),
        ({"shapes": ("batch=2,seq=99",), "only": ("tiny",)}, ["seq=99"]),
    ],
)
def test_what_there_is_not_is_refused_before_a_gpu_is_looked_for(
    tmp_path: Path, options: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(verb, "found_gpu", lambda: pytest.fail("too late"))
    with pytest.raises((UsageError, ProfileError)) as caught:
        gpu_check(tmp_path, **options)
    for word in words:
        assert word in caught.value.message


def test_without_a_gpu_it_says_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "find_gpus", lambda: ((), "no NVIDIA driver: libcuda.so.1 cannot be loaded.", ""))
    with pytest.raises(UnavailableError, match=r"libcuda\.so\.1.*PyTorch: ") as caught:
        gpu_check(tmp_path)
    assert "docs/gpu.md" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_pytorch_cannot_use_is_said_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if base.get("torch_eager_cuda").probe().available:
        pytest.skip("PyTorch has a GPU here")
    pretend(monkeypatch, runtimes=("torch_eager_cuda",), eager="torch_eager_cuda")
    with pytest.raises(UnavailableError, match=f"{DEVICE} is there, but PyTorch"):
        gpu_check(tmp_path)


def test_it_measures_the_runtimes_that_compute_on_a_gpu() -> None:
    assert verb.gpu_runtimes() == [
        "ort_cuda",
        "ort_tensorrt",
        "ort_tensorrt_rtx",
        "tensorrt",
        "tensorrt_rtx",
        "torch_compile_cuda",
        "torch_compile_tuned_cuda",
        "torch_eager_cuda",
    ]
    assert verb.EAGER in verb.gpu_runtimes()


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_a_gpu_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not find_gpus()[0]:
        pytest.skip("there is no GPU here to be measured")
    monkeypatch.setattr(verb, "SUBJECTS", (subject(),))
    report = gpu_check(tmp_path, tmp_path / "work", precisions=("fp16",), budget_s=300)
    piece = report.pieces["tiny fp16"]
    assert piece.parity is not None
    assert piece.parity.runtimes["torch_eager_cuda"].verdict == "PASS"
    assert piece.latency is not None
    for rows in piece.latency.shapes.values():
        assert rows["torch_eager_cuda"].parts_ns["device"] > 0
    raise_for(report)
