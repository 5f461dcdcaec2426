"""The parity section: every runtime and form by every case, then all metrics of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from attnport.artifacts import CaseResult, InvarianceResult, ParityReport, Ran, RuntimeParity
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
from attnport.reporting.measures import NONE, count, largest_share, scientific, share, significant, worst

INVARIANCE = "padding invariance"


def ran(found: Ran | None) -> str:
    """What really ran, in one line."""
    return ", ".join(part for part in (found.provider, found.device, found.precision) if part) if found else NONE


def _cell(results: Iterable[CaseResult | InvarianceResult]) -> Html:
    """The worst of some results: its verdict, and how much of the bound it takes."""
    found = list(results)
    if not found:
        return el("td", NONE, class_="m")
    judged = worst([result.verdict for result in found])
    shares = [part for result in found if (part := share(result)) is not None]
    largest = max(shares, default=None)
    full = 100 if largest is None or not math.isfinite(largest) else min(100, round(100 * largest))
    kind = {"PASS": "pass", "FAIL": "fail"}.get(judged, "skip")
    bar = el("span", el("i", style=f"width:{full}%"), class_="bar", aria_hidden="true")
    return el("td", verdict(judged), el("span", _times(largest), class_="r"), bar, class_=f"m {kind}")


def _column(case: str) -> str:
    """The matrix column of a case: batches of one text (`sentences 1-32`, `sentences 33-64`) share one."""
    return re.sub(r"[ _]\d+-\d+$", "", case)


def _times(value: float | None) -> str:
    """A part of a bound with two decimals, fewer above ten."""
    if value is None:
        return NONE
    return f"{value:.2f}" if value < 10 else significant(value)


def _matrix(report: ParityReport) -> Html:
    """Verdict and largest part of the bound, by runtime or form and by case."""
    everything = [*report.runtimes.values(), *report.forms.values()]
    grouped: dict[str, set[str]] = {}
    for result in (result for found in everything for result in found.cases):
        grouped.setdefault(_column(result.case), set()).add(result.case)
    cases = list(grouped)
    invariance = any(found.invariance for found in everything)
    columns: list[object] = [
        join((case, el("span", f"{len(members)} batches", class_="sub") if len(members) > 1 else None))
        for case, members in grouped.items()
    ]
    if invariance:
        columns.append(INVARIANCE)

    def group(title: str, kind: str, members: Mapping[str, RuntimeParity]) -> Html | None:
        if not members:
            return None
        rows = [el("tr", el("th", title, scope="rowgroup", colspan=len(columns) + 2), class_="group")]
        for index, (key, found) in enumerate(members.items()):
            heading = el("a", name(key), href=f"#parity-{kind}-{index}")
            if found.verdict == "NOT_RUN" and not found.cases:
                why = el("td", el("span", found.reason, class_="why"), colspan=len(columns) or None)
                rows.append(row(heading, verdict(found.verdict), *([why] if columns else []), class_="skipped"))
                continue
            cells = [_cell(result for result in found.cases if _column(result.case) == case) for case in cases]
            if invariance:
                cells.append(_cell(found.invariance))
            rows.append(row(heading, verdict(found.verdict), *cells))
        return el("tbody", *rows)

    bodies = (
        group("Runtimes, each on its own form", "runtime", report.runtimes),
        group("Lowered forms, run numerically without their target", "form", report.forms),
    )
    caption = "Largest error as a part of its bound, by case (1 is the limit)"
    return table(caption, ["Runtime or form", "Verdict", *columns], [body for body in bodies if body], class_="matrix")


def _errors(error: float | None, bound: float) -> tuple[Html, Html]:
    return number(scientific(error)), number(scientific(bound))


def _details(title: str, id_: str, found: RuntimeParity) -> Html:
    """All metrics of one runtime or form."""
    largest = largest_share(found)
    summary = join(
        (
            el("span", name(title), class_="what"),
            verdict(found.verdict),
            el("span", f"at most {_times(largest)} of a bound", class_="quiet") if largest is not None else None,
        ),
        " ",
    )
    facts = [f"Precision plan {found.plan or NONE}. Ran: {ran(found.ran)}."]
    if found.reason:
        facts.append(found.reason)
    parts: list[Html] = [el("p", " ".join(facts))]
    if found.cases:
        rows = [
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
            for result in found.cases
        ]
        head = ["Case", "Output", "Verdict", *over_numbers("RMS error", "RMS bound", "Max error", "Max bound")]
        head += over_numbers("Relative", "Least cosine", "Elements", "Not finite")
        parts.append(table(f"Errors of {title} against float64", head, [el("tbody", *rows)], class_="metrics"))
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
        head = ["Comparison", "Output", "Verdict"]
        head += over_numbers("RMS difference", "RMS bound", "Max difference", "Max bound")
        caption = f"Padding invariance of {title}: what differs when padding alone differs"
        parts.append(table(caption, head, [el("tbody", *rows)], class_="metrics"))
    return details(summary, *parts, id_=id_)


def section(report: ParityReport | None, folder: str) -> Html:
    """The matrix, the notes, and every metric on demand."""
    if report is None:
        return pending(f"attnport check {folder}")
    lead = el(
        "p",
        "Every output is compared with a float64 run of the module over its valid elements. The bound is twice the RMS "
        "error of PyTorch eager at the same precision and four times its largest error, plus 4 eps of the reference’s "
        "RMS. The number in a cell is the larger of the two errors divided by its bound.",
    )
    notes = el("ul", *(el("li", note) for note in report.notes), class_="notes") if report.notes else None
    everything = [
        _details(key if kind == "runtime" else f"form {key}", f"parity-{kind}-{index}", found)
        for kind, members in (("runtime", report.runtimes), ("form", report.forms))
        for index, (key, found) in enumerate(members.items())
    ]
    return join((lead, _matrix(report), notes, el("p", "All metrics", class_="label"), *everything))
