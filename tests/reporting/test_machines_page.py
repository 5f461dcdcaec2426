"""Machines side by side: a row for each in the terminal and on the page, with what failed in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from wellformed import faults

from attnport.artifacts import Candidate, CaseResult, LatencyReport, LatencyRow, ParityReport, RuntimeParity, TuneReport
from attnport.console.terminal import shown as as_text
from attnport.machines import MachineResult, MachinesReport
from attnport.reporting import html
from attnport.reporting.machines import document


def parity(verdict: str, share: float, *names: str) -> ParityReport:
    case = CaseResult("full", "y", verdict, "", 1, share, 1.0, share, 1.0, 0.0, 1.0, 0)  # type: ignore[arg-type]
    row = RuntimeParity(verdict, "", "fp32", cases=(case,))  # type: ignore[arg-type]
    absent = RuntimeParity("NOT_RUN", "it is not installed", "fp32", absent=True)
    return ParityReport(verdict, {"tensorrt": absent, **dict.fromkeys(names, row)}, {})  # type: ignore[arg-type]


def latency(**ms: float) -> LatencyReport:
    rows = {name: LatencyRow("faster", "", median_ns=value * 1e6) for name, value in ms.items()}
    return LatencyReport("torch_eager", {}, {"batch=1,seq=8": rows}, {}, {})


def tuned(form: str) -> TuneReport:
    one = Candidate(form, form, "fp32", 2, "chosen", "", drop=0.001, ms={"batch=1,seq=8": 1.25})
    return TuneReport("answers", 0.005, (one,), {})


def report(verb: str, *found: object) -> MachinesReport:
    results = tuple(
        MachineResult(f"machine{at}", "out", f"Processor {at}", 2, 0, "", each)  # type: ignore[arg-type]
        for at, each in enumerate(found)
    )
    failed = MachineResult("<lost>", "out", "", 0, 3, "the node died: a & b", None)
    return MachinesReport(verb, 3, (*results, failed))


def lines(shown: MachinesReport) -> dict[str, str]:
    """The first line of the terminal that begins with each machine's name."""
    told = as_text(shown).splitlines()
    names = ("machine0", "machine1", "<lost>")
    return {name: next(line for line in told if line.strip().startswith(name)) for name in names}


def test_verdicts_and_the_largest_part_of_a_bound_are_side_by_side() -> None:
    shown = lines(report("check", parity("PASS", 0.25, "ort_cpu", "openvino"), parity("FAIL", 2.5, "ort_cpu")))
    assert re.search(r"PASS +0\.25 +0\.25$", shown["machine0"])
    assert re.search(r"FAIL +FAIL 2\.50 +-$", shown["machine1"])
    assert shown["<lost>"].endswith("exit 3")


def test_medians_are_side_by_side() -> None:
    shown = lines(report("bench", latency(ort_cpu=1.5, openvino=3), latency(ort_cpu=4)))
    assert shown["machine0"].split() == ["machine0", "1.50", "3.00"]
    assert shown["machine1"].split() == ["machine1", "4.00", "-"]
    assert shown["<lost>"].split()[1:] == ["exit", "3"]


def test_what_is_chosen_is_side_by_side() -> None:
    shown = lines(report("tune", tuned("ort_cpu"), replace(tuned("openvino"), candidates=())))
    assert shown["machine0"].split() == ["machine0", "ort_cpu", "2", "1.25", "-0.10%"]
    assert shown["machine1"].split() == ["machine1", "nothing"]


@pytest.mark.parametrize("verb", ["check", "bench", "tune"])
def test_where_nothing_ran_that_is_all_there_is_to_say(verb: str) -> None:
    text = as_text(report(verb))
    assert re.search(r"<lost> +exit 3", text)


def test_several_artifacts_have_a_row_each_on_each_machine() -> None:
    first = report("bench", latency(ort_cpu=1)).results[0]
    both = MachinesReport("bench", 0, (first, replace(first, folder="other")))
    text = as_text(both)
    assert "machine0, out" in text
    assert "machine0, other" in text


def test_the_page_has_every_machine_and_why_one_failed() -> None:
    made = html.page(document(report("bench", latency(ort_cpu=1.5), latency(ort_cpu=4))))
    assert made.startswith("<!doctype html>")
    for words in ("machine0", "machine1", "Processor 1", "exit 3", "the node died: a &amp; b", "&lt;lost&gt;"):
        assert words in made
    assert "<lost>" not in made


def test_the_page_is_well_formed() -> None:
    assert faults(html.page(document(report("check", parity("PASS", 0.25, "ort_cpu"))))) == []
