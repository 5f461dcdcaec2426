"""What `tune` tried, for the terminal and the page: a line for each candidate, the chosen one first."""

from __future__ import annotations

from collections.abc import Sequence

from attnport.artifacts import Candidate, TuneReport
from attnport.reporting import document as doc


def section(report: TuneReport) -> tuple[doc.Block, ...]:
    """The section of the page."""
    shapes = workloads(report)
    columns = (
        *doc.words("Form"),
        *doc.numbers("Threads", *(f"{shape}, ms" for shape in shapes), "Metric"),
        *doc.words("Verdict"),
    )
    rows = tuple(map(doc.Row, lines(report, shapes)))
    reasons = tuple(f"{one.form}: {one.reason}" for one in report.candidates if one.reason)
    said = [*reasons, *report.notes, *([meaning(report)] if report.metric else [])]
    return doc.Table("Every candidate, the chosen one first", columns, (doc.Group(rows),)), doc.Bullets(tuple(said))


def workloads(report: TuneReport) -> list[str]:
    """The workloads that were timed."""
    return list(dict.fromkeys(shape for one in report.candidates for shape in one.ms))


def lines(report: TuneReport, shapes: Sequence[str]) -> list[tuple[doc.Line, ...]]:
    """For each candidate its form, threads, ms by workload, change of the metric, and verdict."""
    return [
        (
            one.form,
            str(one.threads),
            *(f"{one.ms[shape]:.3g}" if shape in one.ms else "" for shape in shapes),
            change(one),
            doc.Verdict(one.verdict, "pass" if one.verdict == "chosen" else "quiet"),
        )
        for one in report.candidates
    ]


def change(one: Candidate) -> str:
    """`-0.16%, 184 of 200`: how the metric changes, and how many answers stay the same; "" where nothing was scored."""
    if one.drop is None:
        return ""
    counts = one.score.counts.values() if one.score else ()
    return ", ".join((f"{-one.drop:+.2%}", *(f"{same} of {every}" for same, every in counts)))


def meaning(report: TuneReport) -> str:
    """What the column of the metric says."""
    kinds = dict.fromkeys(kind for one in report.candidates if one.score for kind in one.score.counts)
    counted = f", and how many {' and '.join(kinds)} stay the same" if kinds else ""
    return f"metric: {report.metric}, against float32{counted}; in integers it may be {report.max_drop:.2%} worse"
