"""The results of `check` by runtime or form, and by case: what files and lines for CI systems are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnport.artifacts import CaseResult, InvarianceResult, ParityReport, RuntimeParity, Verdict
from attnport.reporting.facts import times
from attnport.reporting.measures import share, worst

WHOLE = "all cases"
"""Stands for the case of a verdict that is of no single one, as of a runtime that was not run."""


def members(report: ParityReport) -> Mapping[str, RuntimeParity]:
    """Runtimes, then lowered forms, which have `form` before their names."""
    return {**report.runtimes, **{f"form {name}": row for name, row in report.forms.items()}}


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
        told = [_told(result) for result in results if result.verdict == verdict] if verdict != "PASS" else []
        yield case, verdict, "; ".join(told)
    if row.verdict != "PASS" and row.verdict not in verdicts.values():
        yield WHOLE, row.verdict, row.reason
    elif not verdicts:
        yield WHOLE, row.verdict, ""


def _told(result: CaseResult | InvarianceResult) -> str:
    """The output, how far it is over its bound, and why it was not accepted."""
    parts = [result.output]
    over = share(result)
    if over is not None and over > 1:
        parts.append(f"{times(over)} times its bound")
    if isinstance(result, CaseResult):
        parts.append(result.reason)
    elif over is None:
        parts.append("not all of its values could be compared")
    return ": ".join(part for part in parts if part)
