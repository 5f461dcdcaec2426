"""The page from constructed values: every verdict, everything missing, and names that try to be markup."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import re
from typing import Any

import page_sample as sample
import pytest
from page_words import full, text_of
from wellformed import faults, tags

from attnport.artifacts import (
    Argmax,
    CaseResult,
    FusionItem,
    FusionReport,
    FusionTable,
    LatencyReport,
    LatencyRow,
    NonFinite,
    PaddedRows,
    ParityReport,
    RuntimeParity,
    Ulps,
)
from attnport.reporting import document as doc
from attnport.reporting import markdown
from attnport.reporting.facts import without
from attnport.reporting.report import document

EVIL = """</script><script>alert(1)</script><img src=x onerror=alert(1)>"'&\u202e\x00"""


def test_a_full_page_is_well_formed_small_and_says_the_verdicts() -> None:
    page = full()
    assert faults(page) == []
    assert len(page.encode()) < 500_000
    seen = text_of(page)
    assert "all-MiniLM-L6-v2" in seen
    assert seen.count("6/6") == 3
    assert "0/6" in seen
    assert "4 of 4 runtimes within the bound" in seen
    assert sample.NO_GPU in seen
    assert "FAIL" not in seen
    assert "Share(" not in seen  # every cell of the matrix is a verdict with a number and a bar


def test_a_failure_shows_in_the_head_the_matrix_and_the_metrics() -> None:
    seen = text_of(full(parity=sample.parity(fail=True)))
    assert "3 of 4 runtimes within the bound" in seen
    assert "Outside: openvino" in seen
    assert "left padding: maximum error outside the bound" in seen
    assert seen.count("FAIL") >= 4


def test_what_has_not_run_is_named_with_its_command() -> None:
    page = full(fusion=None, parity=None, latency=None, maps=doc.Maps(note="the source is gone"), folder="my out")
    assert faults(page) == []
    seen = text_of(page)
    for verb in ("fuse", "check", "bench"):
        assert f"attnport {verb} 'my out'" in seen
    assert "the source is gone" in seen


def test_metrics_that_there_are_not_become_dashes_and_not_zeros() -> None:
    nothing = CaseResult("no padding", "y", "FAIL", "3 elements are not finite", 9, None, 0.0, None, 0.0, None, None, 3)
    parity = ParityReport("FAIL", {"ort_cpu": RuntimeParity("FAIL", "not finite", "fp32", None, (nothing,))}, {})
    page = full(parity=parity)
    assert faults(page) == []
    cells = re.findall(r'<td class="n">([^<]*)</td>', page[page.index('id="parity-runtime-0"') :])
    assert cells[:7] == ["–", "0", "–", "0", "–", "–", "9"]
    assert "3 elements are not finite" in text_of(page)


