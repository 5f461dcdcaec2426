"""Parity: the verdict and worst error of each runtime and form, by case on the page; then every metric."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attnport.artifacts import INTEGERS, Argmax, CaseResult, InvarianceResult, NonFinite, ParityReport, RuntimeParity
from attnport.parities import LARGE_VALUES
from attnport.reporting import document as doc
from attnport.reporting.document import NONE, count, scientific, significant
from attnport.reporting.facts import BOUND, lacking, largest, part_compared, ran, times, worst

_MOST_OUTPUTS = 4
LEGEND = (
    "ULP: quantiles of the error in units of the reference’s last place. NaN, Inf: of the valid elements. Padded rows "
    "are not compared. Argmax: rows of logits in which the largest stands where the reference’s does."
)
_RULES = (
    "worst: the largest error over its bound; above 1 fails, and so does what is not finite, NaN or Inf",
    "padding: the same for changes when only padding changes; - without padding",
)
_BY_METRIC = "- in the other columns: judged by the metric of tune, and not by cases"
_PART = "padding of some outputs: the notes say why the others were not compared"


@doc.blocks.register(ParityReport)
def parity(report: ParityReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """Runtimes and forms with their verdicts; `brief` has a line for the forms that pass, `page` a column by case."""
    if detail == "page":
        yield from _page(report)
        return
    title = ("parity against float64: ", doc.Verdict(report.verdict))
    in_part = any(part_compared(row.invariance) for row in report.runtimes.values())
    if report.runtimes:
        yield _verdicts(title, "runtime", report.runtimes)
        by_metric = any(row.plan in INTEGERS and row.verdict != "NOT_RUN" for row in report.runtimes.values())
        yield from doc.quiet(*_RULES, *[_BY_METRIC] * by_metric, *[_PART] * in_part)
    else:
        yield doc.Text(title)
    if detail == "brief":
        yield from forms(report.forms)
    elif report.forms:
        yield _verdicts("the graphs of the forms, run elsewhere", "form", report.forms)
    yield from lacking(list(report.absent)) if report.runtimes else [doc.notes(report.absent)]
    if detail == "whole":
        yield from _worst(report)
    if in_part:  # the module does not keep to its masks, which a verdict on runtimes does not show
        yield from doc.warnings(report.notes)
    else:
        yield from doc.quiet(*(f"note: {note}" for note in report.notes))
    if detail == "brief":
        yield from doc.quiet("every form and metric: -v; every case and output: parity.json, attnport report")


def section(report: ParityReport | None, folder: str) -> Iterator[doc.Block]:
    """The section of the page; `folder` is quoted for a shell."""
    yield from [doc.pending(f"attnport check {folder}")] if report is None else _page(report)


def forms(rows: Mapping[str, RuntimeParity]) -> Iterator[doc.Block]:
    """A line for each verdict on the graphs of forms, apart from the runtimes that are to open them, and reasons."""
    for verdict in ("PASS", "FAIL", "NOT_RUN"):
        reasons = {name: row.reason for name, row in rows.items() if row.verdict == verdict}
        if reasons:
            names = f" {', '.join(reasons)}" if verdict == "PASS" else ""
            yield doc.Text(("graphs of forms, apart from their runtimes: ", doc.Verdict(verdict), names))
            yield from [doc.notes(reasons)] if verdict != "PASS" else []


def limits(report: ParityReport) -> Iterable[doc.Block]:
    """A line for each thing that was not compared though it could be: padding without a mask, text without sentences.

    Limits that nearly every model has are left out, such as padding on the left where positions move with it.
    """
    return doc.warnings(note for note in report.notes if re.search(r"(was|these are) not compared", note))


def _verdicts(title: doc.Line, what: str, rows: Mapping[str, RuntimeParity]) -> doc.Table:
    """A row for each runtime or form, with its worst error and the reason of a failure."""
    numbers = ("cases", "worst", "padding")
    columns = doc.columns(what, "verdict", "ran as", *numbers, right=numbers, whole=("verdict", *numbers))

    def row(name: str, judged: RuntimeParity) -> doc.Row:
        told = judged.reason if judged.verdict != "PASS" or judged.plan in INTEGERS else ""
        first = (doc.Name(name), doc.Verdict(judged.verdict))
        if judged.verdict == "NOT_RUN" and not judged.cases and not judged.ran:
            return doc.Row(first, told)
        ran_as = f"{judged.ran.provider} {judged.ran.precision}" if judged.ran else NONE
        cases = str(len({case.case for case in judged.cases if case.verdict != "NOT_RUN"})) if judged.cases else NONE
        most = largest(case for case in judged.cases if case.verdict != "NOT_RUN")
        return doc.Row((*first, ran_as, cases, times(most), _padding(judged)), told)

    return doc.Table(title, columns, (doc.Group(tuple(row(*each) for each in rows.items())),))


def _share(results: Sequence[CaseResult | InvarianceResult], note: str = "") -> doc.Share:
    return doc.Share(worst([result.verdict for result in results]) if results else "", largest(results), note)


def _padding(judged: RuntimeParity) -> doc.Share:
    """The worst change when only padding changes, and how many outputs could be compared."""
    return _share(judged.invariance, part_compared(judged.invariance))


def _page(report: ParityReport) -> Iterator[doc.Block]:
    """The rule, the matrix, the notes, and every metric on demand."""
    yield doc.Text(BOUND)
    yield _matrix(report)
    failed = {name: judged.reason for _, _, rows in _members(report) for name, judged in rows.items()
              if judged.verdict == "FAIL"}  # fmt: skip
    yield from ([doc.notes(failed)] if failed else [])
    yield from ([doc.Bullets(report.notes)] if report.notes else [])
    folded = [
        _details(key if kind == "runtime" else f"form {key}", f"parity-{kind}-{place}", judged)
        for kind, _, members in _members(report)
        for place, (key, judged) in enumerate(members.items())
    ]
    legend = [doc.Text(LEGEND, "quiet")] if folded else []
    yield doc.Only("page", (doc.Text("All metrics", "label"), *legend, *folded))
    where = (doc.Name("parity.json"), " has each case and output; so has the page, ", doc.Name("report.html"))
    if metrics := [*_worst(report)]:
        yield doc.Only("markdown", (*metrics, doc.Text((*where, ", where it folds out."))))


def _matrix(report: ParityReport) -> doc.Table:
    """Verdict, largest relative error, and share of the bound by case; padding invariance is the last column."""
    every = [*report.runtimes.values(), *report.forms.values()]
    batches: dict[str, set[str]] = {}
    for result in (result for judged in every for result in judged.cases):
        batches.setdefault(_column(result.case), set()).add(result.case)

    def row(link: str, key: str, judged: RuntimeParity) -> doc.Row:
        first = (doc.Span(doc.Name(key), link=link), doc.Verdict(judged.verdict))
        if judged.verdict == "NOT_RUN" and not judged.cases:
            return doc.Row(first, judged.reason)
        cells = [_share([result for result in judged.cases if _column(result.case) == case]) for case in batches]
        errors = [result.relative for result in judged.cases if result.relative is not None]
        return doc.Row((*first, scientific(max(errors, default=None)), *cells, _padding(judged)))

    groups = []
    for kind, title, members in _members(report):
        rows = (row(f"#parity-{kind}-{place}", *member) for place, member in enumerate(members.items()))
        groups += [doc.Group(tuple(rows), title, kind)] if members else []
    cases = (
        (case, doc.Span(f"{len(members)} batches", "sub")) if len(members) > 1 else case
        for case, members in batches.items()
    )
    columns = doc.columns("runtime or form", "verdict", "off by", *cases, "padding invariance")
    caption = "Largest error as a part of the bound of its precision, by case (1 is the limit); off by: relative error"
    return doc.filled(doc.Table(caption, columns, tuple(groups), "kind", "matrix"))


def _members(report: ParityReport) -> tuple[tuple[str, str, Mapping[str, RuntimeParity]], ...]:
    """Runtimes and forms; the head of the report has the runtimes that this machine lacks."""
    return (
        ("runtime", "Runtimes, each on its own form", report.runtimes),
        ("form", "Lowered forms, run numerically without their target", report.forms),
    )


def _column(case: str) -> str:
    """The matrix column of a case; batches of one text (`sentences 1-32`, `sentences 33-64`) share a column."""
    return re.sub(r"[ _]\d+-\d+$", "", case)


_JUDGED: Mapping[str, Callable[[CaseResult], doc.Line]] = {
    "RMS error": lambda case: scientific(case.rms_error),
    "RMS bound": lambda case: scientific(case.rms_bound),
    "max error": lambda case: scientific(case.max_error),
    "max bound": lambda case: scientific(case.max_bound),
    "relative": lambda case: scientific(case.relative),
    "least cosine": lambda case: NONE if case.cosine is None else f"{case.cosine:.8f}",
    "elements": lambda case: count(case.elements),
    "not finite": lambda case: str(case.nonfinite),
}
"""The errors and bounds that decide a verdict, and errors relative to the values."""
_BESIDE: Mapping[str, Callable[[CaseResult], doc.Line]] = {
    "ULP p50": lambda case: _ulps(case.ulps.p50 if case.ulps else None),
    "ULP p90": lambda case: _ulps(case.ulps.p90 if case.ulps else None),
    "ULP p99": lambda case: _ulps(case.ulps.p99 if case.ulps else None),
    "ULP max": lambda case: _ulps(case.ulps.max if case.ulps else None),
    "NaN, Inf": lambda case: _nonfinite(case.census),
    "argmax agrees": lambda case: _argmax(case.argmax),
    "padded rows": lambda case: _padded(case),
}
"""The metrics that decide none."""


def _details(title: str, id_: str, judged: RuntimeParity) -> doc.Folded:
    """All metrics of one runtime or form."""
    most = largest((*judged.cases, *judged.invariance))
    summary: tuple[doc.Line, ...] = (doc.Span(doc.Name(title), "what"), " ", doc.Verdict(judged.verdict))
    if most is not None:
        told = times(most) if math.isnan(most) else f"at most {times(most)} of the bound of {judged.plan or NONE}"
        summary = (*summary, " ", doc.Span(told, "quiet"))
    facts = f"Precision plan {judged.plan or NONE}. Ran: {ran(judged.ran)}."
    blocks: list[doc.Block] = [doc.Text(f"{facts} {judged.reason}" if judged.reason else facts)]
    if judged.cases:
        places = [(case.case, doc.Name(case.output)) for case in judged.cases]
        rows = (
            doc.Row((*place, doc.Verdict(case.verdict), *(figure(case) for figure in _JUDGED.values())), case.reason)
            for place, case in zip(places, judged.cases, strict=True)
        )
        columns = (*doc.columns("case", "output", "verdict"), *doc.numbers(*_JUDGED))
        blocks.append(
            doc.Table(f"Errors of {title} against float64", columns, (doc.Group(tuple(rows)),), style="metrics")
        )
        further = (
            (*place, *(figure(case) for figure in _BESIDE.values()))
            for place, case in zip(places, judged.cases, strict=True)
        )
        columns = (*doc.columns("case", "output"), *doc.numbers(*_BESIDE))
        beside = doc.filled(doc.Table(f"Further metrics of {title}", columns, doc.rows(further), style="metrics"))
        blocks += [beside] if len(beside.columns) > 2 else []
    if judged.invariance:
        pairs = doc.rows(
            (
                result.comparison,
                doc.Name(result.output),
                doc.Verdict(result.verdict),
                *map(scientific, (result.rms_difference, result.rms_bound)),
                *map(scientific, (result.max_difference, result.max_bound)),
            )
            for result in judged.invariance
        )
        columns = doc.columns("comparison", "output", "verdict")
        columns += doc.numbers("RMS difference", "RMS bound", "max difference", "max bound")
        caption = f"Padding invariance of {title}: what differs when padding alone differs"
        blocks.append(doc.Table(caption, columns, pairs, style="metrics"))
    return doc.Folded(summary, tuple(blocks), id_)


_WORST: Mapping[str, Callable[[Sequence[CaseResult]], str]] = {
    "max error": lambda cases: scientific(_most(case.max_error for case in cases)),
    "relative": lambda cases: scientific(_most(case.relative for case in cases)),
    "ULP p50": lambda cases: _ulps(_most(case.ulps.p50 for case in cases if case.ulps)),
    "p99": lambda cases: _ulps(_most(case.ulps.p99 for case in cases if case.ulps)),
    "1-cos": lambda cases: _from_one(cases),
    "argmax": lambda cases: _agreement([case.argmax for case in cases if case.argmax]),
    "NaN, Inf": lambda cases: count(sum(case.nonfinite for case in cases)),
}
"""The worst of each metric over some cases; of NaN and Inf the sum."""


def _worst(report: ParityReport) -> Iterator[doc.Block]:
    """For each output, by runtime, the worst of each metric over all cases except large values."""
    usual = {name: [case for case in row.cases if case.case != LARGE_VALUES] for name, row in report.runtimes.items()}
    outputs = list(dict.fromkeys(case.output for cases in usual.values() for case in cases if case.ulps))
    for output in outputs[:_MOST_OUTPUTS]:
        of_output = {name: [case for case in cases if case.output == output] for name, cases in usual.items()}
        rows = doc.rows(
            (doc.Name(name), *(figure(cases) for figure in _WORST.values()))
            for name, cases in of_output.items()
            if cases
        )
        columns = doc.columns("runtime", *_WORST, right=_WORST, whole=_WORST)
        yield doc.filled(doc.Table((doc.Name(output), ": the worst of each metric"), columns, rows))
    if outputs:
        left = len(outputs) - _MOST_OUTPUTS
        more = f"; parity.json has {left} more outputs" if left > 0 else ""
        yield from doc.quiet(f"relative: norm of the error over the reference's; all but {LARGE_VALUES!r}{more}")


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _from_one(cases: Sequence[CaseResult]) -> str:
    """How far the smallest cosine is from 1."""
    away = _most(1 - case.cosine for case in cases if case.cosine is not None)
    return NONE if away is None else f"{max(0.0, away):.0e}"


def _agreement(found: Sequence[Argmax]) -> str:
    """The share of rows that agree, over all cases; never 100 % unless all agree."""
    if not found:
        return NONE
    rows, agree = sum(each.rows for each in found), sum(each.agree for each in found)
    return "100%" if agree == rows else f"{min(99.9, 100 * agree / rows):.1f}%"


def _argmax(found: Argmax | None) -> str:
    """`98 of 100`."""
    return NONE if found is None else f"{count(found.agree)} of {count(found.rows)}"


def _ulps(value: float | None) -> str:
    return significant(value) if value is None or value < 1e5 else scientific(value)


def _nonfinite(census: NonFinite | None) -> str:
    """`0`, or the number of each: `3 NaN, 1 −Inf`."""
    if census is None:
        return NONE
    kinds = ((census.nan, "NaN"), (census.positive_inf, "Inf"), (census.negative_inf, "−Inf"))
    return ", ".join(f"{count(number)} {kind}" for number, kind in kinds if number) or "0"


def _padded(case: CaseResult) -> str:
    """`9 216 elements, RMS 1.20e-7, max 3.40e-6`, and the numbers of NaN and Inf in them."""
    if case.padded is None:
        return NONE
    parts = [f"{count(case.padded.elements)} elements"]
    if case.padded.rms_error is not None:
        parts.append(f"RMS {scientific(case.padded.rms_error)}, max {scientific(case.padded.max_error)}")
    if case.padded.nonfinite.total:
        parts.append(_nonfinite(case.padded.nonfinite))
    return ", ".join(parts)
