"""A check is brief unless asked to be thorough: fewer sentences, fewer items alone, every case of the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.artifacts import ParityReport
from attnport.cases.choosing import few_batches
from attnport.cases.inputs import cases
from attnport.folder.workspace import open_folder
from attnport.parity import evaluate
from attnport.verbs.check import FEW_BATCHES, check

BATCHES = 7


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(" ".join(["cat"] * (1 + batch)) for batch in range(BATCHES) for _ in range(8)))
    return path


def tried(report: ParityReport, runtime: str) -> tuple[set[str], set[str]]:
    """The cases of the contract that a runtime ran, and the batches of sentences."""
    names = {result.case for result in report.runtimes[runtime].cases}
    sentences = {name for name in names if name.startswith("sentences")}
    return names - sentences, sentences


def test_few_batches_are_spread_from_the_shortest_to_the_longest(tiny_artifact: Path, text: Path) -> None:
    from attnport.cases.choosing import text_cases

    io = open_folder(tiny_artifact).io
    sentences = text_cases(io, text.read_text().splitlines(), tiny_artifact / "tokenizer.json", batch=8)
    every = [*cases(io), *sentences]
    kept = few_batches(every, 4)
    assert [case.name for case in kept if case.group != "text"] == [case.name for case in cases(io)]
    assert [case.feeds["input_ids"].shape[1] for case in kept if case.group == "text"] == [1, 3, 5, 7]
    assert len([case for case in few_batches(every, 1) if case.group == "text"]) == 1
    assert [case.name for case in few_batches(every, BATCHES)] == [case.name for case in every]


def test_a_brief_check_leaves_out_sentences_and_items_and_says_so(
    tiny_artifact: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = evaluate.measure_items
    monkeypatch.setattr(evaluate, "measure_items", lambda *args: asked.append(args[-1]) or real(*args))
    brief = check(tiny_artifact, ["ort_cpu"], text=text)
    contract, sentences = tried(brief, "ort_cpu")
    assert contract == {case.name for case in cases(open_folder(tiny_artifact).io)}
    assert len(sentences) == FEW_BATCHES
    assert f"batches of sentences left out: {BATCHES - FEW_BATCHES}; --thorough runs all" in brief.notes
    assert sum(asked) <= 2 * 2 * 8  # runtime and eager, eight items each over four batches

    asked.clear()
    thorough = check(tiny_artifact, ["ort_cpu"], text=text, thorough=True)
    contract_too, every = tried(thorough, "ort_cpu")
    assert contract_too == contract
    assert len(every) == BATCHES
    assert not any("left out" in note for note in thorough.notes)
    assert min(asked) >= 8


def test_what_a_thorough_check_found_answers_a_brief_one(
    tiny_artifact: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiny_artifact, ["ort_cpu"], text=text)
    thorough = check(tiny_artifact, ["ort_cpu"], text=text, thorough=True)
    ran: list[str] = []
    real = evaluate.measure_session
    monkeypatch.setattr("attnport.parity.comparing.measure_session", lambda *a, **k: ran.append("") or real(*a, **k))
    assert check(tiny_artifact, ["ort_cpu"], text=text) == thorough
    assert ran == []
    more = check(tiny_artifact, ["onnx_reference"], text=text)
    assert ran
    assert more.runtimes["ort_cpu"] == thorough.runtimes["ort_cpu"]
