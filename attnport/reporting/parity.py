"""The parity section: every runtime and form by every case, then all metrics of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnport.artifacts import CaseResult, ParityReport, RuntimeParity
from attnport.reporting.facts import BOUND, Cell, matrix, ran, times
from attnport.reporting.markup import (
    Html,
    details,
    el,
    join,
    name,
    number,
    over_numbers,
    pending,
    row,
    table,
    text,
    verdict,
)
from attnport.reporting.measures import NONE, count, largest_share, scientific
from attnport.reporting.metrics import ARGMAX, CENSUS, LEGEND, PADDED, ULPS, argmax, has, nonfinite, padded, ulps


def _cell(cell: Cell) -> Html:
    """The worst of some results: its verdict, and how much of the bound it takes."""
    if cell.verdict is None:
        return el("td", NONE, class_="m")
    largest = cell.share
    full = 100 if largest is None or not math.isfinite(largest) else min(100, round(100 * largest))
    kind = {"PASS": "pass", "FAIL": "fail"}.get(cell.verdict, "skip")
    bar = el("span", el("i", style=f"width:{full}%"), class_="bar", aria_hidden="true")
    value = None if largest is None else f"{largest:.6g}"
    return el(
        "td", verdict(cell.verdict), el("span", times(largest), class_="r"), bar, class_=f"m {kind}", data_v=value
    )


def _matrix(report: ParityReport) -> Html:
    """Verdict and largest part of the bound, by runtime or form and by case."""
    found = matrix(report)
    columns = [
        join((case, el("span", f"{batches} batches", class_="sub") if batches > 1 else None))
        for case, batches in found.columns
    ]

    def group(title: str, kind: str) -> Html | None:
        members = [each for each in found.rows if each.kind == kind]
        if not members:
            return None
        rows = [el("tr", el("th", title, scope="rowgroup", colspan=len(columns) + 2), class_="group")]
        for index, each in enumerate(members):
            heading = el("a", name(each.key), href=f"#parity-{kind}-{index}")
            if each.cells:
                rows.append(row(heading, verdict(each.verdict), *map(_cell, each.cells)))
            else:
                why = el("td", el("span", each.reason, class_="why"), colspan=len(columns) or None)
                rows.append(row(heading, verdict(each.verdict), *([why] if columns else []), class_="skipped"))
        return el("tbody", *rows)

    bodies = (
        group("Runtimes, each on its own form", "runtime"),
        group("Lowered forms, run numerically without their target", "form"),
    )
    caption = "Largest error as a part of its bound, by case (1 is the limit)"
    return table(caption, ["Runtime or form", "Verdict", *columns], [body for body in bodies if body], class_="matrix")


def _errors(error: float | None, bound: float) -> tuple[Html, Html]:
    return number(scientific(error)), number(scientific(bound))


def _judged(title: str, cases: Sequence[CaseResult]) -> Html:
    """What the verdicts follow from, by case and output, and the errors in relation to the values."""
    head = ["Case", "Output", "Verdict", *over_numbers("RMS error", "RMS bound", "Max error", "Max bound")]
    head += over_numbers("Relative", "Least cosine", "Elements", "Not finite")
    rows = (
        row(
            result.case,
            name(result.output),
            join((verdict(result.verdict), text(f" {result.reason}") if result.reason else None)),
            *_errors(result.rms_error, result.rms_bound),
            *_errors(result.max_error, result.max_bound),
            number(scientific(result.relative)),
            number(NONE if result.cosine is None else f"{result.cosine:.8f}"),
            number(count(result.elements)),
            number(result.nonfinite),
        )
        for result in cases
    )
    return table(f"Errors of {title} against float64", head, [el("tbody", *rows)], class_="metrics")


def _beside(title: str, cases: Sequence[CaseResult]) -> Html | None:
    """What no verdict follows from; what no case has is no column. None where the report is older than these."""
    shown = has(cases)
    if not any((shown.ulps, shown.census, shown.argmax, shown.padded)):
        return None
    head = ["Case", "Output", *over_numbers(*(ULPS if shown.ulps else ()), CENSUS, *[ARGMAX] * shown.argmax)]
    head += [PADDED] * shown.padded
    rows = (
        row(
            result.case,
            name(result.output),
            *(map(number, ulps(result.ulps)) if shown.ulps else ()),
            number(NONE if result.census is None else nonfinite(result.census)),
            *[number(argmax(result.argmax))] * shown.argmax,
            *[padded(result.padded)] * shown.padded,
        )
        for result in cases
    )
    return table(f"Further metrics of {title}", head, [el("tbody", *rows)], class_="metrics")


def _details(title: str, id_: str, found: RuntimeParity) -> Html:
    """All metrics of one runtime or form."""
    largest = largest_share(found)
    summary = join(
        (
            el("span", name(title), class_="what"),
            verdict(found.verdict),
            el("span", f"at most {times(largest)} of a bound", class_="quiet") if largest is not None else None,
        ),
        " ",
    )
    facts = [f"Precision plan {found.plan or NONE}. Ran: {ran(found.ran)}."]
    if found.reason:
        facts.append(found.reason)
    parts: list[Html] = [el("p", " ".join(facts))]
    if found.cases:
        parts += [part for part in (_judged(title, found.cases), _beside(title, found.cases)) if part]
    if found.invariance:
        rows = [
            row(
                result.comparison,
                name(result.output),
                verdict(result.verdict),
                *_errors(result.rms_difference, result.rms_bound),
                *_errors(result.max_difference, result.max_bound),
            )
            for result in found.invariance
        ]
        head: list[object] = ["Comparison", "Output", "Verdict"]
        head += over_numbers("RMS difference", "RMS bound", "Max difference", "Max bound")
        caption = f"Padding invariance of {title}: what differs when padding alone differs"
        parts.append(table(caption, head, [el("tbody", *rows)], class_="metrics"))
    return details(summary, *parts, id_=id_)


def section(report: ParityReport | None, folder: str) -> Html:
    """The matrix, the notes, and every metric on demand."""
    if report is None:
        return pending(f"attnport check {folder}")
    lead = el("p", BOUND)
    notes = el("ul", *(el("li", note) for note in report.notes), class_="notes") if report.notes else None
    everything = [
        _details(key if kind == "runtime" else f"form {key}", f"parity-{kind}-{index}", found)
        for kind, members in (("runtime", report.runtimes), ("form", report.forms))
        for index, (key, found) in enumerate(members.items())
    ]
    legend = el("p", LEGEND, class_="quiet") if everything else None
    return join((lead, _matrix(report), notes, el("p", "All metrics", class_="label"), legend, *everything))
