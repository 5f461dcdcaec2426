"""What `tune` prints: every candidate with its time and its score, and what to do with the chosen one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.reporting import document as doc
from attnport.reporting.tuning import lines, meaning, workloads

if TYPE_CHECKING:
    from attnport.artifacts import TuneReport


def show_tune(report: TuneReport) -> Iterator[doc.Block]:
    """A table of candidates, the chosen one first; the reasons below it."""
    shapes = workloads(report)
    numbers = ("threads", *(f"{cells.short_shape(shape)} ms" for shape in shapes), "metric")
    columns = cells.columns("form", *numbers, "verdict", right=numbers, whole=("form", "verdict"))
    yield doc.Table("tune", columns, doc.rows(lines(report, shapes)))
    yield cells.notes({one.form: one.reason for one in report.candidates if one.reason})
    yield from cells.warnings(report.notes)
    if report.metric:
        yield from cells.quiet(meaning(report))
    if report.chosen is None:
        yield doc.Text("nothing is chosen: no candidate was timed and within the bound")
        return
    chosen = report.chosen
    yield doc.Text(("chosen: ", doc.Span(chosen.form, "strong"), f", threads={chosen.threads}; embed it:"))
    yield doc.Commands((f"  attnport bundle FOLDER -o app/ --form {chosen.form}",))
