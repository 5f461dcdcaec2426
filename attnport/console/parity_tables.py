"""What `check` prints: a verdict for each runtime and form, then what the errors of each output are like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import CaseResult, ParityReport, RuntimeParity

_MOST_OUTPUTS = 4
_MOST_ULPS = 99_999.5


def show_parity(console: Console, report: ParityReport) -> None:
    """One row a runtime and a lowered form, with what comes closest to its bound; metrics and reasons stand below."""
    _verdicts(console, f"parity against float64: {cells.verdict(report.verdict)}", "runtime", report.runtimes)
    if report.forms:
        _verdicts(console, "graph parity of the lowered forms", "form", report.forms)
    console.print("worst: the largest error over its bound, over all cases and outputs; above 1 fails", style="dim")
    console.print("padding: the same of what changes when padding alone does; - where no mask tells", style="dim")
    _metrics(console, report)
    for note in report.notes:
        console.print(f"note: {cells.plain(note)}", style="dim")


def _verdicts(console: Console, title: str, what: str, rows: Mapping[str, RuntimeParity]) -> None:
    table = cells.table(
        title,
        what,
        "verdict",
        "ran as",
        "cases",
        "worst",
        "padding",
        right=("cases", "worst", "padding"),
        whole=("verdict", "cases", "worst", "padding"),
    )
    for name, row in rows.items():
        ran = f"{row.ran.provider} {row.ran.precision}" if row.ran else ""
        errors = [
            (error, bound)
            for case in row.cases
            for error, bound in ((case.rms_error, case.rms_bound), (case.max_error, case.max_bound))
        ]
        changes = [
            (difference, bound)
            for pair in row.invariance
            for difference, bound in (
                (pair.rms_difference, pair.rms_bound),
                (pair.max_difference, pair.max_bound),
            )
        ]
        padding = _share(changes) or ("-" if row.cases else "")
        if any(pair.verdict == "FAIL" for pair in row.invariance):
            padding = f"[bold red]{padding.strip('-') or 'FAIL'}[/]"
        cases = str(len({case.case for case in row.cases})) if row.cases else ""
        table.add_row(name, cells.verdict(row.verdict), cells.plain(ran), cases, _share(errors), padding)
    console.print(table)
    cells.notes(console, {name: row.reason for name, row in rows.items() if row.verdict != "PASS"})


def _share(pairs: Iterable[tuple[float | None, float]]) -> str:
    shares = [error / bound for error, bound in pairs if error is not None and bound]
    return f"{max(shares):.2f}" if shares else ""


def _metrics(console: Console, report: ParityReport) -> None:
    """For each output, by runtime, the worst of each metric over the cases whose errors are of the usual size."""
    from attnport.cases.extremes import LARGE_VALUES

    usual = {name: [case for case in row.cases if case.case != LARGE_VALUES] for name, row in report.runtimes.items()}
    outputs = list(dict.fromkeys(case.output for cases in usual.values() for case in cases if case.ulps))
    for output in outputs[:_MOST_OUTPUTS]:
        of_output = {name: [case for case in cases if case.output == output] for name, cases in usual.items()}
        _metrics_of(console, output, {name: cases for name, cases in of_output.items() if cases})
    if outputs:
        console.print(
            f"relative: norm of the error over the reference's; all but {LARGE_VALUES!r}"
            + (f"; parity.json has {len(outputs) - _MOST_OUTPUTS} more outputs" if outputs[_MOST_OUTPUTS:] else ""),
            style="dim",
        )


def _metrics_of(console: Console, output: str, rows: Mapping[str, list[CaseResult]]) -> None:
    argmax = ("argmax",) if any(case.argmax for cases in rows.values() for case in cases) else ()
    right = ("max error", "relative", "ULP p50", "p99", "1-cos", *argmax, "NaN, Inf")
    table = cells.table(f"{cells.plain(output)}: the worst of each metric", "runtime", *right, right=right, whole=right)
    for name, cases in rows.items():
        ulps = [case.ulps for case in cases if case.ulps]
        values = [
            _worst(cases, lambda case: case.max_error, "{:.1e}"),
            _worst(cases, lambda case: case.relative, "{:.1e}"),
            _ulps(max((one.p50 for one in ulps), default=None)),
            _ulps(max((one.p99 for one in ulps), default=None)),
            _worst(cases, lambda case: None if case.cosine is None else max(0.0, 1 - case.cosine), "{:.0e}"),
            *[_argmax(cases) for _ in argmax],
            str(sum(case.nonfinite for case in cases)),
        ]
        table.add_row(name, *values)
    console.print(table)


def _worst(cases: Iterable[CaseResult], metric: Callable[[CaseResult], float | None], form: str) -> str:
    known = [value for value in map(metric, cases) if value is not None]
    return form.format(max(known)) if known else ""


def _ulps(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}" if value < _MOST_ULPS else f"{value:.0e}"


def _argmax(cases: Iterable[CaseResult]) -> str:
    """The share of rows that agree, over all cases; never 100 % where one does not."""
    rows = [case.argmax for case in cases if case.argmax]
    if not rows:
        return ""
    agree, total = sum(one.agree for one in rows), sum(one.rows for one in rows)
    return "100%" if agree == total else f"{min(99.9, 100 * agree / total):.1f}%"
