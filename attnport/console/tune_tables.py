"""What `tune` prints: every candidate with its time and its score, and what to do with the chosen one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.artifacts import TuneReport


def show_tune(report: TuneReport) -> Iterator[doc.Block]:
    """A table of candidates, the chosen one first; the reasons below it."""
    shapes = list(dict.fromkeys(shape for one in report.candidates for shape in one.ms))
    several = len({one.threads for one in report.candidates}) > 1
    timed = [f"{cells.short_shape(shape)} ms" for shape in shapes]
    head = ("form", *(("threads",) if several else ()), *timed, "metric", "verdict")
    rows: list[tuple[doc.Line, ...]] = []
    for one in report.candidates:
        times = (f"{one.ms[shape]:.3g}" if shape in one.ms else "" for shape in shapes)
        drop = "" if one.drop is None else f"{-one.drop:+.2%}"
        verdict = doc.Verdict(one.verdict, "pass" if one.verdict == "chosen" else "quiet")
        rows.append((one.form, *((str(one.threads),) if several else ()), *times, drop, verdict))
    columns = cells.columns(*head, right=(*timed, "threads", "metric"), whole=("form", "verdict"))
    yield doc.Table("tune", columns, doc.rows(rows))
    yield cells.notes({one.form: one.reason for one in report.candidates if one.reason})
    yield from cells.warnings(report.notes)
    if report.metric:
        yield from cells.quiet(
            f"metric: {report.metric}, against float32; a fall of {report.max_drop:.2%} is allowed in int8"
        )
    if report.chosen is None:
        yield doc.Text("nothing is chosen: no candidate was timed and within the bound")
        return
    chosen = report.chosen
    threads = f"{chosen.threads} thread{'' if chosen.threads == 1 else 's'}"
    yield doc.Text(("chosen: ", doc.Span(chosen.form, "strong"), f", {threads}; embed it:"))
    yield doc.Commands((f"  attnport bundle FOLDER -o app/ --form {chosen.form}",))
