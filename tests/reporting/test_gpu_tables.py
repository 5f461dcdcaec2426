"""What gpu-check prints beside rates: copies to and from the device, and the first run, cold and from what was kept."""

from __future__ import annotations

import re

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.console.cells import render
from attnport.console.gpu_tables import show_gpu_report
from attnport.folder.machine import machine
from attnport.verbs.gpu.report import FORMAT, GpuReport, Piece

PARTS = {"host_to_device": 1.25e5, "device": 2e6, "device_to_host": 3.5e5}
CALL = "batch=32,seq=2048"


def printed(**rows: LatencyRow) -> str:
    latency = LatencyReport("torch_eager_cuda", {}, {CALL: rows}, {}, {})
    piece = Piece("BERT base", "digest", latency=latency)
    return render(
        show_gpu_report,
        GpuReport(FORMAT, "0", "GPU", "torch_eager_cuda", machine(), {}, {}, None, {"bert_encoder fp16": piece}),
    )


def line(text: str, start: str) -> list[str]:
    """The cells of the last row that begins so."""
    rows = [row.strip() for row in text.splitlines()]
    return re.split(r"\s{2,}", next(row for row in reversed(rows) if row.startswith(start)))


def test_copies_and_first_runs_cold_and_cached_are_shown_within_80_columns() -> None:
    text = printed(
        **{
            "torch_compile_cuda (graph)": LatencyRow(
                "baseline", "", 1e7, parts_ns=PARTS, load_ns=123_438_021_349, first_ns=105_639_227_188
            )
        },
        tensorrt_rtx=LatencyRow(
            "faster", "", 5e6, parts_ns=PARTS, load_ns=900_000_000, first_ns=400_000_000,
            cached_load_ns=300_000_000, cached_first_ns=7_125_000,
        ),
        ort_cuda=LatencyRow("slower", "", 2e7),
        tensorrt=LatencyRow("NOT_RUN", "not installed"),
    )  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80
    assert line(text, "ms ") == ["ms", "to device", "from device", "load", "first call"]
    assert line(text, "torch_compile_cuda")[1:] == ["0.125", "0.350", "123438.02", "105639.23"]
    assert line(text, "tensorrt_rtx") == ["tensorrt_rtx", "0.125", "0.350", "900.00", "400.00"]
    assert line(text, "with what it kept") == ["with what it kept", "300.00", "7.125"]
    around = text[text.index("to device") :]
    assert "tensorrt " not in around, "it has no figure"


def test_what_no_row_has_is_no_column_and_nothing_at_all_no_table() -> None:
    text = printed(ort_cuda=LatencyRow("baseline", "", 2e7, load_ns=1_000_000, first_ns=2_000_000))
    assert line(text, "ms ") == ["ms", "load", "first call"]
    assert not [row for row in text.splitlines() if row.strip().startswith("with what it kept")]
    bare = printed(ort_cuda=LatencyRow("baseline", "", 2e7))
    assert not [row for row in bare.splitlines() if row.strip().startswith("ms ")]
