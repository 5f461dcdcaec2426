"""The Markdown report: the facts of the page, tables that hold together whatever is in their cells."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import page_sample as sample
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from attnport.artifacts import (
    Argmax,
    CaseResult,
    FusionItem,
    FusionReport,
    FusionTable,
    ParityReport,
    RuntimeParity,
    Ulps,
    Verdict,
)
from attnport.reporting.markdown import block, code, escaped
from attnport.reporting.markdown import render as rendered
from attnport.reporting.report import document

EVIL = "a|b <img src=x onerror=alert(1)> **bold** [x](http://y.z) `c` # h\n| - | &amp; \u202e $x$ ~~s~~ www.e.com \\"


def render(**changes: Any) -> str:
    return rendered(document(sample.findings(**changes)))


def _full(**changes: Any) -> str:
    return render(latency=sample.grid_latency(), **changes)


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text)


def _flat(text: str) -> list[Token]:
    return [part for token in _tokens(text) for part in (token, *(token.children or ()))]


def _tables(text: str) -> list[list[list[str]]]:
    """Rows of cells of each table, as a reader of GitHub sees them."""
    tables: list[list[list[str]]] = []
    for token, following in zip(_tokens(text), [*_tokens(text)[1:], None], strict=True):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("td_open", "th_open") and following is not None:
            words = [part.content for part in following.children or () if part.type in ("text", "code_inline")]
            tables[-1][-1].append("".join(words))
    return tables


def test_every_section_of_the_page_is_there_and_every_table_is_one() -> None:
    text = _full()
    titles = re.findall(r"^## (.*)$", text, flags=re.M)
    assert titles == [
        "Recommendation",
        "Fusion",
        "Parity",
        "Error by layer",
        "Latency",
        "Environment",
        "Run again, embed",
    ]
    tables = _tables(text)
    assert len(tables) == len(re.findall(r"^\| :?--", text, flags=re.M))
    for rows in tables:
        assert len({len(cells) for cells in rows}) == 1


def test_the_facts_are_those_of_the_page() -> None:
    text = _full()
    assert "Parity: **PASS**; 4 of 4 runtimes within the bound" in text
    assert "**`openvino`, fp32, form `openvino` (`model.openvino.onnx`)**" in text
    assert "attnport bundle out/minilm -o app/ --form openvino --lang python" in text
    (head, fused) = next(rows for rows in _tables(text) if rows[0][0] == "attention")
    assert head[3] == "openvino; 6 of 6 fused; Attention, bool mask; fp32, proved by openvino"
    assert fused[0] == f"6: {sample.ATTENTIONS[0]} to {sample.ATTENTIONS[-1]}"
    assert [fused[3], fused[5]] == ["fused in ScaledDotProductAttention", "not fused note 1"]
    assert "1. opset 18 has no Attention operator" in text
    layers = next(rows for rows in _tables(text) if rows[0][0] == "Layer")
    assert layers[0][1:] == ["torch_eager", "ort_cpu", "openvino", "bound"]
    assert layers[1] == ["model.embeddings", "2.00e-7", "2.20e-7", "2.60e-7", "4.40e-7"]
    seqs = [rows for rows in _tables(text) if rows[0][0] == "seq"]
    assert [row[0] for row in seqs[0]] == ["seq", "32", "64", "128"]


def test_a_failure_is_told_with_its_reason_and_its_layer() -> None:
    text = _full(
        parity=sample.parity(fail=True),
        layers=sample.layers(fail=True),
        recommendation=sample.recommendation(fail=True),
    )
    assert "Parity: **FAIL**" in text
    assert "- `openvino`: left padding: maximum error outside the bound" in text
    assert "`openvino` leaves its bound at `model.encoder.layer.3`" in text
    assert "**`ort_cpu`, fp32" in text


def test_the_worst_of_each_metric_stands_by_runtime_and_what_none_has_is_no_column() -> None:
    one = CaseResult("a", "logits", "PASS", "", 9, 1e-7, 2e-7, 1e-6, 2e-6, 3e-7, 0.9, 0, Ulps(1, 2, 3, 900_000))
    other = dataclasses.replace(one, case="b", relative=5e-7, cosine=0.8, ulps=Ulps(4, 1, 1, 1), nonfinite=3)
    lost = dataclasses.replace(one, case="c", relative=None, cosine=None, ulps=None)
    plain = RuntimeParity("PASS", "", "fp32", None, (one, other, lost))
    parity = ParityReport("PASS", {"a": plain, "x": RuntimeParity("NOT_RUN", "gone", "fp32")}, {"onnx": plain})
    found = next(rows for rows in _tables(_full(parity=parity)) if "ULP p50" in rows[0])
    head = ["runtime", "max error", "relative", "ULP p50", "p99", "1-cos", "NaN, Inf"]
    assert found == [head, ["a", "1.00e-6", "5.00e-7", "4.00", "3.00", "2e-01", "3"]]

    rows = (dataclasses.replace(one, argmax=Argmax(100, 98)), dataclasses.replace(one, argmax=Argmax(50, 50)))
    parity = ParityReport("PASS", {"a": dataclasses.replace(plain, cases=rows), "b": plain}, {})
    found = next(rows for rows in _tables(_full(parity=parity)) if "ULP p50" in rows[0])
    assert [cells[-2] for cells in found] == ["argmax", "98.7%", "–"]


def test_starts_from_a_cache_and_parts_on_a_device_are_columns_where_a_row_has_them_and_none_elsewhere() -> None:
    text = render(latency=sample.device_latency())
    cold = next(rows for rows in _tables(text) if "load ms" in rows[0])
    assert cold[0][2:6] == ["load ms", "load cached ms", "first call cached ms", "p90 ms"]
    openvino, eager = (next(cells for cells in cold if cells[1] == name) for name in ("openvino", "torch_eager"))
    assert openvino[2:5] == ["900", "4.40", "5.50"]
    assert eager[2:5] == ["–"] * 3
    parts = next(rows for rows in _tables(text) if "to device ms" in rows[0])
    assert parts[0] == ["workload", "runtime", "to device ms", "on device ms", "from device ms", "ratio on device"]
    assert ["1 sentence", "openvino", "0.0110", "1.23", "0.0330", "0.211 [0.201, 0.222]"] in parts
    assert len(parts) == 1 + 2 * len(sample.device_latency().shapes)
    plain = _full()
    assert "to device" not in plain
    assert "cached" not in plain


def test_a_row_says_what_ran_and_what_to_know_of_its_figures_or_why_there_are_none() -> None:
    report = sample.latency()
    rows = report.shapes["1 sentence"]
    shapes = {"1 sentence": {**rows, "ort_cpu": dataclasses.replace(rows["ort_cpu"], reason="not settled")}}
    text = render(latency=dataclasses.replace(report, shapes=shapes))
    timed = next(cells for cells in _tables(text) if "median ms" in cells[0])
    said = {cells[1]: (cells[2], cells[-1]) for cells in timed}
    assert said["ort_cpu"] == ("faster; not settled", "CPUExecutionProvider, cpu, fp32")
    assert said["openvino"] == ("faster", "openvino, cpu, fp32")
    assert said["tensorrt_rtx"] == ("NOT_RUN", sample.NO_GPU)


def test_what_a_peak_of_memory_is_stands_below_it() -> None:
    assert "Peak memory is the most until the end of a workload, loading included" in _full()


def _fastest(text: str) -> list[str]:
    return re.findall(r"^  - (.*, .* ms: .*)$", text, flags=re.M)


@pytest.mark.parametrize("verdict", ["FAIL", "NOT_RUN", None])
def test_only_a_runtime_that_passed_parity_is_called_the_fastest(verdict: Verdict | None) -> None:
    parity = sample.parity()
    runtimes = {key: found for key, found in parity.runtimes.items() if key != "openvino"}
    if verdict:
        runtimes["openvino"] = dataclasses.replace(parity.runtimes["openvino"], verdict=verdict)
    text = _full(parity=dataclasses.replace(parity, runtimes=runtimes))
    assert len(_fastest(text)) == 4
    assert f"{len(sample.grid_latency().shapes) - 4} more workloads" in text
    assert all("`ort_cpu`" in line for line in _fastest(text))
    assert "numbers not checked" not in text
    (line,) = re.findall(r"Not counted.*`openvino`.*$", text, flags=re.M)
    assert {"FAIL": "failed", "NOT_RUN": "was not run", None: "was not checked"}[verdict] in line


def test_what_was_never_checked_is_called_fastest_with_that_said() -> None:
    text = _full(parity=None)
    assert _fastest(text)
    assert all("`openvino`" in line for line in _fastest(text))
    assert "numbers not checked" in text


def test_what_has_not_run_is_named_with_its_command() -> None:
    text = render(fusion=None, parity=None, latency=None, layers=None, recommendation=None, folder="my out")
    for command in ("fuse 'my out'", "check 'my out'", "check 'my out' --bisect", "bench 'my out'"):
        assert f"Not run yet: `attnport {command}`" in text


def test_names_reasons_and_evidence_are_text_wherever_they_stand() -> None:
    manifest = dataclasses.replace(
        sample.manifest(EVIL), source=dataclasses.replace(sample.manifest().source, text=EVIL), versions={EVIL: EVIL}
    )
    items = (FusionItem(EVIL, EVIL, EVIL, EVIL, True, "", EVIL, EVIL), FusionItem("b", EVIL, EVIL, None, False, EVIL))
    parity = sample.parity()
    cases = tuple(dataclasses.replace(case, case=EVIL) for case in parity.runtimes["ort_cpu"].cases)
    found = dataclasses.replace(parity.runtimes["ort_cpu"], reason=EVIL, cases=cases, verdict="FAIL")
    latency = sample.latency()
    rows = {EVIL: dataclasses.replace(latency.shapes["1 sentence"]["ort_cpu"], reason=EVIL)}
    layers = dataclasses.replace(sample.layers(), case=EVIL, runtimes={EVIL: sample.layers().runtimes["ort_cpu"]})
    advice = dataclasses.replace(sample.recommendation(), notes=(EVIL,), ties=(EVIL,), others={EVIL: EVIL})
    text = render(
        manifest=manifest,
        fusion=FusionReport({EVIL: FusionTable(2, 1, items, EVIL, EVIL, EVIL)}),
        parity=ParityReport("FAIL", {EVIL: found, "x": RuntimeParity("NOT_RUN", EVIL, EVIL)}, {EVIL: found}, (EVIL,)),
        latency=dataclasses.replace(latency, shapes={EVIL: rows}, baseline=EVIL, notes=(EVIL,)),
        layers=layers,
        recommendation=advice,
        environment={EVIL: EVIL},
        folder=EVIL,
    )
    kinds = {token.type for token in _flat(text)}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open", "s_open"}
    assert len([token for token in _flat(text) if token.type == "heading_open"]) == 8
    bold = [token for token in _flat(text) if token.type == "strong_open"]
    assert len(bold) == 2, "the verdict's and the recommendation's own"
    assert "\u202e" not in text
    for rows in _tables(text):
        assert len({len(cells) for cells in rows}) == 1
    fused = next(rows for rows in _tables(text) if rows[0][0] == "attention")
    assert fused[0][2].startswith("a|b <img")


@pytest.mark.parametrize(
    "text", ["- x", "+ x", "# x", "1. x", "12) x", "= x", "a_b_c", "_x_", "<b>", "a | b", "x\ny", "&lt;", EVIL]
)
def test_escaped_text_is_read_as_it_was(text: str) -> None:
    (paragraph, inline, _) = _tokens(escaped(text))
    assert paragraph.type == "paragraph_open"
    words = "".join(part.content for part in inline.children or ())
    assert words == " ".join(text.replace("\u202e", "\ufffd").split())


def test_names_that_code_could_not_hold_are_text_and_no_fence_is_broken_out_of() -> None:
    assert code("ort_cpu") == "`ort_cpu`"
    assert code("a|b") == "a\\|b"
    assert code("a`b") == "a\\`b"
    (fence,) = _tokens(block(["echo ```", "rm"]))
    assert fence.content == "echo ```\nrm\n"
