"""What `tune` tried: a row for each candidate, with its time, its metric and why it was not chosen."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.artifacts import Candidate, TuneReport
from attnport.reporting import document as doc
from attnport.reporting.facts import short_shape
from attnport.reporting.measures import NONE


@doc.blocks.register(TuneReport)
def tuned(report: TuneReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A table of candidates, the chosen one first, with the reasons of the others; what to do with the chosen one."""
    shapes = list(dict.fromkeys(shape for one in report.candidates for shape in one.ms))
    numbers = ("threads", *(f"{short_shape(shape)} ms" for shape in shapes), "metric")
    columns = doc.columns("form", *numbers, "verdict", right=numbers, whole=("form", "verdict"))
    rows = tuple(
        doc.Row(
            (
                doc.Name(one.form),
                str(one.threads),
                *(f"{one.ms[shape]:.3g}" if shape in one.ms else NONE for shape in shapes),
                change(one),
                doc.Verdict(one.verdict, "pass" if one.verdict == "chosen" else "quiet"),
            ),
            one.reason,
        )
        for one in report.candidates
    )
    yield doc.Table("every candidate, the chosen one first", columns, (doc.Group(rows),))
    yield from doc.warnings(report.notes)
    if report.metric:
        yield from doc.quiet(_meaning(report))
    if report.chosen is None:
        yield doc.Text("nothing is chosen: no candidate was timed and within the bound")
    elif detail != "page":
        chosen = report.chosen
        yield doc.Text(("chosen: ", doc.Span(chosen.form, "strong"), f", threads={chosen.threads}; embed it:"))
        yield doc.Commands((f"  attnport bundle FOLDER -o app/ --form {chosen.form}",))


def change(one: Candidate) -> str:
    """`-0.16%, 184 of 200`: how the metric changes, and how many answers stay the same; "" where nothing was scored."""
    if one.drop is None:
        return ""
    counts = one.score.counts.values() if one.score else ()
    return ", ".join((f"{-one.drop:+.2%}", *(f"{same} of {every}" for same, every in counts)))


def _meaning(report: TuneReport) -> str:
    """What the column of the metric says."""
    kinds = dict.fromkeys(kind for one in report.candidates if one.score for kind in one.score.counts)
    counted = f", and how many {' and '.join(kinds)} stay the same" if kinds else ""
    return f"metric: {report.metric}, against float32{counted}; in integers it may be {report.max_drop:.2%} worse"
