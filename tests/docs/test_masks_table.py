"""The tables of docs/masks.md: nothing is left out of them, nothing fails, and they are what is so."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import pytest
from scripts import ROOT, load

from attnport.artifacts import CaseResult, FusionItem, FusionTable, ParityReport, RuntimeParity, Verdict

PAGE = ROOT / "docs" / "masks.md"
Rows = dict[tuple[str, str], list[str]]

make = load("docs/make_masks.py")
MEASURED = [
    (attention, kind)
    for number, (attention, kind) in enumerate(itertools.product(make.ATTENTIONS, make.KINDS))
    if (attention, kind) not in make.MEANINGLESS and number % 5 in (0, 3)
]
"""The rows that are made anew, as all take minutes: kinds and attentions in turn."""
EVERY = list(itertools.product(make.ATTENTIONS.values(), make.KINDS.values()))


def tables(page: str) -> str:
    return page.partition(make.START)[2].partition(make.END)[0]


def rows(text: str) -> Rows:
    """The cells behind the name of each row, by the table's title and the row's name."""
    found: Rows = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("### "):
            title = line[4:]
        elif line.startswith("| ") and not line.startswith("| mask |"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            assert (title, name) not in found, f"{title}, {name} is there twice"
            found[title, name] = cells
    return found


def problems(text: str) -> list[str]:
    """What is wrong with the tables: rows that are missing, cells that fail, numbers that nothing explains."""
    found = rows(text)
    wrong = [f"{title}, {name} is missing" for title, name in EVERY if (title, name) not in found]
    explained = set(re.findall(r"^(\d+)\. \S", text, re.MULTILINE))
    for (title, name), (read_as, *cells) in found.items():
        if len(cells) != len(make.RUNTIMES):
            wrong.append(f"{title}, {name}: {len(cells)} runtimes")
        wrong += [f"{title}, {name}: {cell}" for cell in cells if "FAIL" in cell or "NOT_RUN" in cell]
        for number in re.findall(r"\((\d+)\)", " ".join([read_as, *cells])):
            if number not in explained:
                wrong.append(f"{title}, {name}: ({number}) is not explained")
        wrong += [
            f"{title}, {name}: {share}" for share in re.findall(r"\d+\.\d\d", " ".join(cells)) if float(share) > 1
        ]
    return wrong


def without_figures(found: Rows) -> Rows:
    """What does not depend on the machine: what a mask is read as, and which kernel covers it."""
    return {key: [re.sub(r"\d+\.\d\d$|\(\d+\)", "", cell).strip() for cell in cells] for key, cells in found.items()}


def measured(attention: str, kind: str) -> tuple[Rows, Rows]:
    """The row as it is made now, and as the page has it."""
    made = rows(make.written(make.measure(attention, kind), [attention], [kind]))
    page = rows(tables(PAGE.read_text()))
    return without_figures(made), without_figures({key: page[key] for key in made})


def test_the_page_has_every_mask_on_every_attention_and_none_fails() -> None:
    assert problems(tables(PAGE.read_text())) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("attention", "kind"), MEASURED)
def test_a_row_is_what_the_page_says(attention: str, kind: str) -> None:
    for needed in ("onnxruntime", "openvino", "tensorrt_rtx"):
        pytest.importorskip(needed)
    made, page = measured(attention, kind)
    assert made == page


def cell(**changed: Any) -> Any:
    known = {
        "runtime": "ort_cpu",
        "mask": "causal",
        "kernel": "Attention",
        "reason": "",
        "verdict": "PASS",
        "share": 0.3,
    }
    return make.Cell("self", "causal", **{**known, **changed})


def full(**changed: Any) -> str:
    """Tables of cells that are all alike, but one in `changed` ways."""
    cells = [
        dataclasses.replace(cell(), attention=attention, kind=kind, runtime=runtime)
        for attention, kind, runtime in itertools.product(make.ATTENTIONS, make.KINDS, make.RUNTIMES)
    ]
    at = next(
        at for at, one in enumerate(cells) if (one.attention, one.kind, one.runtime) == ("self", "causal", "ort_cpu")
    )
    cells[at] = dataclasses.replace(cells[at], **changed)
    return str(make.written(cells))


def test_whole_tables_have_no_problem_and_give_the_kinds_that_make_no_sense_a_reason() -> None:
    assert problems(full()) == []
    assert rows(full())["Cross-attention", "documents"][0] == "(2)"
    assert "2. Not made: the queries' documents" in full()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"verdict": "FAIL", "reason": "RMS error"}, "Self-attention, causal: **FAIL** (1)"),
        ({"verdict": "NOT_RUN", "reason": "no openvino"}, "Self-attention, causal: **NOT_RUN** (1)"),
        ({"share": 1.25}, "Self-attention, causal: 1.25"),
    ],
)
def test_what_fails_is_seen(changed: dict[str, Any], words: str) -> None:
    assert words in problems(full(**changed))


def test_missing_rows_and_reasons_are_seen() -> None:
    text = full(kernel=None, reason="a kernel is missing")
    assert problems(text) == []
    assert rows(text)["Self-attention", "causal"][1] == "not fused (1) 0.30"
    assert "Self-attention, causal: (1) is not explained" in problems(text.replace("1. a kernel is missing", ""))
    assert "Self-attention, prefix is missing" in problems(text.replace("| prefix |", "| suffix |", 1))


def results(verdict: Verdict, rms: float, largest: float) -> RuntimeParity:
    case = CaseResult("primes", "y", verdict, "", 9, rms, 1.0, largest, 2.0, None, None, 0)
    return RuntimeParity(verdict, "it is off" if verdict == "FAIL" else "fine", "fp32", None, (case,))


def seen(runtime: str, **forms: RuntimeParity) -> Any:
    item = FusionItem("attention", "form", "causal", "Attention", True, "")
    every = {name: FusionTable(1, 1, (item,), "m.onnx", "fp32", "ort_cpu") for name in make.RUNTIMES.values()}
    parity = ParityReport(
        "PASS", {"ort_cpu": results("PASS", 0.2, 1.0), "onnx_reference": results("PASS", 0.1, 0.1)}, forms
    )
    return make.cell("self", "causal", runtime, every, parity)


def test_a_cell_has_the_larger_share_of_the_runtime_and_fails_with_its_forms_graph() -> None:
    assert seen("ort_cpu", ort_cpu=results("PASS", 0.9, 0.1)) == cell(share=0.5)
    assert seen("reference", onnx=results("PASS", 0.9, 0.1)) == cell(runtime="reference", kernel=None, share=0.1)
    failed = seen("ort_cpu", ort_cpu=results("FAIL", 0.9, 0.1))
    assert (failed.verdict, failed.reason) == ("FAIL", "it is off")
    half = seen("tensorrt_rtx", **{"tensorrt_rtx.fp16": results("PASS", 0.4, 0.1), "onnx": results("FAIL", 2.0, 9.0)})
    assert (half.verdict, half.share) == ("PASS", 0.4)


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"before\n{make.START}\nold\n{make.END}\nafter\n"
    assert make.place(page, "new", "here") == f"before\n{make.START}\nnew\n\nhere\n{make.END}\nafter\n"
    with pytest.raises(SystemExit, match="has no"):
        make.place("no markers", "new", "here")


def test_the_example_declares_an_input_for_every_mask_that_takes_one() -> None:
    examples = load("examples/masked_attention.py")
    assert set(examples.MASKS) == set(make.KINDS)
    assert set(examples.ATTENTIONS) == set(make.ATTENTIONS)
    assert examples.declarations("cached", "explicit")[-1] == "mask=bool[batch,1,seq,past]:explicit"
    assert examples.declarations("cross", "padding_lengths")[-1] == "mask=int64[batch]:padding:keys=mem"
    assert [text.partition("=")[0] for text in examples.declarations("self", "causal")] == ["x"]
    with pytest.raises(AttributeError):
        _ = examples.self_random
