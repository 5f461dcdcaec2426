"""The parity section: a matrix of runtimes and forms by case, then all metrics of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attnport.artifacts import CaseResult, InvarianceResult, ParityReport, RuntimeParity
from attnport.reporting import document as doc
from attnport.reporting.absences import not_checked, without
from attnport.reporting.facts import BOUND, ran, times
from attnport.reporting.measures import NONE, count, largest, part_compared, scientific, worst
from attnport.reporting.metrics import (
    ARGMAX,
    CENSUS,
    LEGEND,
    PADDED,
    ULPS,
    Has,
    Worst,
    argmax,
    has,
    nonfinite,
    padded,
    ulps,
    worst_metrics,
)


def _matrix(report: ParityReport) -> doc.Table:
    """Verdict and largest share of the bound, by runtime or form and by case; padding invariance is the last column."""
    all_members = [*report.runtimes.values(), *report.forms.values()]
    batches: dict[str, set[str]] = {}
    for result in (result for judged in all_members for result in judged.cases):
        batches.setdefault(_column(result.case), set()).add(result.case)
    invariance = any(judged.invariance for judged in all_members)

    def row(link: str, key: str, judged: RuntimeParity) -> doc.Row:
        first = (doc.Span(doc.Name(key), link=link), doc.Verdict(judged.verdict))
        if judged.verdict == "NOT_RUN" and not judged.cases:
            return doc.Row(first, judged.reason)
        cells = [_share([result for result in judged.cases if _column(result.case) == case]) for case in batches]
        padding = (_share(judged.invariance), f" {part_compared(judged.invariance)}".rstrip())
        return doc.Row((*first, *cells, *([padding] if invariance else [])))

    groups = []
    for kind, title, members in _members(report):
        rows = (row(f"#parity-{kind}-{place}", *member) for place, member in enumerate(members.items()))
        groups += [doc.Group(tuple(rows), title, kind)] if members else []
    cases = (
        (case, doc.Span(f"{len(members)} batches", "sub")) if len(members) > 1 else case
        for case, members in batches.items()
    )
    columns = doc.words("Runtime or form", "Verdict", *cases, *(["padding invariance"] if invariance else []))
    caption = "Largest error as a part of its bound, by case (1 is the limit)"
    return doc.Table(caption, columns, tuple(groups), "Kind", "matrix")


def _members(report: ParityReport) -> tuple[tuple[str, str, Mapping[str, RuntimeParity]], ...]:
    """Runtimes and forms; the head of the report has the runtimes that this machine lacks."""
    runtimes = without(not_checked(report.runtimes), report.runtimes)
    return (
        ("runtime", "Runtimes, each on its own form", runtimes),
        ("form", "Lowered forms, run numerically without their target", report.forms),
    )


def _column(case: str) -> str:
    """The matrix column of a case; batches of one text (`sentences 1-32`, `sentences 33-64`) share a column."""
    return re.sub(r"[ _]\d+-\d+$", "", case)


def _share(results: Sequence[CaseResult | InvarianceResult]) -> doc.Share:
    return doc.Share(worst([result.verdict for result in results]) if results else "", largest(results))


def _judged(title: str, cases: Sequence[CaseResult]) -> doc.Table:
    """The errors and bounds that decide the verdicts, by case and output, and errors relative to the values."""
    columns = doc.words("Case", "Output", "Verdict")
    columns += doc.numbers("RMS error", "RMS bound", "Max error", "Max bound")
    columns += doc.numbers("Relative", "Least cosine", "Elements", "Not finite")
    groups = doc.rows(
        (
            result.case,
            doc.Name(result.output),
            (doc.Verdict(result.verdict), f" {result.reason}" if result.reason else ""),
            *map(scientific, (result.rms_error, result.rms_bound, result.max_error, result.max_bound)),
            scientific(result.relative),
            _cosine(result.cosine),
            count(result.elements),
            str(result.nonfinite),
        )
        for result in cases
    )
    return doc.Table(f"Errors of {title} against float64", columns, groups, style="metrics")


def _cosine(value: float | None) -> str:
    return NONE if value is None else f"{value:.8f}"


def _further(shown: Has) -> tuple[doc.Column, ...]:
    """The columns of metrics that do not decide verdicts, without those that no case has."""
    columns = doc.numbers(*(ULPS if shown.ulps else ()), CENSUS, *[ARGMAX] * shown.argmax)
    return (*columns, *doc.words(*[PADDED] * shown.padded))


def _further_cells(metrics: CaseResult | Worst, shown: Has) -> tuple[str, ...]:
    return (
        *(ulps(metrics.ulps) if shown.ulps else ()),
        nonfinite(metrics.census) if metrics.census else NONE,
        *[argmax(metrics.argmax)] * shown.argmax,
        *[padded(metrics.padded)] * shown.padded,
    )


def _beside(title: str, cases: Sequence[CaseResult]) -> doc.Table | None:
    """The metrics that do not decide verdicts; None if the report is of a version without them."""
    shown = has(cases)
    if not any((shown.ulps, shown.census, shown.argmax, shown.padded)):
        return None
    groups = doc.rows(
        (
            result.case,
            doc.Name(result.output),
            *_further_cells(result, shown),
        )
        for result in cases
    )
    return doc.Table(
        f"Further metrics of {title}", (*doc.words("Case", "Output"), *_further(shown)), groups, style="metrics"
    )


def _details(title: str, id_: str, judged: RuntimeParity) -> doc.Folded:
    """All metrics of one runtime or form."""
    most = largest((*judged.cases, *judged.invariance))
    summary: tuple[doc.Line, ...] = (doc.Span(doc.Name(title), "what"), " ", doc.Verdict(judged.verdict))
    if most is not None:
        summary = (*summary, " ", doc.Span(f"at most {times(most)} of a bound", "quiet"))
    facts = f"Precision plan {judged.plan or NONE}. Ran: {ran(judged.ran)}."
    blocks: list[doc.Block] = [doc.Text(f"{facts} {judged.reason}" if judged.reason else facts)]
    if judged.cases:
        blocks += filter(None, (_judged(title, judged.cases), _beside(title, judged.cases)))
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
        columns = doc.words("Comparison", "Output", "Verdict")
        columns += doc.numbers("RMS difference", "RMS bound", "Max difference", "Max bound")
        caption = f"Padding invariance of {title}: what differs when padding alone differs"
        blocks.append(doc.Table(caption, columns, pairs, style="metrics"))
    return doc.Folded(summary, tuple(blocks), id_)


def _worst(report: ParityReport) -> Iterator[doc.Block]:
    """The worst of each metric by runtime and form, for formats without room for all."""
    named: list[tuple[doc.Line, Sequence[CaseResult]]] = [
        (doc.Name(key) if kind == "runtime" else (f"{kind} ", doc.Name(key)), groups.cases)
        for kind, _, members in _members(report)
        for key, groups in members.items()
        if groups.cases
    ]
    if not named:
        return
    shown = has(case for _, cases in named for case in cases)
    columns = (*doc.words("Runtime or form"), *doc.numbers("Relative", "Least cosine"), *_further(shown))
    worst = [(label, worst_metrics(cases)) for label, cases in named]
    groups = doc.rows(
        (label, scientific(metrics.relative), _cosine(metrics.cosine), *_further_cells(metrics, shown))
        for label, metrics in worst
    )
    lead = f"The worst of each metric over all cases and outputs that could be compared; counts are sums. {LEGEND} "
    where = (doc.Name("parity.json"), " has each case and output; so has the page, ", doc.Name("report.html"))
    yield doc.Text((lead, *where, ", where it folds out."))
    yield doc.Table("The worst of each metric", columns, groups)


def section(report: ParityReport | None, folder: str) -> Iterator[doc.Block]:
    """The matrix, the notes, and every metric on demand."""
    if report is None:
        yield doc.pending(f"attnport check {folder}")
        return
    yield doc.Text(BOUND)
    yield _matrix(report)
    if report.notes:
        yield doc.Bullets(report.notes)
    members = [(kind, *member) for kind, _, members in _members(report) for member in enumerate(members.items())]
    folded = [
        _details(key if kind == "runtime" else f"form {key}", f"parity-{kind}-{place}", result)
        for kind, place, (key, result) in members
    ]
    legend = [doc.Text(LEGEND, "quiet")] if folded else []
    yield doc.Only("page", (doc.Text("All metrics", "label"), *legend, *folded))
    failed = [(doc.Name(key), f": {result.reason}") for _, _, (key, result) in members if result.verdict == "FAIL"]
    yield doc.Only("markdown", (*([doc.Bullets(tuple(failed))] if failed else []), *_worst(report)))
