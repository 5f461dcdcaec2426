"""Renders a report's document for a terminal: tables within 80 columns, notes below them, verdicts in colour."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attnport.console.arguments import readable
from attnport.console.streams import no_command
from attnport.reporting import document as doc
from attnport.reporting import report  # noqa: F401  # it and what it imports register their values
from attnport.reporting.document import NONE
from attnport.reporting.facts import times
from attnport_bundle.errors import escape_all

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH = 80
_STYLES = {
    "PASS": "green",
    "FAIL": "bold red",
    "NOT_RUN": "yellow",
    "done": "green",
    "failed": "bold red",
    "pass": "green",
    "fail": "bold red",
    "miss": "yellow",
    "skip": "yellow",
    "strong": "bold",
    "quiet": "dim",
}
"""Colours of verdicts, and of the document's styles."""


def shown(value: Any, detail: doc.Detail = "brief", *, colour: bool = False) -> str:
    """The text that a verb prints for `value`."""
    return render(doc.blocks(value, detail), colour=colour)


def render(blocks: Iterable[doc.Block], *, colour: bool = False, width: int = WIDTH) -> str:
    """Blocks as text, in lines of at most `width` columns."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, force_terminal=colour)
    for block in blocks:
        _print(console, block)
    return "".join(f"{no_command(line.rstrip())}\n" for line in text.getvalue().splitlines())


def _print(console: Console, block: doc.Block) -> None:
    from rich.padding import Padding

    if isinstance(block, doc.Table):
        for table in _tables(block):
            console.print(table)
        _print(console, _reasons(block))
    elif isinstance(block, doc.Text):
        console.print(text(block.line, block.style))
    elif isinstance(block, doc.Bullets):
        for item in block.items:
            console.print(Padding(text(item), (0, 0, 0, 2 * block.level)))
    elif isinstance(block, doc.Commands):
        for line in block.lines:
            console.print(text(line), soft_wrap=True)
    elif isinstance(block, doc.Folded):
        for part in block.blocks:
            _print(console, part)
    else:
        raise TypeError(f"A terminal cannot show {type(block).__name__}; expected text, a table, a list or commands.")


def _tables(block: doc.Table) -> Iterator[Table]:
    """A table for each group of rows, but for one that has reasons alone."""
    from rich import box
    from rich.table import Table

    for group in block.groups:
        if group.rows and group.title and all(row.reason and len(row.cells) < len(block.columns) for row in group.rows):
            continue
        title = (block.caption, ": ", group.title) if block.caption and group.title else block.caption or group.title
        table = Table(
            title=text(title, "strong") if title else None,
            title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
        )  # fmt: skip
        for column in block.columns:
            justify: Any = "right" if column.number else "left"
            heading = text(column.heading)
            longest = max(map(len, heading.plain.split()), default=0)  # a heading is broken between words alone
            table.add_column(heading, justify=justify, overflow="fold", no_wrap=column.whole, min_width=longest)
        for row in group.rows:
            table.add_row(*("-" if cell == NONE else text(cell) for cell in row.cells))
        yield table


def _reasons(block: doc.Table) -> doc.Bullets:
    """The reasons of rows, which stand below the tables."""
    reasons: dict[str, str] = {}
    for group in block.groups:
        for row in group.rows:
            name = text(row.cells[0]).plain
            name = f"{name}, {group.short}" if reasons.get(name, row.reason) != row.reason else name
            reasons |= {name: row.reason} if row.reason else {}
    return doc.notes(reasons)


def text(line: doc.Line, style: str | None = None) -> Text:
    """A line with its colours, which do not extend to the space around it; its text is never taken as markup."""
    from rich.text import Text

    colour = _STYLES.get(style or "", "")
    if isinstance(line, tuple):
        return Text.assemble(*map(text, line), style=colour)
    if isinstance(line, doc.Verdict):
        return Text.assemble((_plain(line.text), _STYLES.get(line.style or line.text, "")))
    if isinstance(line, doc.Span):
        return text(line.line, line.style)
    if isinstance(line, doc.Share):
        return _share(line)
    return Text.assemble((_plain(line if isinstance(line, str) else line.text), colour))


def _share(cell: doc.Share) -> Text:
    """The number alone where it is within its bound, and behind the verdict otherwise."""
    from rich.text import Text

    if not cell.verdict:
        return Text("-")
    number = "" if cell.share is None else times(cell.share)
    note = f", {cell.note}" if cell.note else ""
    if cell.verdict == "PASS" and number:
        return Text(f"{number}{note}")
    return Text.assemble(text(doc.Verdict(cell.verdict)), f" {number}".rstrip(), note)


def _plain(words: str) -> str:
    """Words with thousands separated by a comma, not by a space that terminals show as a usual one."""
    return escape_all(readable(words.replace("\u202f", ",")))
