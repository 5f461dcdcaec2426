"""What `check` writes for CI systems: JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result
from refusing import call, refused

from attnport.artifacts import CaseResult, InvarianceResult, ParityReport, Ran, RuntimeParity, Verdict
from attnport.parities import OPPOSITE, Bisected, Finding
from attnport.reporting.ci import by_case, junit, workflow_commands
from attnport.reporting.layers import annotated

HOSTILE = "a\x00b\x1b[31m\ud800 <&>\"' ::error::x, 50%\r\n::stop-commands::y"


def case(name: str, output: str = "out", verdict: Verdict = "PASS", error: float | None = 1.0) -> CaseResult:
    reason = "" if verdict == "PASS" else "max error 6.30e-01 is over its bound 2.00e-01"
    errors = {"rms_error": error, "rms_bound": 2.0, "max_error": error, "max_bound": 2.0}
    return CaseResult(name, output, verdict, reason, 8, relative=None, cosine=None, nonfinite=0, **errors)


def pair(verdict: Verdict, difference: float | None) -> InvarianceResult:
    return InvarianceResult("alone against in a batch", "out", verdict, difference, 2.0, difference, 2.0)


RAN = Ran("CPU", "CPUExecutionProvider", "fp32")
FAILING = ParityReport(
    "FAIL",
    {
        "bad": RuntimeParity(
            "FAIL",
            "2 of 3 results fail",
            "fp32",
            RAN,
            (case("short"), case("long", "a", "FAIL", 6.3), case("long", "b"), case("zeros", verdict="NOT_RUN")),
            (pair("FAIL", 5.0),),
        ),
        "good": RuntimeParity("PASS", "1 result", "fp32", RAN, (case("short"),), (pair("PASS", 1.0),)),
        "crashed": RuntimeParity("NOT_RUN", "its process died of SIGSEGV", "fp32"),
    },
    {"onnx": RuntimeParity("FAIL", "no case was compared", "fp32", RAN, (case("zeros", verdict="NOT_RUN"),))},
    ("a note",),
    {"tensorrt": "no GPU", "ort_cuda": "not installed"},
)


def suites(report: ParityReport) -> dict[str, ElementTree.Element]:
    """The testsuites of a report's XML, by name, whose counts must be those of their cases."""
    root = ElementTree.fromstring(junit(report).encode())
    assert root.tag == "testsuites"
    for one in (root, *root):
        found = {tag: len(list(one.iter(tag))) for tag in ("testcase", "failure", "error", "skipped")}
        counted = [int(one.get(key, "-1")) for key in ("tests", "failures", "errors", "skipped")]
        assert counted == list(found.values())
    return {str(one.get("name")): one for one in root}


def outcomes(suite: ElementTree.Element) -> dict[str, str]:
    """By case: "" for one that passed, else the element in it and its message."""
    return {
        str(one.get("name")): "; ".join(f"{each.tag}: {each.get('message')}" for each in one)
        for one in suite.findall("testcase")
    }


def test_each_runtime_and_form_is_a_suite_and_each_case_a_test() -> None:
    found = suites(FAILING)
    assert list(found) == ["bad", "good", "crashed", "form onnx"]
    reason = "max error 6.30e-01 is over its bound 2.00e-01"
    assert outcomes(found["bad"]) == {
        "short": "",
        "long": f"failure: a: 3.15 times its bound: {reason}",
        "zeros": f"skipped: out: {reason}",
        "padding: alone against in a batch": "failure: out: 2.50 times its bound",
    }
    assert outcomes(found["good"]) == {"short": "", "padding: alone against in a batch": ""}
    assert {one.get("classname") for one in found["bad"].findall("testcase")} == {"bad"}


def test_a_verdict_of_no_single_case_is_a_test_of_its_own() -> None:
    found = suites(FAILING)
    assert outcomes(found["crashed"]) == {"all cases": "skipped: its process died of SIGSEGV"}
    assert outcomes(found["form onnx"])["all cases"] == "failure: no case was compared"


def test_a_result_that_is_not_finite_names_its_output() -> None:
    row = RuntimeParity("FAIL", "", "fp32", RAN, (case("long", "a", "FAIL", None),), (pair("FAIL", None),))
    told = {name: reason for name, verdict, reason in by_case(row) if verdict == "FAIL"}
    assert told["long"] == "a: max error 6.30e-01 is over its bound 2.00e-01"
    assert told["padding: alone against in a batch"] == "out: not all of its values could be compared"


def hostile() -> ParityReport:
    row = RuntimeParity("FAIL", HOSTILE, HOSTILE, RAN, (case(HOSTILE, HOSTILE, "FAIL", 9.0),))
    return ParityReport("FAIL", {HOSTILE: row}, {HOSTILE: RuntimeParity("NOT_RUN", HOSTILE, "")}, (HOSTILE,))


