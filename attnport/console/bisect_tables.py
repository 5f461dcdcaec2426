"""What `check --bisect` prints."""

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
_MOST_OPERATORS = 12


def show_bisected(bisected: Bisected) -> Iterator[doc.Block]:
    """The parity report, and for each runtime or form that failed the layer where it goes wrong."""
    yield from show_parity(bisected.parity)
    if not bisected.findings:
        yield doc.Text("bisect: nothing failed, so there is nothing to search")
    for finding in bisected.findings:
        yield doc.Text("")
        yield from _finding(finding)


def annotated(bisected: Bisected) -> Iterator[tuple[str, str]]:
    """A title and a text for each runtime or form that failed, as annotations of a CI system."""
    for result in bisected.findings:
        if result.reason:
            yield f"bisect: {result.subject}", f"nothing found: {result.reason}"
        else:
            yield f"bisect: {result.subject} goes wrong in {_where(result)}", "; ".join(_place(result))


def _where(result: SearchResult) -> str:
    return result.module or "the outermost module"


def _place(result: SearchResult) -> tuple[str, ...]:
    """What diverges first, behind what, and in how many cases."""
    told = f" ({result.difference})" if result.difference else ""
    fine = f"{_some(result.fine)} (measured)" if result.fine else "the inputs and weights"
    count = len(result.samples) + len(result.elsewhere)
    return (
        f"first diverging tensor: {result.tensor}, made by {_last(result.between)}{told}",
        f"fine before it: {fine}",
        f"in {len(result.samples)} of {count} failing cases tried: {_some(result.samples)}",
    )


def _finding(result: SearchResult) -> Iterator[doc.Block]:
    if result.reason:
        yield doc.Text((doc.Span(f"bisect: {result.subject}", "strong"), f": nothing found: {result.reason}"))
        return
    where = doc.Span(_where(result), "fail")
    yield doc.Text((doc.Span(f"bisect: {result.subject} goes wrong in ", "strong"), where))
    for line in _place(result):
        yield doc.Text(f"  {line}")
    yield from _readings(result)
    if result.odd:
        odd = doc.Span(result.odd, "strong")
        yield doc.Text(("  odd one out: ", odd, "; the others of its precision agree"))
    elsewhere = (f"case {case} ends at {tensor} instead" for case, tensor in result.elsewhere.items())
    fusion = result.fusion or "marking outputs changed no measured result"
    notes = (*elsewhere, *result.notes, f"{result.runs} probe runs; {fusion}")
    yield doc.Bullets(tuple(doc.Span(note, "quiet") for note in notes))


def _readings(result: SearchResult) -> Iterator[doc.Block]:
    if result.difference:
        of_integers = cells.columns("runtime", "verdict", "elements", whole=("verdict",))
        read = ((row.subject, doc.Verdict(row.verdict), row.reason) for row in result.readings)
        yield doc.Table(f"elements there, case {result.sample}", of_integers, doc.rows(read))
        return
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
        for row in result.readings
    )
    yield doc.Table(f"errors there, case {result.sample}", columns, doc.rows(rows))
    yield cells.notes({row.subject: row.reason for row in result.readings if row.rms_error is None and row.reason})


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _last(operators: tuple[str, ...]) -> str:
    """Operators in the order of the graph; of many the last, which are the nearest to the tensor."""
    more = len(operators) - _MOST_OPERATORS
    return (f"{more} operators, then " if more > 0 else "") + ", ".join(operators[-_MOST_OPERATORS:])
