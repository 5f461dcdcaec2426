"""Renders a report's document for a terminal: tables within 80 columns, notes below them, verdicts in colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attnport.console.arguments import readable
from attnport.console.streams import no_command
from attnport.reporting import document as doc
from attnport.reporting.facts import times
from attnport_bundle.errors import escape_all

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH = 80
Show = Callable[[Any], Iterable[doc.Block]]
"""Makes the blocks that a verb prints for its result."""
_STYLES = {
    "PASS": "green",
    "FAIL": "bold red",
    "NOT_RUN": "yellow",
    "done": "green",
    "failed": "bold red",
    "pass": "green",
    "fail": "bold red",
    "miss": "yellow",
    "strong": "bold",
    "quiet": "dim",
}
"""Colours of verdicts, and of the document's styles."""
_MOST_IN_A_CELL = 150


def short_shape(shape: str) -> str:
    """The name of a workload for the head of a column: `8x128` for `batch=8,seq=128`."""
    import re

    return re.sub(r"(^|,)\w+=", lambda match: "x" if match[1] else "", shape)


def render(show: Show, value: Any, *, colour: bool = False, width: int = WIDTH) -> str:
    """The text that a verb prints for `value`, in lines of at most `width` columns."""
    import io

    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, force_terminal=colour)
    for block in show(value):
        _print(console, block)
    return "".join(f"{no_command(line.rstrip())}\n" for line in text.getvalue().splitlines())


def _print(console: Console, block: doc.Block) -> None:
    from rich.padding import Padding

    if isinstance(block, doc.Table):
        console.print(_table(block))
    elif isinstance(block, doc.Text):
        console.print(text(block.line, block.style))
    elif isinstance(block, doc.Bullets):
        for item in block.items:
            console.print(Padding(text(item), (0, 0, 0, 2 * block.level)))
    elif isinstance(block, doc.Commands):
        for line in block.lines:
            console.print(text(line), soft_wrap=True)
    else:
        raise TypeError(f"A terminal cannot show {type(block).__name__}; expected text, a table, a list or commands.")


def _table(block: doc.Table) -> Table:
    from rich import box
    from rich.table import Table

    title = text(block.caption, "strong") if block.caption else None
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in block.columns:
        justify: Any = "right" if column.number else "left"
        table.add_column(text(column.heading), justify=justify, overflow="fold", no_wrap=column.whole)
    for group in block.groups:
        for row in group.rows:
            table.add_row(*map(text, row.cells))
    return table


def text(line: doc.Line, style: str | None = None) -> Text:
    """A line with its colours, which do not extend to the space around it; its text is never taken as markup."""
    from rich.text import Text

    colour = _STYLES.get(style or "", "")
    if isinstance(line, tuple):
        return Text.assemble(*map(text, line), style=colour)
    if isinstance(line, doc.Verdict):
        return Text.assemble((escape_all(readable(line.text)), _STYLES.get(line.style or line.text, "")))
    if isinstance(line, doc.Span):
        return text(line.line, line.style)
    if isinstance(line, doc.Share):
        return Text.assemble(text(doc.Verdict(line.verdict)), f" {times(line.share)}")
    return Text.assemble((escape_all(readable(line if isinstance(line, str) else line.text)), colour))


def short(text: str) -> str:
    """A text cut to what a cell can hold; stderr has the full text of an error."""
    return text if len(text) <= _MOST_IN_A_CELL else f"{text[: _MOST_IN_A_CELL - 1].rstrip()}…"


def columns(*headings: str, right: Iterable[str] = (), whole: Iterable[str] = ()) -> tuple[doc.Column, ...]:
    """Columns of a table; those in `right` are numbers, and those in `whole` are never broken into lines."""
    numbers, unbroken = set(right), set(whole)
    return tuple(doc.Column(heading, heading in numbers, heading in unbroken) for heading in headings)


def notes(texts: Mapping[str, str]) -> doc.Bullets:
    """Notes below a table, as `name: text`; names with the same text share a line."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return doc.Bullets(tuple((doc.Span(", ".join(those), "strong"), f": {text}") for text, those in names.items()))


def warnings(texts: Iterable[str], label: str = "note") -> Iterable[doc.Text]:
    """Notes that a reader should not miss, each on a line."""
    return (doc.Text(f"{label}: {text}", "miss") for text in texts)


def quiet(*lines: str) -> Iterable[doc.Text]:
    """Explanations, such as of columns, each on a line."""
    return (doc.Text(line, "quiet") for line in lines)
