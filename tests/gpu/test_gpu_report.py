"""What gpu-check's report says and shows: verdicts, ratios on the device, notes, within 80 columns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from attnport.artifacts import DEVICE_PARTS, Capabilities, LatencyReport, LatencyRow, ParityReport, Ran, RuntimeParity
from attnport.console.terminal import shown as as_text
from attnport.errors import ParityFailed, UnavailableError
from attnport.folder.machine import machine
from attnport.latency.rows import Measured, rows
from attnport.verbs.gpu_check import GpuReport, Piece, file_name, raise_for, without_paths
from attnport.why import Why

CALL = "batch=32,seq=2048"


def samples(call_ms: float, device_ms: float | None, rounds: int = 30) -> Measured:
    rng = np.random.default_rng(int(call_ms * 10))
    noise = 1 + 0.01 * rng.standard_normal((rounds, 2))
    timed = [tuple(int(ns) for ns in one) for one in call_ms * 1e6 * noise]
    parts = {part: [int(1e5)] * (2 * rounds) for part in DEVICE_PARTS}
    if device_ms:
        parts["device"] = [int(device_ms * 1e6 * one) for one in noise.ravel()]
    return Measured(timed, parts if device_ms else {}, row=LatencyRow(ran=Ran("GPU", "x", "fp16")))


def parity(**rows: RuntimeParity) -> ParityReport:
    return ParityReport("PASS", rows, {})


@pytest.fixture(scope="module")
def report() -> GpuReport:
    by_runtime = {
        "torch_eager_cuda": samples(10, 5),
        "torch_compile_cuda (graph)": samples(8, 2.5),
        "ort_tensorrt_rtx": samples(20, None),
        "tensorrt_rtx": Measured(row=LatencyRow(why=Why("unavailable", "the engine [x] cannot be deserialised"))),
    }
    latency = LatencyReport(
        "torch_eager_cuda", {}, {CALL: rows(by_runtime, "torch_eager_cuda", 32, 65536)}, {CALL: 32}, {CALL: 65536}
    )
    piece = Piece(
        "BERT base", fused={"ort_tensorrt_rtx": "12/12"}, notes=("it is built for [others]",),
        parity=parity(
            torch_eager_cuda=RuntimeParity("PASS", "the yardstick", "fp16"),
            ort_tensorrt_rtx=RuntimeParity("PASS", "25 results within their bounds", "fp16"),
            tensorrt_rtx=RuntimeParity("NOT_RUN", "the engine [x] cannot be deserialised", "fp16"),
        ),
        latency=latency,
    )  # fmt: skip
    pieces, left = {"bert_encoder fp16": piece}, ("llama_decoder fp16",)
    return GpuReport("0", "Pretended GPU", "torch_eager_cuda", machine(), {}, {}, pieces, left)


def test_device_times_are_compared_with_an_interval_of_their_own(report: GpuReport) -> None:
    latency = report.pieces["bert_encoder fp16"].latency
    assert latency is not None
    found = latency.shapes[CALL]
    graph = found["torch_compile_cuda (graph)"]
    assert graph.ratio is not None
    assert graph.ratio[1] == pytest.approx(0.8, rel=0.02)
    assert graph.device_ratio is not None
    assert graph.device_ratio[0] < 0.5 < graph.device_ratio[2]
    assert found["torch_eager_cuda"].device_ratio is None
    assert found["ort_tensorrt_rtx"].device_ratio is None


def test_times_that_do_not_fit_the_rounds_have_no_device_ratio() -> None:
    base, short = samples(10, 5), samples(10, 5)
    short = dataclasses.replace(short, parts_ns={"device": short.parts_ns["device"][:-1]})
    nothing = dataclasses.replace(base, parts_ns={"device": [0] * 60})
    found = rows({"base": base, "short": short, "nothing": nothing}, "base", 1, 1)
    assert found["short"].device_ratio is None
    assert found["nothing"].device_ratio is None


def test_it_is_shown_within_80_columns_with_every_reason(report: GpuReport) -> None:
    text = as_text(report)
    assert max(map(len, text.splitlines())) <= 80
    for word in (
        "Pretended GPU",
        "12/12",
        "NOT_RUN",
        "0.499 [",
        "on device ms",
        CALL,
    ):
        assert word in text, word
    plain = " ".join(text.split())
    for words in ("the engine [x] cannot be deserialised", "[others]", "left for the next run: llama_decoder fp16"):
        assert words in plain, words


def test_what_failed_to_be_measured_is_shown(report: GpuReport) -> None:
    broken = dataclasses.replace(report, pieces={"a fp16": Piece("x", problem="out of memory")})
    assert "a fp16: out of memory" in as_text(broken)


def test_verdicts_become_exit_codes(report: GpuReport) -> None:
    raise_for(report)
    bad = Piece("x", parity=parity(a=RuntimeParity("FAIL", "far off", "fp16")))
    with pytest.raises(ParityFailed, match="x: a fails: far off"):
        raise_for(dataclasses.replace(report, pieces={"x": bad}))
    probed = {"tensorrt": Capabilities("tensorrt", False, "it is not installed.", "pip install x")}
    missing = dataclasses.replace(report, runtimes=probed)
    raise_for(missing)
    with pytest.raises(UnavailableError, match="tensorrt was not run: it is not installed"):
        raise_for(missing, ("tensorrt",))


def test_the_report_holds_no_path_of_the_machine(tmp_path: Path) -> None:
    library = Path.home() / "venv" / "lib" / "libnvinfer.so.10.9.0"
    found = Capabilities(
        "x", False, f"{library}: cannot open", libraries={"libnvinfer.so.10": str(library), "a.so": ""}
    )
    kept = without_paths(found, tmp_path)
    assert str(Path.home()) not in repr(kept)
    assert kept.libraries == {"libnvinfer.so.10": "libnvinfer.so.10.9.0", "a.so": ""}
    assert "cannot open" in kept.reason


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "gpu-nvidia-h100-80gb-hbm3.json"),
        ("NVIDIA GeForce RTX 4090 (SM 89)", "gpu-nvidia-geforce-rtx-4090.json"),
        ("a/../b", "gpu-a-b.json"),
    ],
)
def test_a_report_is_called_as_its_gpu(device: str, name: str) -> None:
    assert file_name(device) == name
