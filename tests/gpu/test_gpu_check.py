"""gpu-check from end to end, with the processor in the place of a GPU: what is measured here is measured, and kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import ParityReport, RuntimeParity
from attnport.console.terminal import shown as as_text
from attnport.errors import ParityFailed, ProfileError, UnavailableError, UsageError
from attnport.folder.machine import Gpu, find_gpus
from attnport.jsonfile import from_json, to_json
from attnport.runtimes import base
from attnport.verbs import gpu_check as verb
from attnport.verbs._gpu_models import Subject
from attnport.verbs.gpu_check import GpuReport, Piece, gpu_check, raise_for

TINY = Path(__file__).parent.parent / "tiny_model.py"
DEVICE = "the processor, in the place of a GPU"
RUNTIMES = ("ort_cpu", "tensorrt_rtx", "torch_eager")


def subject(name: str = "tiny", spec: str = "spec") -> Subject:
    calls = ("batch=1/3,seq=5",)
    return Subject(name, f"{TINY}:{spec}", calls, calls, ("batch=1:2:4,seq=1:5:16",))


def pretend(
    patch: pytest.MonkeyPatch, *subjects: Subject, runtimes: Sequence[str] = RUNTIMES, eager: str = "torch_eager"
) -> None:
    """Puts the processor in the place of a GPU."""
    patch.setattr(verb, "find_gpus", lambda: ((Gpu(DEVICE, 90, 0),), "", ""))
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
def measured(work: Path) -> GpuReport:
    """A run on the processor."""
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        return gpu_check(work, precisions=("fp32",))


def test_parity_and_latency_of_every_runtime_are_measured(measured: GpuReport, work: Path) -> None:
    assert from_json(GpuReport, to_json(measured), "the report") == measured
    assert list(measured.pieces) == ["tiny fp32"]
    piece = measured.pieces["tiny fp32"]
    assert (piece.problem, piece.exit_code, piece.notes) == ("", 0, ())
    assert piece.parity is not None
    found = piece.parity.runtimes
    assert found["torch_eager"].verdict == found["ort_cpu"].verdict == "PASS"
    assert "batch=3,seq=5" in {case.case for case in found["ort_cpu"].cases}  # a timed call is judged too
    assert found["ort_cpu"].invariance
    assert piece.parity.absent["tensorrt_rtx"]
    assert piece.fused == {"ort_cpu": "1/1"}
    assert piece.latency is not None
    assert list(piece.latency.shapes) == ["batch=1,seq=5", "batch=3,seq=5"]
    assert piece.latency.baseline == "torch_eager"
    assert {path.name for path in (work / "tiny").iterdir()} >= {"parity.fp32.json", "latency.fp32.json"}
    raise_for(measured)


def test_what_was_done_with_the_same_inputs_stays(
    measured: GpuReport, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    said: list[str] = []
    assert gpu_check(work, precisions=("fp32",), progress=said.append) == measured
    assert not [line for line in said if "reference" in line or "round" in line or "tracing" in line]


def test_it_is_shown_within_80_columns_with_every_reason(measured: GpuReport) -> None:
    piece = dataclasses.replace(measured.pieces["tiny fp32"], notes=("it is built for [others]",))
    report = GpuReport(DEVICE, {"tiny fp32": piece, "tiny fp16": Piece("out of memory", 3)})
    text = as_text(report)
    assert max(map(len, text.splitlines())) <= 80
    plain = " ".join(text.split())
    for words in (DEVICE, "1/1", "tensorrt_rtx", "batch=3,seq=5", "[others]", "tiny fp16: out of memory"):
        assert words in plain, words


def test_a_model_that_fails_keeps_no_other_from_being_measured(work: Path, eager_alone: pytest.MonkeyPatch) -> None:
    eager_alone.setattr(verb, "SUBJECTS", (subject("broken", "nothing"), subject()))
    report = gpu_check(work, precisions=("fp32",), cold=False)
    assert "there is no 'nothing'" in report.pieces["broken fp32"].problem
    assert str(work) not in report.pieces["broken fp32"].problem
    parity = report.pieces["tiny fp32"].parity
    assert parity is not None
    assert parity.runtimes["torch_eager"].verdict == "PASS"
    with pytest.raises(UnavailableError, match=r"broken fp32: .*there is no 'nothing'"):
        raise_for(report)


def test_without_a_sound_reference_nothing_is_timed(work: Path, eager_alone: pytest.MonkeyPatch) -> None:
    def unsound(*given: Any, **options: Any) -> None:
        raise ParityFailed("float64 on a GPU is not the processor's")

    eager_alone.setattr(verb, "check", unsound)
    eager_alone.setattr(verb, "bench", lambda *given, **options: pytest.fail("nothing is there to judge it by"))
    report = gpu_check(work, precisions=("fp32",))
    with pytest.raises(ParityFailed, match=r"tiny fp32: float64 on .* is not the processor's"):
        raise_for(report)


@pytest.mark.parametrize(
    ("row", "runtimes", "error"),
    [
        (RuntimeParity("FAIL", "far off", "fp32"), (), ParityFailed),
        (RuntimeParity("NOT_RUN", "SM 90", "fp32"), (), None),
        (RuntimeParity("NOT_RUN", "SM 90", "fp32"), ("ort-cpu",), UnavailableError),
    ],
)
def test_verdicts_become_exit_codes(
    row: RuntimeParity, runtimes: tuple[str, ...], error: type[Exception] | None, work: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pretend(monkeypatch, runtimes=("torch_eager", "ort_cpu"))
    rows = {"torch_eager": RuntimeParity("PASS", "", "fp32"), "ort_cpu": row}
    monkeypatch.setattr(verb, "check", lambda *given, **options: ParityReport("PASS", rows, {}))
    monkeypatch.setattr(verb, "bench", lambda *given, **options: None)
    report = gpu_check(work, precisions=("fp32",), runtimes=runtimes)
    if error is None:
        raise_for(report)
        return
    with pytest.raises(error, match=f"tiny fp32: ort_cpu .*{row.reason}"):
        raise_for(report)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ("gpt",)}, ["gpt", "tiny"]),
        ({"precisions": ("int8",)}, ["int8", "fp16"]),
        ({"runtimes": ("openvino",)}, ["openvino", "ort_cpu, tensorrt_rtx, torch_eager"]),
        ({"runtimes": ("nothing",)}, ["nothing"]),
        ({"shapes": ("batch=2,seq=4",)}, ["--shape batch=2,seq=4", "one model"]),
        ({"shapes": ("batch=2,seq=4",), "only": ("tiny", "other")}, ["--shape batch=2,seq=4", "one model"]),
        ({"shapes": ("batch=2,seq=x",), "only": ("tiny",)}, ["seq=x"]),
        ({"shapes": ("batch=2,seq=99",), "only": ("tiny",)}, ["seq=99"]),
    ],
)
def test_what_there_is_not_is_refused_before_a_gpu_is_looked_for(
    tmp_path: Path, options: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, subject(), subject("other"))
    monkeypatch.setattr(verb, "find_gpus", lambda: pytest.fail("too late"))
    with pytest.raises((UsageError, ProfileError)) as caught:
        gpu_check(tmp_path, **options)
    for word in words:
        assert word in caught.value.message


def test_without_a_gpu_it_says_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "find_gpus", lambda: ((), "no NVIDIA driver: libcuda.so.1 cannot be loaded.", ""))
    with pytest.raises(UnavailableError, match=r"no CUDA GPU here: .*libcuda\.so\.1 cannot be loaded\.") as caught:
        gpu_check(tmp_path)
    assert str(caught.value).endswith("cannot be loaded.")
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
    report = gpu_check(tmp_path, precisions=("fp16",), budget_s=300)
    piece = report.pieces["tiny fp16"]
    assert piece.parity is not None
    assert piece.parity.runtimes["torch_eager_cuda"].verdict == "PASS"
    assert piece.latency is not None
    for rows in piece.latency.shapes.values():
        assert rows["torch_eager_cuda"].parts_ns["device"] > 0
    raise_for(report)
