"""How a search for a divergence is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.parity_tables import show_parity

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.parity.bisect import Bisected
    from attnport.parity.searching import SearchResult

_MOST_NAMES = 4


def show_bisected(console: Console, found: Bisected) -> None:
    """The parity report, and for each runtime or form that failed the layer from which on it is wrong."""
    show_parity(console, found.parity)
    if not found.findings:
        console.print("bisect: nothing failed, so there is nothing to search")
    for finding in found.findings:
        console.print()
        _finding(console, finding)


def _finding(console: Console, found: SearchResult) -> None:
    from rich.padding import Padding

    subject = cells.plain(found.subject)
    if found.reason:
        console.print(f"[bold]bisect: {subject}[/]: nothing found: {cells.plain(found.reason)}")
        return
    where = cells.plain(found.module or "the outermost module")
    console.print(f"[bold]bisect: {subject} goes wrong in [red]{where}[/][/]")
    made = f"{found.tensor}, made by {_some(found.between)}"
    console.print(f"  first diverging tensor: {cells.plain(made)}")
    fine = f"{_some(found.fine)} (measured)" if found.fine else "the inputs and weights"
    console.print(f"  fine before it: {cells.plain(fine)}")
    count = len(found.samples) + len(found.elsewhere)
    console.print(f"  in {len(found.samples)} of {count} failing cases tried: {cells.plain(_some(found.samples))}")
    _readings(console, found)
    if found.odd:
        console.print(f"  odd one out: [bold]{cells.plain(found.odd)}[/]; the others of its precision agree")
    elsewhere = [f"case {case} ends at {tensor} instead" for case, tensor in found.elsewhere.items()]
    fusion = found.fusion or "marking outputs changed nothing that was seen"
    for note in (*elsewhere, *found.notes, f"{found.runs} probe runs; {fusion}"):
        console.print(Padding(cells.plain(note), (0, 0, 0, 2)), style="dim")


def _readings(console: Console, found: SearchResult) -> None:
    table = cells.table(
        f"errors there, case {cells.plain(found.sample)}",
        "runtime",
        "verdict",
        "RMS error",
        "bound",
        "max error",
        "bound",
        right=("RMS error", "bound", "max error"),
        whole=("verdict", "RMS error", "bound", "max error"),
    )
    for row in found.readings:
        numbers = (row.rms_error, row.rms_bound, row.max_error, row.max_bound)
        shown = ["" if number is None else f"{number:.2e}" for number in numbers]
        table.add_row(cells.plain(row.subject), cells.verdict(row.verdict), *shown)
    console.print(table)
    cells.notes(console, {row.subject: row.reason for row in found.readings if row.rms_error is None and row.reason})


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
