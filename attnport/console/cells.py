"""What tables are made of: a table that fits 80 columns, text that is no markup, verdicts in colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attnport.reporting.markup import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 80
_COLOURS = {"PASS": "green", "FAIL": "bold red", "NOT_RUN": "yellow", "done": "green", "failed": "bold red"}
_MOST_IN_A_CELL = 150


def render(show: Callable[[Console, Any], None], value: Any, *, colour: bool = False, width: int = WIDTH) -> str:
    """What a function of `tables` prints for `value`, in lines of at most `width` columns."""
    import io

    from rich.console import Console

    text = io.StringIO()
    show(Console(file=text, width=width, highlight=False, force_terminal=colour), value)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def table(title: str, *columns: str, right: Sequence[str] = (), whole: Sequence[str] = ()) -> Table:
    """A table; columns of `whole` are never broken into lines."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    return table


def plain(text: object) -> str:
    """Text whose brackets are its own, not markup, and that says nothing to the terminal."""
    from rich.markup import escape

    return escape(printable(str(text)))


def verdict(text: str) -> str:
    """A verdict or status in its colour."""
    colour = _COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else text


def short(text: str) -> str:
    """As much of a text as a cell can hold; the whole of an error stands on stderr."""
    return text if len(text) <= _MOST_IN_A_CELL else f"{text[: _MOST_IN_A_CELL - 1].rstrip()}…"


def notes(console: Console, texts: Mapping[str, str]) -> None:
    """What does not fit a cell: `name: text`, indented below its table; names that share a text share a line."""
    from rich.padding import Padding

    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    for text, those in names.items():
        console.print(Padding(f"[bold]{plain(', '.join(those))}[/]: {plain(text)}", (0, 0, 0, 2)))