def _folded(page: str, caption: str) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of a table."""
    part = page[page.index(f"<caption>{caption}</caption>") :]
    part = part[: part.index("</table>")]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", part)]
    plain = [[re.sub(r"<[^>]*>", "", html.unescape(cell)) for cell in cells] for cells in rows]
    return plain[0], plain[1:]


def test_every_metric_of_a_case_folds_out() -> None:
    errors: tuple[Any, ...] = (9, 1e-7, 2e-7, 1e-6, 2e-6, 3e-7, 0.99999999, 0)
    more = {"ulps": Ulps(0.5, 12.25, 505, 8874998.7), "census": NonFinite(), "argmax": Argmax(1348, 1346)}
    clean = CaseResult("no padding", "logits", "PASS", "", *errors, **more)
    padded = PaddedRows(9216, 1.2e-7, 3.4e-6, NonFinite())
    bad = PaddedRows(5, None, None, NonFinite(2, 0, 1))
    cases = (
        clean,
        dataclasses.replace(clean, case="padding", padded=padded, argmax=None),
        dataclasses.replace(clean, case="leak", padded=bad, census=NonFinite(3, 1, 0), ulps=None, nonfinite=4),
    )
    runtime = RuntimeParity("PASS", "", "fp32", None, cases)
    page = full(parity=ParityReport("PASS", {"ort_cpu": runtime}, {}))
    assert faults(page) == []
    head, rows = _folded(page, "Further metrics of ort_cpu")
    assert head == [
        *("case", "output", "ULP p50", "ULP p90", "ULP p99", "ULP max"),
        *("NaN, Inf", "argmax agrees", "padded rows"),
    ]
    assert rows[0][2:] == ["0.500", "12.2", "505", "8.87e6", "0", "1\u202f346 of 1\u202f348", "–"]
    assert rows[1][-2:] == ["–", "9\u202f216 elements, RMS 1.20e-7, max 3.40e-6"]
    assert rows[2][2:-2] == ["–", "–", "–", "–", "3 NaN, 1 Inf"]
    assert rows[2][-1] == "5 elements, 2 NaN, 1 −Inf"
    assert {len(cells) for cells in rows} == {len(head)}


def test_a_metric_that_no_case_has_is_no_column_and_a_report_without_any_has_no_table_of_them() -> None:
    old = CaseResult("no padding", "y", "PASS", "", 9, 1e-7, 2e-7, 1e-6, 2e-6, 3e-7, 1.0, 0)
    runtimes = {
        "old": RuntimeParity("PASS", "", "fp32", None, (old,)),
        "new": RuntimeParity("PASS", "", "fp32", None, (dataclasses.replace(old, census=NonFinite()), old)),
    }
    page = full(parity=ParityReport("PASS", runtimes, {}))
    head, rows = _folded(page, "Further metrics of new")
    assert head == ["case", "output", "NaN, Inf"]
    assert [cells[-1] for cells in rows] == ["0", "–"], "of the second nobody knows"
    assert "Further metrics of old" not in page
    assert "Errors of old against float64" in page


def test_a_model_without_attention_and_with_empty_reports_has_a_page() -> None:
    manifest = dataclasses.replace(sample.manifest(), attentions=(), forms={}, engines={}, versions={}, stages={})
    page = full(
        manifest=manifest,
        fusion=FusionReport({}),
        parity=ParityReport("NOT_RUN", {}, {}),
        latency=LatencyReport("torch_eager", {}, {}, {}, {}),
        maps=doc.Maps(),
        environment={},
    )
    assert faults(page) == []
    assert "0 attentions" in text_of(page)
    assert "The model has no attention to show." in text_of(page)


def test_what_this_machine_lacks_is_one_line_of_the_page_and_of_markdown() -> None:
    parity, latency = sample.parity(), sample.latency()
    runtimes = {name: row for name, row in parity.runtimes.items() if name != "tensorrt_rtx"}
    absent = dict.fromkeys(("tensorrt_rtx", "ort_cuda"), "no driver here")
    given: dict[str, Any] = {
        "parity": dataclasses.replace(parity, runtimes=runtimes, absent=absent),
        "latency": dataclasses.replace(
            latency,
            shapes={name: without(["tensorrt_rtx"], rows) for name, rows in latency.shapes.items()},
            absent=absent,
        ),
    }
    page, text = full(**given), markdown.render(document(sample.findings(**given)))
    assert faults(page) == []
    assert "2 more want a GPU or a package: tensorrt_rtx, ort_cuda" in text_of(page)
    assert "2 more want a GPU or a package: `tensorrt_rtx`, `ort_cuda`; why: `attnport doctor`" in text
    assert page.count("no driver here") == 2  # folded below that line
    assert "no driver here" not in text
    timed_alone = full(**given | {"parity": parity})
    assert "2 more" not in text_of(timed_alone)
    assert sample.NO_GPU in text_of(timed_alone)  # one report alone has a reason of its own to show


def test_every_runtime_not_run_still_gives_a_latency_table() -> None:
    rows = {name: LatencyRow(reason=f"no {name}", kind="unavailable") for name in ("torch_eager", "ort_cpu")}
    page = full(latency=LatencyReport("torch_eager", {}, {"1 sentence": rows}, {}, {}))
    assert faults(page) == []
    assert text_of(page).count("no ort_cpu") == 2


def test_names_and_reasons_are_text_wherever_they_stand() -> None:
    manifest = dataclasses.replace(
        sample.manifest(EVIL),
        source=dataclasses.replace(sample.manifest().source, text=EVIL, inputs=(EVIL,)),
        versions={EVIL: EVIL},
        attentions=tuple(dataclasses.replace(sample.manifest().attentions[0], name=name) for name in (EVIL, "b")),
        engines={EVIL: dataclasses.replace(sample.manifest().engines["tensorrt_rtx.fp16"], file=EVIL, version=EVIL)},
        forms={EVIL: dataclasses.replace(sample.manifest().forms["onnx"], file=EVIL, target=EVIL)},
    )
    items = (FusionItem(EVIL, EVIL, EVIL, EVIL, True, "", EVIL), FusionItem("b", EVIL, EVIL, None, False, EVIL))
    parity = sample.parity()
    found = dataclasses.replace(
        parity.runtimes["ort_cpu"],
        reason=EVIL,
        cases=tuple(dataclasses.replace(case, case=EVIL, reason=EVIL) for case in parity.runtimes["ort_cpu"].cases),
    )
    latency = sample.latency()
    rows = {EVIL: dataclasses.replace(latency.shapes["1 sentence"]["ort_cpu"], reason=EVIL)}
    page = full(
        manifest=manifest,
        fusion=FusionReport({EVIL: FusionTable(2, 1, items, EVIL, EVIL, EVIL)}),
        parity=ParityReport("PASS", {EVIL: found, "x": RuntimeParity("NOT_RUN", EVIL, EVIL)}, {EVIL: found}, (EVIL,)),
        latency=dataclasses.replace(latency, shapes={EVIL: rows}, settings={EVIL: EVIL}, baseline=EVIL),
        maps=doc.Maps(
            [dataclasses.replace(item, attention=EVIL + str(i)) for i, item in enumerate(sample.maps(2).heatmaps)], EVIL
        ),
        environment={EVIL: EVIL},
        folder=EVIL,
    )
    assert faults(page) == []
    assert tags(page).count("script") == 1
    assert "\u202e" not in page
    assert "\x00" not in page


def test_the_policy_allows_the_pages_own_script_and_no_other() -> None:
    page = full()
    script = re.search(r"<script>(.*?)</script>", page, flags=re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = html.unescape(policy[1])
    assert f"script-src 'sha256-{digest}'" in allowed
    assert "default-src 'none'" in allowed


@pytest.mark.parametrize("long", [90, 91])
def test_a_reason_stands_in_its_cell_when_it_is_short_and_once_below_when_it_is_not(long: int) -> None:
    items = (FusionItem(sample.ATTENTIONS[0], "MatMul", "none", None, False, "r" * long),)
    page = full(fusion=FusionReport({"onnx": FusionTable(1, 0, items, "model.onnx", "fp32", "")}))
    assert faults(page) == []
    assert page.count("r" * long) == 1
    assert ("fusion-note-1" in page) == (long > 90)


def test_of_a_long_reason_the_first_sentence_is_shown_and_the_rest_folds_out() -> None:
    first, rest = "it raised: the node of a product cannot be computed here.", "because " * 60
    rows = dict(sample.parity().runtimes) | {
        "ort_cpu": RuntimeParity("FAIL", f"{first} {rest}", "fp32"),
        "openvino": RuntimeParity("NOT_RUN", f"{first} {rest}", "fp32", kind="died"),
    }
    page = full(parity=dataclasses.replace(sample.parity(), runtimes=rows))
    assert faults(page) == []
    summaries = re.findall(r"<summary>(.*?)</summary><div>(.*?)</div>", page)
    assert [after for _, after in summaries if "because" in after] == [rest.strip()] * 3
    assert all(before.endswith(f"{first} …") for before, after in summaries if "because" in after)


def test_evidence_is_cut_in_the_page_and_says_so() -> None:
    items = (FusionItem(sample.ATTENTIONS[0], "Attention", "none", "Attention", True, "", "e" * 9000),)
    page = full(fusion=FusionReport({"ort_cpu": FusionTable(1, 1, items, "model.onnx", "fp32", "ort_cpu")}))
    assert "3000 more characters in fusion.json" in page
    assert "e" * 6001 not in page


def test_an_attention_that_a_table_misses_shows() -> None:
    seen = text_of(full(fusion=FusionReport({"ort_cpu": FusionTable(6, 0, (), "m", "fp32", "ort_cpu")})))
    assert seen.count("not in this form") == 1  # in one row, of the six


def test_the_reader_of_these_tests_finds_faults() -> None:
    assert faults("<p><b></p></b>") != []
    assert faults("<p>") == ["<p> is never closed"]
    assert faults('<i id="a"></i><i id="a"></i>') == ["id 'a' is not unique"]
    assert faults('<a href="#b"></a>') == ["nothing has the id 'b'"]
    assert faults('<img alt="" src="https://example.org/x.png">') != []
    assert faults('<img src="data:,">') == ["<img> without alt"]
    assert faults('<p onclick="x()"></p>') != []


def test_a_target_that_nobody_could_prove_is_told_from_one_that_is_not_fused() -> None:
    looked = FusionItem(sample.ATTENTIONS[0], "MatMul", "none", None, False, "openvino runs it as several kernels")
    unseen = FusionItem(sample.ATTENTIONS[0], "MatMul", "none", None, False, "not proven: tensorrt is not installed.")
    report = FusionReport(
        {
            "onnx_18": FusionTable(1, 0, (looked,), "m", "fp32", "openvino"),
            "tensorrt": FusionTable(1, 0, (unseen,), "m", "fp16", None),
        }
    )
    seen = text_of(full(fusion=report))
    assert "not fused openvino runs it as several kernels" in seen
    assert "not proven not proven: tensorrt is not installed." in seen
    assert seen.count("0/1") == 1
    assert "not proven here" in seen


def test_an_attention_whose_mask_depends_on_the_target_names_them() -> None:
    tables = {
        target: FusionTable(
            1, 1, (FusionItem(sample.ATTENTIONS[0], "f", mask, "k", True, "", "e"),), "m", "fp32", target
        )
        for target, mask in (("ort_cpu", "padding(x)"), ("openvino", "none"))
    }
    seen = text_of(full(fusion=FusionReport(tables)))
    assert "padding(x) (ort_cpu)" in seen
    assert "none (openvino)" in seen
