"""docs/coverage.md: every model is in it, computes right, and fuses as the page says: a change is noticed."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from scripts import ROOT, load

from attnport.artifacts import CaseResult, ParityReport, RuntimeParity, Verdict
from attnport.models import base

PAGE = ROOT / "docs" / "coverage.md"
make = load("docs/make_coverage.py")

# What one kernel does not cover, by model and column ("" is all of them), and how much is covered. It only shrinks.
NOT_WHOLE = {
    ("additive_attention", ""): "0/1",  # no product of q and k
    ("luong_attention", ""): "2/3",  # one of its three multiplies the probabilities by a Gaussian window
}
MEASURED = sorted({*base.names()[::4], *(model for model, _ in NOT_WHOLE), "linear_attention", "state_space_layer"})
"""Those that are made anew, as all take minutes: some of the usual ones, and each that is unlike the others."""
NO_SOFTMAX = {"linear_attention", "performer_attention", "state_space_layer"}


def rows(text: str) -> dict[str, dict[str, str]]:
    """The cells of each model by column."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line] for line in lines]
    return {cells[0].strip("`"): dict(zip(head[1:], cells[1:], strict=True)) for cells in body}


def problems(text: str) -> list[str]:
    """Where the table says something else than what is pinned above."""
    found, explained = rows(text), set(re.findall(r"^(\d+)\. \S", text, re.MULTILINE))
    wrong = [f"{name} is missing" for name in base.names() if name not in found]
    for model, cells in found.items():
        share = re.fullmatch(r"(\d\.\d\d) of (\d+) cases", cells["parity"])
        few = model in base.names() and len(base.get(model).io.dims) == 1  # no other length than the batch
        if not share or float(share[1]) > 1 or int(share[2]) < (4 if few else 5):
            wrong.append(f"{model}: parity {cells['parity']}")
        wrong += [
            f"{model}: ({number}) is not explained"
            for number in re.findall(r"\((\d+)", " ".join(cells.values()))
            if number not in explained
        ]
        for column in make.COLUMNS:
            if (cell := cells.get(column, "")) and not as_pinned(model, column, cell):
                wrong.append(f"{model}, {column}: {cell}")
    return wrong


def as_pinned(model: str, column: str, cell: str) -> bool:
    if "FAIL" in cell:
        return False
    if model in NO_SOFTMAX:
        return cell == "no softmax"
    counts = cell.partition(" ")[0]
    partly = NOT_WHOLE.get((model, column)) or NOT_WHOLE.get((model, ""))
    if partly:
        return counts == partly and "(" in cell
    fused, _, counted = counts.partition("/")
    return fused == counted and "`" in cell


def fused_as(text: str) -> dict[str, dict[str, str]]:
    """The cells without what depends on the machine or on what else is in the table."""
    return {
        model: {column: re.sub(r" \([\d, ]+\)", "", cell) for column, cell in cells.items() if column != "parity"}
        for model, cells in rows(text).items()
    }


def table(page: str) -> str:
    return page.partition("<!-- table -->")[2].partition("<!-- /table -->")[0]


def measured(model: str) -> str:
    for needed in ("onnxruntime", "openvino", "tensorrt_rtx"):
        pytest.importorskip(needed)
    return str(make.written([make.measure(model)]))


def test_the_page_has_every_model_whole_or_pinned() -> None:
    assert problems(table(PAGE.read_text("utf-8"))) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MEASURED)
def test_a_model_is_what_the_page_says(model: str) -> None:
    found = measured(model)
    assert [line for line in problems(found) if "missing" not in line] == []
    assert fused_as(found).items() <= fused_as(table(PAGE.read_text("utf-8"))).items()


def cells(**changed: Any) -> Any:
    known = {"attentions": 2, "fused": 2, "kernels": ("Attention",), "reasons": ()}
    return tuple(make.Cell(column, **{**known, **changed}) for column in make.COLUMNS)


def row(**changed: Any) -> Any:
    known = {"model": "t5", "parity": "PASS", "reason": "", "cases": 8, "share": 0.5, "cells": cells()}
    return make.Row(**{**known, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"parity": "FAIL", "reason": "openvino: off"}, "t5: parity **FAIL** (1)"),
        ({"share": 1.2}, "t5: parity 1.20 of 8 cases"),
        ({"cases": 4}, "t5: parity 0.50 of 4 cases"),
        ({"cells": cells(wrong="off")}, "t5, tensorrt_rtx bf16: 2/2 `Attention`, parity **FAIL** (1)"),
        ({"cells": cells(fused=1, reasons=("why",))}, "t5, ort_cpu: 1/2 `Attention` (1)"),
        ({"cells": cells(attentions=0, fused=0, kernels=())}, "t5, openvino: no softmax"),
        (
            {"model": "linformer_attention", "cells": cells(fused=0, reasons=("a",))},
            "linformer_attention, onnx_18: 0/2",
        ),
        ({"model": "luong_attention", "cells": cells()}, "luong_attention, onnx_18: 2/2 `Attention`"),
    ],
)
def test_what_is_not_as_pinned_is_seen(changed: dict[str, Any], words: str) -> None:
    assert any(line.startswith(words) for line in problems(make.written([row(**changed)])))
    assert [line for line in problems(make.written([row()])) if "t5" in line] == []


def test_a_reason_that_is_missing_is_seen() -> None:
    text = make.written([row(model="additive_attention", cells=cells(attentions=1, fused=0, reasons=("why",)))])
    assert [line for line in problems(text) if "additive" in line] == []
    assert "additive_attention: (1) is not explained" in problems(text.replace("1. why", ""))


def results(verdict: Verdict, rms: float) -> RuntimeParity:
    case = CaseResult("primes", "y", verdict, "", 9, rms, 1.0, 0.1, 2.0, None, None, 0)
    return RuntimeParity(verdict, "it is off" if verdict == "FAIL" else "fine", "fp32", None, (case,))


def test_a_form_in_half_precision_that_fails_is_in_its_own_cell() -> None:
    wrong = dataclasses.replace(results("FAIL", 3.0), plan="bf16")
    made = make.judged(
        "t5", ParityReport("FAIL", {"ort_cpu": results("PASS", 0.2)}, {"tensorrt_rtx.bf16": wrong}), cells()
    )
    assert (made.parity, made.share) == ("PASS", 0.2)
    assert {cell.column: cell.wrong for cell in made.cells if cell.wrong} == {"tensorrt_rtx bf16": "it is off"}


def test_a_models_parity_is_the_worst_of_all_runtimes_and_forms() -> None:
    good = ParityReport("PASS", {"ort_cpu": results("PASS", 0.2)}, {"onnx_18": results("PASS", 0.7)})
    assert make.judged("t5", good, cells()) == row(cases=1, share=0.7)
    bad = ParityReport("FAIL", good.runtimes, {"onnx_18": results("FAIL", 3.0)})
    assert make.judged("t5", bad, cells()) == row(parity="FAIL", reason="onnx_18: it is off", cases=1, share=3.0)
