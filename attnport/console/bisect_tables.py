"""How a search for a divergence is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.parity_tables import show_parity
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.parity.bisect import Bisected
    from attnport.parity.searching import SearchResult

_MOST_NAMES = 4


def show_bisected(found: Bisected) -> Iterator[doc.Block]:
    """The parity report, and for each runtime or form that failed the layer from which on it is wrong."""
    yield from show_parity(found.parity)
    if not found.findings:
        yield doc.Text("bisect: nothing failed, so there is nothing to search")
    for finding in found.findings:
        yield doc.Text("")
        yield from _finding(finding)


def _finding(found: SearchResult) -> Iterator[doc.Block]:
    if found.reason:
        yield doc.Text((doc.Span(f"bisect: {found.subject}", "strong"), f": nothing found: {found.reason}"))
        return
    where = doc.Span(found.module or "the outermost module", "fail")
    yield doc.Text((doc.Span(f"bisect: {found.subject} goes wrong in ", "strong"), where))
    yield doc.Text(f"  first diverging tensor: {found.tensor}, made by {_some(found.between)}")
    fine = f"{_some(found.fine)} (measured)" if found.fine else "the inputs and weights"
    yield doc.Text(f"  fine before it: {fine}")
    count = len(found.samples) + len(found.elsewhere)
    yield doc.Text(f"  in {len(found.samples)} of {count} failing cases tried: {_some(found.samples)}")
    yield from _readings(found)
    if found.odd:
        odd = doc.Span(found.odd, "strong")
        yield doc.Text(("  odd one out: ", odd, "; the others of its precision agree"))
    elsewhere = (f"case {case} ends at {tensor} instead" for case, tensor in found.elsewhere.items())
    fusion = found.fusion or "marking outputs changed nothing that was seen"
    notes = (*elsewhere, *found.notes, f"{found.runs} probe runs; {fusion}")
    yield doc.Bullets(tuple(doc.Span(note, "quiet") for note in notes))


def _readings(found: SearchResult) -> Iterator[doc.Block]:
    columns = cells.columns(
        *("runtime", "verdict", "RMS error", "bound", "max error", "bound"),
        right=("RMS error", "bound", "max error"),
        whole=("verdict", "RMS error", "bound", "max error"),
    )
    rows: Iterator[tuple[doc.Line, ...]] = (
        (
            row.subject,
            doc.Verdict(row.verdict),
            *map(_number, (row.rms_error, row.rms_bound, row.max_error, row.max_bound)),
        )
        for row in found.readings
    )
    yield doc.Table(f"errors there, case {found.sample}", columns, doc.rows(rows))
    yield cells.notes({row.subject: row.reason for row in found.readings if row.rms_error is None and row.reason})


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