def test_names_with_control_characters_and_markup_are_well_formed() -> None:
    found = suites(hostile())
    shown = "a\ufffdb\ufffd[31m\ufffd <&>\"' ::error::x, 50%\ufffd\n::stop-commands::y"
    assert list(found) == [shown, f"form {shown}"]
    assert list(outcomes(found[shown])) == [shown]
    assert shown in outcomes(found[shown])[shown]


def test_each_runtime_and_form_that_fails_is_one_line_for_github() -> None:
    assert workflow_commands(FAILING).splitlines() == [
        "::notice title=parity%3A FAIL::1 of 2 runtimes within the bound, 0 of 1 form within the bound",
        "::error title=bad fails::2 of 3 results fail",
        "::notice title=crashed was not run::its process died of SIGSEGV",
        "::error title=form onnx fails::no case was compared",
        "::notice title=not installed%2C or without its device here::tensorrt, ort_cuda; why: attnport doctor",
        "::notice title=parity::a note",
    ]


def test_the_cause_is_the_first_error_for_github_and_a_form_that_fails_with_its_runtime_is_none() -> None:
    known = f"the module takes mask {OPPOSITE}: with mask:keep, padding changes no valid row"
    report = replace(FAILING, forms={"bad": FAILING.runtimes["bad"]}, notes=("a note", known))
    lines = workflow_commands(report).splitlines()
    errors = [line for line in lines if line.startswith("::error")]
    assert errors == [
        f"::error title=the cause::{known}",
        "::error title=bad fails::2 of 3 results fail",
    ]
    assert lines[-1] == "::notice title=parity::a note"


def test_what_a_search_found_is_an_error_of_its_own_for_github() -> None:
    found = (
        Finding("bad", tensor="t,1", module="layers.1", between=("Mul", "Add"), case="long"),
        Finding("worse", reason="it opens no file"),
    )
    lines = workflow_commands(FAILING, annotated(Bisected(FAILING, found))).splitlines()
    assert lines[:-2] == workflow_commands(FAILING).splitlines()
    assert lines[-2:] == [
        "::error title=bisect%3A bad goes wrong in layers.1::first diverging tensor: t,1, made by Mul, Add; "
        "fine before it: the inputs and weights; case: long",
        "::error title=bisect%3A worse::nothing found: it opens no file",
    ]


def test_no_text_of_a_report_ends_an_annotation_or_begins_one() -> None:
    lines = workflow_commands(hostile()).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::notice", "::error", "::notice", "::notice"]
    title, _, message = lines[1].removeprefix("::error title=").partition("::")
    assert not set(title) & {",", ":", "\r", "\n"}
    assert "%0A::stop-commands::y" in message
    assert "50%25" in message


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The command line, whose `check` finds `FAILING` at once; the runs that it was asked for are counted."""
    from attnport.verbs import check as checking

    runs: list[Path] = []

    @functools.wraps(checking.check)
    def check(folder: Path, *_: Any, **__: Any) -> ParityReport:
        runs.append(folder)
        return FAILING

    monkeypatch.setattr(checking, "check", check)

    def run(*options: object) -> tuple[Result, int]:
        return call("check", tmp_path, *options), len(runs)

    return run


def test_junit_is_written_when_the_check_fails(checked: Any, tmp_path: Path) -> None:
    target = tmp_path / "junit.xml"
    result, _ = checked("--junit", target)
    assert result.exit_code == 4
    assert "parity against float64: FAIL" in result.stdout
    assert target.read_text("utf-8") == junit(FAILING, f"attnport check {tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["junit.xml"]


def test_github_has_the_annotations_alone_on_stdout(checked: Any) -> None:
    result, _ = checked("--format", "github")
    assert result.exit_code == 4
    assert result.stdout == workflow_commands(FAILING)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--format", "gitlab"], "'gitlab' is not one of 'table', 'github'"),
        (["--format", "github", "--json"], "both print on stdout"),
        (["--junit", "FOLDER"], "it is a folder"),
        (["--junit", "FOLDER/none/junit.xml"], "there is no folder"),
        (["--junit", f"FOLDER/{'x' * 300}.xml"], "File name too long"),
        (["--junit", ""], "the path is empty"),
    ],
)
def test_options_that_cannot_work_are_refused_before_the_check(
    checked: Any, tmp_path: Path, options: list[str], told: str
) -> None:
    result, runs = checked(*[option.replace("FOLDER", str(tmp_path)) for option in options])
    refused(result, told)
    assert runs == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_to_is_refused_before_the_check(
    checked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", touch)  # permissions do not stop a user who is root
    result, runs = checked("--junit", tmp_path / "junit.xml")
    refused(result, "junit.xml: Permission denied.", "may write to")
    assert runs == 0


def test_a_device_is_written_to_and_not_replaced(checked: Any) -> None:
    result, _ = checked("--junit", os.devnull)
    assert result.exit_code == 4
    assert Path(os.devnull).is_char_device()
