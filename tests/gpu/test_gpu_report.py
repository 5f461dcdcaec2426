"""What gpu-check's report says and shows: rates by events or by the whole call, verdicts, notes, within 80 columns."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from attnport.artifacts import DEVICE_PARTS, Capabilities, LatencyReport, LatencyRow, ParityReport, Ran, RuntimeParity
from attnport.console.cells import render
from attnport.console.gpu_tables import show_gpu_report
from attnport.errors import ParityFailed, UnavailableError
from attnport.folder.machine import machine
from attnport.jsonfile import to_json
from attnport.latency.judging import Samples, rows
from attnport.verbs.gpu import peaks as gpu_peaks
from attnport.verbs.gpu.costs import Work
from attnport.verbs.gpu.peaks import Peak, Peaks
from attnport.verbs.gpu.report import (
    FORMAT,
    FROM_CACHE,
    TOO_FAST,
    GpuReport,
    Piece,
    achieved,
    earlier,
    file_name,
    raise_for,
    with_achieved,
)
from attnport.verbs.gpu_check import without_paths

PEAKS = Peaks({"fp16": Peak(500e12, "a product of 4096 x 4096 matrices in fp16", (1,))}, Peak(2e12, "a copy", (1,)))
WORK = Work(flops=10**12, moved_bytes=10**9)
CALL = "batch=32,seq=2048"


def samples(call_ms: float, device_ms: float | None, rounds: int = 30) -> Samples:
    rng = np.random.default_rng(int(call_ms * 10))
    noise = 1 + 0.01 * rng.standard_normal((rounds, 2))
    timed = tuple(tuple(int(ns) for ns in one) for one in call_ms * 1e6 * noise)
    parts = {part: [int(1e5)] * (2 * rounds) for part in DEVICE_PARTS}
    if device_ms:
        parts["device"] = [int(device_ms * 1e6 * one) for one in noise.ravel()]
    return Samples(timed, ran=Ran("GPU", "x", "fp16"), parts_ns=parts if device_ms else {})


def parity(**rows: RuntimeParity) -> ParityReport:
    return ParityReport("PASS", rows, {})


@pytest.fixture(scope="module")
def report() -> GpuReport:
    by_runtime = {
        "torch_eager_cuda": samples(10, 5),
        "torch_compile_cuda (graph)": samples(8, 2.5),
        "ort_tensorrt_rtx": samples(20, None),
        "tensorrt_rtx": Samples(problem="the engine [x] cannot be deserialised"),
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
        latency=latency, work={CALL: WORK},
    )  # fmt: skip
    piece = with_achieved(piece, "fp16", PEAKS)
    return GpuReport(
        FORMAT, "0", "Pretended GPU", "torch_eager_cuda", machine(), {}, {}, PEAKS, {"bert_encoder fp16": piece},
        ("llama_decoder fp16",),
    )  # fmt: skip


def test_rates_are_of_the_time_of_computing_where_events_tell_it(report: GpuReport) -> None:
    found = report.pieces["bert_encoder fp16"].achieved[CALL]
    assert set(found) == {"torch_eager_cuda", "torch_compile_cuda (graph)", "ort_tensorrt_rtx"}
    assert found["torch_eager_cuda"].by == "events"
    assert found["torch_eager_cuda"].flops_per_s == pytest.approx(200e12, rel=0.01)
    assert found["torch_eager_cuda"].flops_share == pytest.approx(0.4, rel=0.01)
    assert found["torch_eager_cuda"].bytes_per_s == pytest.approx(200e9, rel=0.01)
    assert found["torch_eager_cuda"].bytes_share == pytest.approx(0.1, rel=0.01)
    assert found["ort_tensorrt_rtx"].by == "call"
    assert found["ort_tensorrt_rtx"].flops_per_s == pytest.approx(50e12, rel=0.01)


def test_without_peaks_there_are_rates_and_no_shares() -> None:
    row = LatencyRow("faster", "", median_ns=1e6)
    found = achieved(row, WORK, "fp16", None)
    assert found is not None
    assert found.flops_share is None
    assert found.bytes_share is None
    assert achieved(LatencyRow("NOT_RUN", "gone"), WORK, "fp16", PEAKS) is None


def test_a_share_above_the_measured_peak_is_said_to_be_an_error_of_the_measurement(report: GpuReport) -> None:
    ms = LatencyRow("faster", "", median_ns=1e6)
    found = achieved(ms, Work(flops=520 * 10**9, moved_bytes=2 * 10**9), "fp16", PEAKS)
    assert found is not None
    assert found.notes == (TOO_FAST,)
    both = achieved(ms, Work(flops=520 * 10**9, moved_bytes=3 * 10**9), "fp16", PEAKS)
    assert both is not None
    assert both.notes == (TOO_FAST, FROM_CACHE)
    assert all(one.notes == () for one in report.pieces["bert_encoder fp16"].achieved[CALL].values())
    piece = report.pieces["bert_encoder fp16"]
    shown = dataclasses.replace(piece, achieved={CALL: {"a": found, "b": both}})
    text = render(show_gpu_report, dataclasses.replace(report, pieces={"x": shown}))
    assert max(map(len, text.splitlines())) <= 80
    plain = " ".join(text.split())
    assert plain.count("520* 104% (!)") == 2
    assert "3e+03* 150% (!)" in plain
    assert "2e+03* 100%" in plain
    assert plain.count(f"(!): {TOO_FAST}") == 1
    assert plain.count(f"(!): {FROM_CACHE}") == 1
    assert "(!)" not in render(show_gpu_report, report)


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
    text = render(show_gpu_report, report)
    assert max(map(len, text.splitlines())) <= 80
    for word in (
        "Pretended GPU",
        "500 TFLOP/s",
        "2000 GB/s",
        "12/12",
        "NOT_RUN",
        "0.499 [",
        "ratio on device",
        "40%",
        "50* 10%",
        CALL,
    ):
        assert word in text, word
    plain = " ".join(text.split())
    for words in ("the engine [x] cannot be deserialised", "[others]", "left for the next run: llama_decoder fp16"):
        assert words in plain, words


def test_what_failed_to_be_measured_is_shown(report: GpuReport) -> None:
    broken = dataclasses.replace(report, peaks=None, pieces={"a fp16": Piece("x", problem="out of memory")})
    text = render(show_gpu_report, broken)
    assert "peak rates: not measured" in text
    assert "a fp16: out of memory" in text


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


def test_a_report_is_read_back_as_it_was_written(report: GpuReport, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(to_json(report))
    assert earlier(path) == report
    path.write_text(to_json(dataclasses.replace(report, format=FORMAT + 1)))
    assert earlier(path) is None
    assert earlier(tmp_path / "nothing.json") is None


class Clock:
    """A device on which a product of n x n takes n ns, and a copy 1 us."""

    kind = "cpu"

    def __init__(self) -> None:
        self.freed = 0

    def mark(self) -> int:
        return 0

    def ns_between(self, first: int, second: int) -> int:
        return 1000

    def wait(self) -> None: ...

    def free(self) -> None:
        self.freed += 1


def test_the_peak_is_the_best_median_of_all_sizes() -> None:
    clock = Clock()
    found = gpu_peaks.measure(clock, ("fp32", "bf16"), sizes=(8, 16), copy_bytes=4096, rounds=3, warm_s=0.0)
    assert found.flops["bf16"].per_s == pytest.approx(2 * 16**3 / 1e-6)
    assert "16 x 16" in found.flops["bf16"].what
    assert found.flops["fp32"].samples_ns == (1000,) * 3
    assert found.copy is not None
    assert found.copy.per_s == pytest.approx(2 * 4096 / 1e-6)
    assert clock.freed == 1


def test_clocks_are_warm_and_their_state_is_told_before_and_after(
    report: GpuReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, waits = Clock(), []
    monkeypatch.setattr(clock, "wait", lambda: waits.append(time.monotonic()))
    told: list[int] = []

    def state() -> tuple[str, str]:
        told.append(len(waits))
        return f"{len(told)} MHz", ""

    monkeypatch.setattr(gpu_peaks, "gpu_state", state)
    found = gpu_peaks.measure(clock, ("fp32",), sizes=(8,), copy_bytes=4096, rounds=3, warm_s=0.2)
    warm, end = told
    assert warm > 1
    assert waits[warm - 1] - waits[0] > 0.1
    assert end == len(waits) == warm + 2 * 4  # a product and a copy in each round, and in the one that loads kernels
    assert (found.gpu_before, found.gpu_after, found.note) == ("1 MHz", "2 MHz", "")
    assert "GPU before and after: 1 MHz; 2 MHz" in render(show_gpu_report, dataclasses.replace(report, peaks=found))
    unknown = dataclasses.replace(found, gpu_before="", note="no NVML")
    assert "note: no NVML" in render(show_gpu_report, dataclasses.replace(report, peaks=unknown))


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
