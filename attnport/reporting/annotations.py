"""A parity report as workflow commands of GitHub Actions, which shows them as annotations of a run.

Source of the format: https://docs.github.com/actions/reference/workflow-commands-for-github-actions; of what has to be
escaped: packages/core/src/command.ts of https://github.com/actions/toolkit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnport.artifacts import ParityReport
from attnport.reporting.by_case import by_case, members
from attnport.reporting.facts import tallies
from attnport.reporting.markup import printable


def workflow_commands(report: ParityReport, found: Iterable[tuple[str, str]] = ()) -> str:
    """A line for the verdict, an error for each failed case, and a notice for each runtime or form that was not run.

    Runtimes for which this machine lacks a package or a device share one notice.

    Args:
        found: A title and a text for each search for what is wrong; each is an error of its own.
    """
    lines = (*_lines(report), *(_line("error", title, text) for title, text in found))
    return "".join(f"{line}\n" for line in lines)


def _lines(report: ParityReport) -> Iterator[str]:
    yield _line("notice", f"parity: {report.verdict}", ", ".join(tallies(report)))
    absent = [name for name, row in report.runtimes.items() if row.absent]
    for name, row in members(report).items():
        for case, verdict, reason in by_case(row):
            if verdict == "FAIL":
                yield _line("error", f"{name} fails: {case}", reason)
        if row.verdict == "NOT_RUN" and name not in absent:
            yield _line("notice", f"{name} was not run", row.reason)
    if absent:
        yield _line("notice", "not installed, or without its device here", f"{', '.join(absent)}; why: attnport doctor")
    for note in report.notes:
        yield _line("notice", "parity", note)


def _line(command: str, title: str, message: str) -> str:
    """One command. Its text cannot end it, or begin another one."""
    return f"::{command} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
