"""What is printed fits 80 columns, whatever it says, and says it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

import pytest

from attnport.artifacts import (
    IO,
    Argmax,
    CaseResult,
    FusionItem,
    FusionReport,
    FusionTable,
    InvarianceResult,
    LatencyReport,
    LatencyRow,
    Manifest,
    ParityReport,
    Ran,
    RuntimeParity,
    Ulps,
)
from attnport.auditing.text import Finding
from attnport.console.run import Reporter
from attnport.console.terminal import render
from attnport.console.terminal import shown as printed
from attnport.dims import values_of
from attnport.printed import Printed
from attnport.reporting.document import Detail
from attnport.reporting.report import exported
from attnport.verbs.audit import AuditReport
from attnport.verbs.listing import Listing, listing
from attnport.verbs.ship import ShipResult, StageResult
from attnport.verbs.verify import VerifyResult, VerifyRow
from attnport_bundle.format.contract import Dim, MaskSpec, TensorSpec

LONG = "a reason that goes on, and on; " * 12 + "https://an.address/that-nobody-could-break-in-two/" + "x" * 90
PATH = "/a folder/" + "deep/" * 30


def case(share: float) -> CaseResult:
    return CaseResult("right padding", "hidden", "PASS", "", 10, share, 1.0, share / 2, 1.0, share, None, 0)


PARITY = ParityReport(
    "FAIL",
    {
        "ort_cpu": RuntimeParity("PASS", LONG, "fp32", Ran("cpu", "CPUExecutionProvider", "fp32"), (case(0.25),)),
        "openvino": RuntimeParity("FAIL", LONG, "fp32", Ran("cpu", "openvino 2026.4.1", "fp32"), (case(7.5),)),
        "tensorrt_rtx": RuntimeParity("NOT_RUN", "there is no [GPU] here", "fp16"),
    },
    {"onnx_18": RuntimeParity("PASS", LONG, "fp32", None, (case(0.5),))},
    (LONG,),
)
FUSION = FusionReport(
    {
        "ort_cpu": FusionTable(
            1, 1, (FusionItem("encoder.0", "Attention", "padding(mask)", "MultiHeadAttention", True, "", LONG),),
            "model.ort_cpu.onnx", "fp32", "ort_cpu"),
        "tensorrt_rtx.fp32_islands": FusionTable(
            2, 0, (FusionItem("encoder.0", "Attention", "padding(mask)", None, False, LONG),
                   FusionItem("encoder.1", "Attention", "padding(mask)", None, False, "another reason")),
            "model.tensorrt_rtx.onnx", "fp32_islands", None),
    }
)  # fmt: skip
LATENCY = LatencyReport(
    "torch_eager",
    {},
    {
        name: {
            "torch_eager": LatencyRow("baseline", "", 1.5e9, None, (), None, 12345678.0, 1234567890.0, 1 << 34),
            "ort_cpu": LatencyRow("no difference shown", "", 7e5, None, (), (0.91, 0.98, 1.04), 0.4, None, 5),
            "openvino": LatencyRow("faster", "", 7e5, None, (), (0.11, 0.12, 0.13), 40.0, 512.0, 1 << 20),
            "tensorrt": LatencyRow(reason=LONG, kind="unavailable"),
        }
        for name in ("1 sentence", "32 sentences", "batch=8,seq=128", "batch=16,seq=512")
    },
    {},
    {},
)
STAGES = (
    StageResult("export", "up to date", 0.1, "6 attentions counted"),
    StageResult("fuse", "done", 1234.5, PATH),
    StageResult("build", "failed", 12.3, LONG, 5),
    StageResult("check", "not run", 0.0, LONG),
)
SHIPPED = ShipResult(PATH, 5, STAGES, FUSION, PARITY, LATENCY)
VALUES: dict[str, tuple[Printed, Detail]] = {
    "ship": (SHIPPED, "brief"),
    "fusion": (FUSION, "brief"),
    "fusion explained": (FUSION, "whole"),
    "parity": (PARITY, "brief"),
    "latency": (LATENCY, "brief"),
    "all of parity": (PARITY, "whole"),
    "all of latency": (LATENCY, "whole"),
    "audit": (AuditReport(
        PATH, "folder", ("a", "b"), (Finding("x" * 100, LONG, "path", LONG[:80], False, LONG),) * 2, 3, (LONG,)
    ), "brief"),
    "verify": (VerifyResult(PATH, "bundle", "FAIL", 6, (VerifyRow("x" * 100, "FAIL", LONG),), True), "brief"),
    "listing": (Listing("models", {"name" * 30: LONG}), "brief"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_no_line_is_longer_than_80_columns(name: str) -> None:
    value, detail = VALUES[name]
    text = printed(value, detail)
    assert max(map(len, text.splitlines())) <= 80
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text
    assert "\x1b[" in printed(value, detail, colour=True)


@pytest.mark.parametrize("what", ["models", "runtimes", "targets", "rules"])
def test_listings_fit_too(what: str) -> None:
    text = printed(listing(what))
    assert max(map(len, text.splitlines())) <= 80
    assert all(line.endswith(".") for line in listing(what).items.values()), "a sentence that is not cut"


def test_the_verdict_table_puts_parity_fusion_and_speed_of_a_runtime_in_one_row() -> None:
    text = printed(SHIPPED)
    row = next(line for line in text.splitlines() if line.strip().startswith("ort_cpu"))
    assert row.split()[:4] == ["ort_cpu", "PASS", "1/1", "0.70"]
    assert "~0.98x" in row
    assert "verdict: FAIL" in text
    assert "8x128 ms" in text
    assert "not shipped (exit 5)" in text
    assert "tensorrt_rtx: there is no [GPU] here" in text  # brackets are the text's own, not markup
    assert "build" in text
    assert text.count("reason that goes on") < 40  # a cell holds the beginning, stderr the whole


def test_the_verdict_table_has_room_for_three_workloads_beside_a_target_that_nobody_could_prove() -> None:
    fusion = FusionReport({"onnx_reference": dataclasses.replace(FUSION.targets["ort_cpu"], proved_by=None)})
    passed = ParityReport("PASS", {"onnx_reference": PARITY.runtimes["ort_cpu"]}, {})
    row = LatencyRow("faster", "", 134.11e6, None, (), (0.91, 0.92, 0.93), None, None, None)
    latency = LatencyReport("torch_eager", {}, {name: {"onnx_reference": row} for name in LATENCY.shapes}, {}, {})
    text = printed(ShipResult("out", 0, STAGES[:1], fusion, passed, latency))
    (line,) = (line for line in text.splitlines() if line.strip().startswith("onnx_reference"))
    assert line.split() == ["onnx_reference", "PASS", "-", *["134.11", "0.92x"] * 3]
    assert "- where nothing here could prove it" in " ".join(text.split())
    assert "known within" not in text
    unsure = dataclasses.replace(row, ratio=(0.4, 0.8, 1.2))
    shapes = latency.shapes | {"1 sentence": {"onnx_reference": unsure}}
    text = printed(ShipResult("out", 0, (), fusion, passed, dataclasses.replace(latency, shapes=shapes)))
    assert "the ratio of onnx_reference on 1 sentence is known within 50% alone" in " ".join(text.split())


def test_what_was_not_run_stands_below_the_table_with_its_reason_and_what_was_proved_of_it_stays() -> None:
    absent = {"ort_cuda": "no package", "tensorrt": "no package", "tensorrt_rtx": "no driver"}
    crashed = {name: RuntimeParity("NOT_RUN", "its process failed: killed", "fp32") for name in ("openvino", "ort_x")}
    ran = RuntimeParity("PASS", "", "fp32", None, (case(0.25),))
    fusion = FusionReport({"tensorrt_rtx": FUSION.targets["ort_cpu"]})
    parity = ParityReport("PASS", {**crashed, "ort_cpu": ran}, {}, absent=absent)
    text = printed(ShipResult("out", 0, (), fusion, parity, None))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["tensorrt_rtx"] == ["NOT_RUN", "1/1"]
    assert rows["openvino,"] == ["ort_x:", "its", "process", "failed:", "killed"]
    assert "2 more want a GPU or a package: ort_cuda, tensorrt; why: attnport doctor" in " ".join(text.split())
    assert "tensorrt_rtx: no driver" in text
    assert "no package" not in text
    checked = " ".join(printed(parity).split())
    assert "3 more want a GPU or a package: ort_cuda, tensorrt, tensorrt_rtx; why: attnport doctor" in checked
    assert "openvino, ort_x: its process failed" in checked


def test_what_this_machine_lacks_is_one_line_of_bench() -> None:
    report = dataclasses.replace(LATENCY, absent=dict.fromkeys(("ort_cuda", "tensorrt_rtx"), "no package"))
    text = printed(report)
    assert "2 more want a GPU or a package: ort_cuda, tensorrt_rtx; why: attnport doctor" in text
    assert "no package" not in text
    nothing = dataclasses.replace(report, shapes={})
    assert "ort_cuda, tensorrt_rtx: no package" in printed(nothing)  # all that there is to say


def test_the_times_in_detail_are_shown_on_demand() -> None:
    row = dataclasses.replace(LATENCY.shapes["1 sentence"]["ort_cpu"], samples_ns=(1, 2), load_ns=5)
    report = dataclasses.replace(LATENCY, shapes={"a": {"ort_cpu": row}})
    assert "load ms" not in printed(report)
    assert "load, first call, p90, p99: -v" in printed(report)
    assert "load ms" in printed(report, "whole")


def test_forms_that_pass_are_one_line_and_a_failing_one_is_told_in_words() -> None:
    forms = {name: RuntimeParity("PASS", "within", "fp32", None, (case(0.5),)) for name in ("onnx", "onnx_18")}
    wrong = RuntimeParity("FAIL", "case primes (batch=5), output y: 3.10 times its bound", "fp16", None, (case(3.1),))
    for forms_told in (forms, {**forms, "tensorrt.fp16": wrong}):
        report = ParityReport("PASS", {"ort_cpu": PARITY.runtimes["ort_cpu"]}, forms_told)
        for text in (printed(report), printed(ShipResult("o", 0, (), None, report, None))):
            assert "graphs of forms, apart from their runtimes: PASS onnx, onnx_18" in text
            assert ("tensorrt.fp16: case primes (batch=5), output y: 3.10 times its bound" in text) is (
                len(forms_told) == 3
            )
    assert "the graphs of the forms" in printed(report, "whole")


def test_the_cause_of_a_stage_that_was_not_run_is_whole_below_the_table() -> None:
    text = printed(ShipResult("out", 0, STAGES, None, None, None))
    told = " ".join(text.partition("check:")[2].split())
    assert LONG[:200] in told


def test_a_ship_that_worked_says_so() -> None:
    done = ShipResult("out", 0, STAGES[:2], None, None, None)
    assert "shipped: out; read out/report.html" in printed(done)


def test_the_worst_share_of_the_bound_is_shown() -> None:
    lines = {line.split()[0]: line for line in printed(PARITY).splitlines() if line.strip()}
    assert lines["ort_cpu"].split()[-2:] == ["0.25", "-"]
    assert lines["openvino"].split()[-2:] == ["7.50", "-"]
    assert "openvino:" in lines  # the reason of a failure, below the table
    assert "ort_cpu:" not in lines


def test_what_padding_changes_has_a_column_of_its_own() -> None:
    pairs = [
        InvarianceResult("alone against in a padded batch", "hidden", verdict, difference, 1.0, difference, 4.0)
        for verdict, difference in (("PASS", 0.5), ("FAIL", 3.0), ("FAIL", None))
    ]
    for chosen, shown in ((pairs[:1], "0.50"), (pairs[:2], "3.00"), (pairs[2:], "FAIL")):
        row = RuntimeParity("FAIL", "padding", "fp32", None, (case(0.25),), tuple(chosen))
        lines = printed(ParityReport("FAIL", {"ort_cpu": row}, {})).splitlines()
        assert next(line.split() for line in lines if line.startswith(" ort_cpu"))[-1] == shown


def test_the_worst_of_each_metric_is_shown_by_runtime_and_output() -> None:
    def measured(name: str, output: str, *, ulp: float, agree: int) -> CaseResult:
        return dataclasses.replace(
            case(0.25), case=name, output=output, relative=ulp * 1e-7, cosine=1 - ulp * 1e-9, nonfinite=agree % 2,
            ulps=Ulps(ulp, 2 * ulp, 30 * ulp, 4e9), argmax=Argmax(2000, agree) if output == "logits" else None,
        )  # fmt: skip

    cases = (
        measured("primes", "logits", ulp=0.5, agree=2000),
        measured("longest", "logits", ulp=7.0, agree=1999),
        measured("large values", "logits", ulp=900.0, agree=0),
        measured("primes", LONG[:70], ulp=40.0, agree=2000),
    )
    row = RuntimeParity("PASS", "", "fp32", None, cases)
    text = printed(ParityReport("PASS", {"ort_cpu": row, "openvino": row}, {}), "whole")
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if "7.00e-7" in line]
    shown = ["1.25e-1", "7.00e-7", "7.00", "210", "7e-09", "99.9%", "1"]
    assert rows == [[name, *shown] for name in ("ort_cpu", "openvino")]
    assert "logits: the worst of each metric" in text
    assert "argmax" not in text.partition("a reason that goes on")[2]
    assert " 1,200 " in text
    many = [measured("primes", f"y{number}", ulp=1.0, agree=0) for number in range(9)]
    row = RuntimeParity("PASS", "", "fp32", None, tuple(many))
    text = printed(ParityReport("PASS", {"ort_cpu": row}, {}), "whole")
    assert text.count(": the worst of each metric") == 4
    assert "5 more outputs" in text
    assert "the worst of each metric" not in printed(PARITY, "whole")  # an old report has none
    assert "the worst of each metric" not in printed(ParityReport("PASS", {"ort_cpu": row}, {}))


def test_reasons_that_are_the_same_are_said_once() -> None:
    rows = {name: RuntimeParity("NOT_RUN", "no driver", "fp32") for name in ("tensorrt", "tensorrt_rtx")}
    text = printed(ParityReport("NOT_RUN", rows, {}))
    assert "tensorrt, tensorrt_rtx: no driver" in text


def test_explaining_names_every_attention_with_its_reason() -> None:
    text = printed(FUSION, "whole")
    assert "encoder.0: fused in MultiHeadAttention" in text
    assert "encoder.1: not proven" in text  # no runtime here could look
    assert "another reason" in text


def test_a_long_explanation_stays_under_its_attention() -> None:
    lines = printed(FUSION, "whole").splitlines()
    assert sum("reason that goes on" in line for line in lines) > 3
    assert all(line.startswith("    ") for line in lines if "reason that goes on" in line)


def test_the_heading_of_the_interval_is_no_markup() -> None:
    assert "[interval]" in printed(LATENCY)


def test_an_export_shows_masks_and_limits_of_ids() -> None:
    io = IO(
        (TensorSpec("ids", "int64", ("B", "T"), high=100), TensorSpec("mask", "int64", ("B", "T"))),
        (TensorSpec("y", "float32", ("B", 4)),),
        (Dim("B", 1, 8, 64), Dim("T", 1, 128, 512)),
        (MaskSpec(("padding",), "mask"), MaskSpec(("causal",))),
    )
    manifest = cast("Manifest", SimpleNamespace(name="m", opset=23, attentions=(), io=io))
    lines = [line.split() for line in render(exported(manifest)).splitlines()]
    assert ["ids", "input", "int64", "[B,", "T]", "0", "to", "99"] in lines
    assert ["mask", "input", "int64", "[B,", "T]", "padding", "mask,", "keep"] in lines
    assert ["computed", "masks:", "causal"] in lines


def test_many_labels_are_cut() -> None:
    io = IO((), (), ())
    few, many = (
        TensorSpec("y", "float32", ("B", n), labels=tuple(f"c{place}" for place in range(n))) for n in (3, 1000)
    )
    assert values_of(few, io) == "c0, c1, c2"
    assert values_of(many, io) == "1000 classes: c0, c1, ... c999"


def test_a_mask_is_shown_with_its_meaning_and_lengths_with_none() -> None:
    mask, lengths = TensorSpec("mask", "int64", ("B", "S")), TensorSpec("n", "int64", ("B",))
    masks = MaskSpec(("padding",), "mask", "hide"), MaskSpec(("padding",), "n", carries="lengths")
    io = IO((mask, lengths), (), (), masks)
    assert values_of(mask, io) == "padding mask, hide"
    assert values_of(lengths, io) == "padding lengths"


def test_a_count_of_one_is_no_plural() -> None:
    def told(attentions: int) -> str:
        manifest = cast(
            "Manifest",
            SimpleNamespace(name="m", opset=23, attentions=[None] * attentions, io=IO((), (), ())),
        )
        return render(exported(manifest)).splitlines()[-1]

    assert told(1) == "1 attention counted"
    assert told(2) == "2 attentions counted"


def test_a_target_that_nobody_could_prove_is_not_called_unfused() -> None:
    looked = FusionReport({"openvino": dataclasses.replace(FUSION.targets["tensorrt_rtx.fp32_islands"], proved_by="x")})
    for detail in ("brief", "whole"):
        assert "not proven" in printed(FUSION, cast("Detail", detail))
        assert "not proven" not in printed(looked, cast("Detail", detail))
        assert "0/2" in printed(looked, cast("Detail", detail))


def test_the_fusion_of_an_engine_is_one_line() -> None:
    table = FusionTable(1, 1, FUSION.targets["ort_cpu"].items, "m", "fp16", "engines/x.engine")
    assert printed(table) == "1/1 attentions fused: MultiHeadAttention\n"
    missed = dataclasses.replace(table, fused=0, items=FUSION.targets["tensorrt_rtx.fp32_islands"].items[:1])
    assert printed(missed) == "0/1 attentions fused\n"


def test_progress_is_quiet_when_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = Reporter(as_json=False, verbose=False, traceback=False)
    with out.working("title"):
        out.progress("step")
    assert capsys.readouterr() == ("", "")
    out = Reporter(as_json=False, verbose=True, traceback=False)
    with out.working("title"):
        out.progress("step [1/2]")
        print("what a library prints")
    assert capsys.readouterr() == ("", "step [1/2]\nwhat a library prints\n")
