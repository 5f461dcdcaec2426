"""What `check` prints: a verdict for each runtime and form, then metrics of the errors of each output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attnport.artifacts import INTEGERS
from attnport.console import cells
from attnport.reporting import document as doc
from attnport.reporting.absences import line, not_checked
from attnport.reporting.measures import largest, part_compared
from attnport.reporting.metrics import worst_metrics

if TYPE_CHECKING:
    from attnport.artifacts import Argmax, CaseResult, ParityReport, RuntimeParity

_MOST_OUTPUTS = 4
_MOST_ULPS = 99_999.5
_PART = "padding of some outputs: the notes say why the others were not compared"


def show_parity(report: ParityReport) -> Iterator[doc.Block]:
    """A row for each runtime with its worst error, and what failed in words; what passed besides is a line."""
    yield from _of_runtimes(report)
    yield from show_forms(report.forms)
    yield from those_not_here(not_checked(report.runtimes))
    yield from _notes(report)
    yield from cells.quiet("every form and metric: -v; every case and output: parity.json, attnport report")


def show_parity_whole(report: ParityReport) -> Iterator[doc.Block]:
    """As `show_parity`, with a row for each lowered form, and the worst of each metric by output."""
    yield from _of_runtimes(report)
    yield from those_not_here(not_checked(report.runtimes))
    if report.forms:
        yield from _verdicts("graph parity of the lowered forms", "form", report.forms)
    yield from _metrics(report)
    yield from _notes(report)


def show_forms(forms: Mapping[str, RuntimeParity]) -> Iterator[doc.Block]:
    """One line for the lowered forms that pass, and the reasons of the others."""
    passed = [name for name, row in forms.items() if row.verdict == "PASS"]
    if passed:
        form = "lowered form passes" if len(passed) == 1 else "lowered forms pass"
        yield doc.Text((doc.Verdict(f"{len(passed)} {form}", "pass"), f": {', '.join(passed)}"))
    for verdict in ("FAIL", "NOT_RUN"):
        reasons = {name: row.reason for name, row in forms.items() if row.verdict == verdict}
        if reasons:
            of_these = "form" if len(reasons) == 1 else "forms"
            yield doc.Text((doc.Verdict(verdict), f", {len(reasons)} lowered {of_these}:"))
            yield cells.notes(reasons)


def those_not_here(names: Sequence[str]) -> Iterator[doc.Block]:
    """One line for all of them."""
    if names:
        yield doc.Text(f"{line(names)}; why: attnport doctor")


def _of_runtimes(report: ParityReport) -> Iterator[doc.Block]:
    title = ("parity against float64: ", doc.Verdict(report.verdict))
    absent = not_checked(report.runtimes)
    yield from _verdicts(title, "runtime", {name: row for name, row in report.runtimes.items() if name not in absent})
    yield from cells.quiet(
        "worst: the largest error over its bound; above 1 fails",
        "padding: the same for changes when only padding changes; - without padding",
        *[_PART] * any(part_compared(row.invariance) for row in report.runtimes.values()),
    )


def _notes(report: ParityReport) -> Iterator[doc.Block]:
    yield from cells.quiet(*(f"note: {note}" for note in report.notes))


def _verdicts(title: doc.Line, what: str, parities: Mapping[str, RuntimeParity]) -> Iterator[doc.Block]:
    numbers = ("cases", "worst", "padding")
    columns = cells.columns(what, "verdict", "ran as", *numbers, right=numbers, whole=("verdict", *numbers))
    rows = (
        (
            name,
            doc.Verdict(row.verdict),
            f"{row.ran.provider} {row.ran.precision}" if row.ran else "",
            str(len({case.case for case in row.cases})) if row.cases else "",
            _share(largest([case for case in row.cases if case.verdict != "NOT_RUN"])),
            _padding(row),
        )
        for name, row in parities.items()
    )
    yield doc.Table(title, columns, doc.rows(rows))
    told = {name: row.reason for name, row in parities.items() if row.verdict != "PASS" or row.plan in INTEGERS}
    yield cells.notes(told)


def _padding(row: RuntimeParity) -> doc.Line:
    """The worst change when only padding changes."""
    share = _share(largest(row.invariance))
    if any(pair.verdict == "FAIL" for pair in row.invariance):
        return doc.Verdict(share or "FAIL", "fail")
    if share and (part := part_compared(row.invariance)):
        return f"{share}, {part}"
    return share or ("-" if row.cases else "")


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.2f}"


def _metrics(report: ParityReport) -> Iterator[doc.Block]:
    """For each output, by runtime, the worst of each metric over all cases except large values."""
    from attnport.cases.extremes import LARGE_VALUES

    usual = {name: [case for case in row.cases if case.case != LARGE_VALUES] for name, row in report.runtimes.items()}
    outputs = list(dict.fromkeys(case.output for cases in usual.values() for case in cases if case.ulps))
    for output in outputs[:_MOST_OUTPUTS]:
        of_output = {name: [case for case in cases if case.output == output] for name, cases in usual.items()}
        yield _metrics_of(output, {name: cases for name, cases in of_output.items() if cases})
    if outputs:
        left = len(outputs) - _MOST_OUTPUTS
        more = f"; parity.json has {left} more outputs" if left > 0 else ""
        yield from cells.quiet(f"relative: norm of the error over the reference's; all but {LARGE_VALUES!r}{more}")


def _metrics_of(output: str, cases_by_runtime: Mapping[str, Sequence[CaseResult]]) -> doc.Table:
    argmax = any(case.argmax for cases in cases_by_runtime.values() for case in cases)
    numbers = ("max error", "relative", "ULP p50", "p99", "1-cos", *["argmax"] * argmax, "NaN, Inf")
    rows: list[tuple[doc.Line, ...]] = []
    for name, cases in cases_by_runtime.items():
        worst = worst_metrics(cases)
        most = max((case.max_error for case in cases if case.max_error is not None), default=None)
        values = [
            "" if most is None else f"{most:.1e}",
            "" if worst.relative is None else f"{worst.relative:.1e}",
            _ulps(worst.ulps.p50 if worst.ulps else None),
            _ulps(worst.ulps.p99 if worst.ulps else None),
            "" if worst.cosine is None else f"{max(0.0, 1 - worst.cosine):.0e}",
            *[_argmax(worst.argmax)] * argmax,
            str(sum(case.nonfinite for case in cases)),
        ]
        rows.append((name, *values))
    columns = cells.columns("runtime", *numbers, right=numbers, whole=numbers)
    return doc.Table(f"{output}: the worst of each metric", columns, doc.rows(rows))


def _ulps(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}" if value < _MOST_ULPS else f"{value:.0e}"


def _argmax(argmax: Argmax | None) -> str:
    """The share of rows that agree, over all cases; never 100 % unless all agree."""
    if argmax is None:
        return ""
    return "100%" if argmax.agree == argmax.rows else f"{min(99.9, 100 * argmax.agree / argmax.rows):.1f}%"
