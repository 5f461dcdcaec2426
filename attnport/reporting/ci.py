"""A parity report for CI systems: by case, as JUnit XML, and as workflow commands of GitHub Actions.

There is no standard of JUnit's format: a testsuite is a runtime or a form, a testcase a case; elements and attributes
are those of https://github.com/testmoapp/junitxml. Times are left out: a report has none. The source of workflow
commands is https://docs.github.com/actions/reference/workflow-commands-for-github-actions; of what has to be escaped in
them, packages/core/src/command.ts of https://github.com/actions/toolkit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree

from attnport.artifacts import CaseResult, InvarianceResult, ParityReport, RuntimeParity, Verdict
from attnport.parities import cause
from attnport.reporting.facts import ran, tallies, times, worst
from attnport.reporting.markup import printable

WHOLE = "all cases"
"""Stands for the case of a verdict that is of no single one, as of a runtime that was not run."""


_FORM = "form "


def _members(report: ParityReport) -> Mapping[str, RuntimeParity]:
    """Runtimes, then lowered forms, which have `form` before their names."""
    return {**report.runtimes, **{f"{_FORM}{name}": row for name, row in report.forms.items()}}


def by_case(row: RuntimeParity) -> Iterator[tuple[str, Verdict, str]]:
    """The name, verdict and reason of each case and of each comparison of padding.

    A case fails if one of its outputs fails; the reason then names each of these. It is NOT_RUN if all outputs are.
    """
    named: dict[str, list[CaseResult | InvarianceResult]] = {}
    for result in row.cases:
        named.setdefault(result.case, []).append(result)
    for pair in row.invariance:
        named.setdefault(f"padding: {pair.comparison}", []).append(pair)
    verdicts = {case: worst([result.verdict for result in results]) for case, results in named.items()}
    for case, results in named.items():
        verdict = verdicts[case]
        described = [_described(result) for result in results if result.verdict == verdict] if verdict != "PASS" else []
        yield case, verdict, "; ".join(described)
    if row.verdict != "PASS" and row.verdict not in verdicts.values():
        yield WHOLE, row.verdict, row.reason
    elif not verdicts:
        yield WHOLE, row.verdict, ""


def _described(result: CaseResult | InvarianceResult) -> str:
    """The output, how far it is over its bound, and why it was not accepted."""
    parts = [result.output]
    over = result.used
    if over is not None and over > 1:
        parts.append(f"{times(over)} times its bound")
    if isinstance(result, CaseResult):
        parts.append(result.reason)
    elif over is None:
        parts.append("not all of its values could be compared")
    return ": ".join(part for part in parts if part)


def junit(report: ParityReport, title: str = "attnport check") -> str:
    """The XML file of a report; what XML cannot hold, such as control characters, is replaced."""
    root = ElementTree.Element("testsuites", name=printable(title))
    totals = Counter[str]()
    for name, row in _members(report).items():
        counts = _suite(root, name, row)
        totals.update(counts)
    _count(root, totals)
    ElementTree.indent(root)
    made: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return f"{made.decode()}\n"


def _suite(root: ElementTree.Element, name: str, row: RuntimeParity) -> Counter[str]:
    """Adds a runtime or form, and returns how many of its cases have each verdict."""
    suite = ElementTree.SubElement(root, "testsuite", name=printable(name))
    about = ElementTree.SubElement(suite, "properties")
    for key, value in (("plan", row.plan), ("ran", ran(row.ran)), ("reason", row.reason)):
        ElementTree.SubElement(about, "property", name=key, value=printable(value))
    counts = Counter[str]()
    for case, verdict, reason in by_case(row):
        counts[verdict] += 1
        test = ElementTree.SubElement(suite, "testcase", name=printable(case), classname=printable(name))
        if verdict == "FAIL":
            failure = ElementTree.SubElement(test, "failure", message=printable(reason), type="parity")
            failure.text = printable(reason)
        elif verdict == "NOT_RUN":
            ElementTree.SubElement(test, "skipped", message=printable(reason))
    _count(suite, counts)
    return counts


def _count(element: ElementTree.Element, counts: Counter[str]) -> None:
    for key, number in (
        ("tests", counts.total()),
        ("failures", counts["FAIL"]),
        ("errors", 0),
        ("skipped", counts["NOT_RUN"]),
    ):
        element.set(key, str(number))


def workflow_commands(report: ParityReport, found: Iterable[tuple[str, str]] = ()) -> str:
    """A line for the verdict, the errors, and a notice for each runtime or form that was not run.

    GitHub shows ten errors of a step. So the cause is first where a note knows it, and what fails is one error each: a
    runtime, and a form whose runtime does not fail. One notice names all runtimes that lack a package or a device here.

    Args:
        found: A title and a text for each search for what is wrong; each is an error of its own, or a warning where
            nothing failed.
    """
    kind = "error" if report.verdict == "FAIL" else "warning"
    lines = (*_lines(report), *(_command(kind, title, text) for title, text in found))
    return "".join(f"{line}\n" for line in lines)


def _lines(report: ParityReport) -> Iterator[str]:
    yield _command("notice", f"parity: {report.verdict}", ", ".join(tallies(report)))
    known = cause(report)
    if known:
        yield _command("error", "the cause", known)
    repeated = {f"{_FORM}{name}" for name, row in report.runtimes.items() if row.verdict == "FAIL"}
    for name, row in _members(report).items():
        if row.verdict == "FAIL" and name not in repeated:
            yield _command("error", f"{name} fails", row.reason)
        if row.verdict == "NOT_RUN":
            yield _command("notice", f"{name} was not run", row.reason)
    if report.absent:
        names = ", ".join(report.absent)
        yield _command("notice", "not installed, or without its device here", f"{names}; why: attnport doctor")
    for note in report.notes:
        if note == known:
            continue
        yield _command("notice", "parity", note)


def _command(command: str, title: str, message: str) -> str:
    """One command. Its text cannot end it, or begin another one."""
    return f"::{command} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
