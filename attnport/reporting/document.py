"""What is shown of a value, independent of the format: text, tables, lists and charts; and how numbers are written.

`blocks` describes a value of any type that has a description: it stands beside the type, or in the file of this folder
about its subject. `html` renders blocks to HTML, `markdown` to Markdown, and `console.terminal` to a terminal. Text is
never markup: each renderer escapes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Literal

from attnport.artifacts import Interval

if TYPE_CHECKING:
    import numpy as np

NONE = "–"
"""A missing value."""


@dataclass(frozen=True)
class Name:
    """An identifier: a runtime, a file, a tensor."""

    text: str


@dataclass(frozen=True)
class Code:
    """A command or a value in the form that a program takes; `title` is its long form."""

    text: str
    title: str | None = None


@dataclass(frozen=True)
class Verdict:
    """A verdict or a state; `style` is its look if it is not a parity verdict."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Span:
    """Text with a style of the page; styles in `BELOW` put it below the text before it, or after a semicolon."""

    line: Line
    style: str = ""
    link: str = ""


@dataclass(frozen=True)
class Share:
    """The worst verdict of some results, and the largest part of a bound that they take; `note` says of how many."""

    verdict: str
    share: float | None
    note: str = ""


@dataclass(frozen=True)
class Best:
    """The best number of its group."""

    text: str


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval. The page also draws it, on a logarithmic axis that the table shares.

    Attributes:
        ends: Low, middle and high.
        within: The ends of the axis.
        style: `faster`, `slower` or `same`.
    """

    text: str
    ends: tuple[float, float, float]
    within: tuple[float, float]
    style: str


Part = str | Name | Code | Verdict | Span | Share | Best | Ratio
Line = Part | tuple["Line", ...]
"""The content of a line or a cell."""
BELOW = frozenset({"sub", "how", "why"})
_NOTHING: tuple[Line, ...] = (NONE, "", Share("", None))


@dataclass(frozen=True)
class Column:
    """A column of a table; with `number` it is aligned to the right, and with `whole` it is not broken into lines."""

    heading: Line
    number: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Row:
    """A row whose first cell is its heading; `reason` is shown in place of missing cells, or beside the verdict."""

    cells: tuple[Line, ...]
    reason: str = ""

    @property
    def reason_at(self) -> int:
        """The number of the cell beside which the reason stands."""
        verdicts = (place for place, cell in enumerate(self.cells) if isinstance(cell, Verdict))
        return next(verdicts, len(self.cells) - 1)


@dataclass(frozen=True)
class Group:
    """Rows of one kind; `short` is the title for a column of titles, in formats without group headings."""

    rows: tuple[Row, ...]
    title: Line = ""
    short: str = ""


@dataclass(frozen=True)
class Table:
    """Rows in groups.

    Attributes:
        groups_are: The heading of the column of group titles.
        style: The style on the page.
    """

    caption: Line
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    groups_are: str = ""
    style: str | None = None


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    line: Line
    style: str | None = None


@dataclass(frozen=True)
class Bullets:
    """A list; with `anchor`, its items are numbered and can be linked to. `level` is how far it is indented."""

    items: tuple[Line, ...]
    anchor: str = ""
    level: int = 1


@dataclass(frozen=True)
class Pairs:
    """Terms and their descriptions."""

    items: tuple[tuple[Line, Line], ...]
    style: str | None = None


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    lines: tuple[str, ...]
    label: Line = ""


@dataclass(frozen=True)
class Folded:
    """A part that the page opens on demand."""

    summary: Line
    blocks: Iterable[Block]
    id_: str | None = None


BOUND = "bound"
"""How the name of a line begins that is a bound and no runtime's."""


@dataclass(frozen=True)
class Series:
    """Lines over shared places.

    Attributes:
        title: What is the same for all values.
        axis: The kind of places.
        places: Their names, in order.
        lines: Values by runtime; None for a missing value.
        sizes: The places as numbers if they are sizes; otherwise empty.
    """

    title: str
    axis: str
    places: tuple[str, ...]
    lines: Mapping[str, tuple[float | None, ...]]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lines:
    """Charts of lines along an axis, or their numbers as tables."""

    charts: tuple[LineChart, ...]


@dataclass(frozen=True)
class LineChart:
    """A chart of `Lines`: the name of its values, and how to write one."""

    series: Series
    what: str
    show: Callable[[float | None], str]

    def table(self) -> Table:
        """The values as a table, with a row for each place."""
        series = self.series
        cells: Iterator[tuple[Line, ...]] = (
            (Name(place), *(self.show(line[index]) for line in series.lines.values()))
            for index, place in enumerate(series.places)
        )
        kept = f" at {series.title}" if series.sizes and series.title else ""
        heading = series.axis if series.sizes else series.axis.capitalize()
        caption = f"{self.what} by {series.axis}{kept}"
        return Table(caption, (Column(heading), *numbers(*series.lines)), rows(cells))


@dataclass(frozen=True)
class Heatmap:
    """One attention's weights.

    Attributes:
        queries: The S tokens that attend.
        keys: The T tokens that are attended to.
        weights_HST: Weights in 0..1; every row sums to 1.
        hidden_ST: True where the mask hides a key from a query.
    """

    attention: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights_HST: np.ndarray[Any, Any]  # noqa: N815 - the shape suffix
    hidden_ST: np.ndarray[Any, Any]  # noqa: N815 - the shape suffix


@dataclass(frozen=True)
class Maps:
    """The attention weights of a model.

    Attributes:
        inputs: What the model read.
        quoted: Whether that is a sentence of the user's.
        note: Why there are no heatmaps.
    """

    heatmaps: Sequence[Heatmap] = ()
    inputs: str = ""
    quoted: bool = False
    note: str = ""


@dataclass(frozen=True)
class Only:
    """Blocks for the page only, or for Markdown only."""

    where: Literal["page", "markdown"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Card:
    """A title and what it is about, in a few lines."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Cards:
    """Cards side by side."""

    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Aside(Card):
    """A card of the page's width, with its title at the side."""

    style: str = ""


Block = Table | Text | Bullets | Pairs | Commands | Folded | Lines | Maps | Only | Cards | Aside


Detail = Literal["brief", "whole", "page"]
"""How much is shown: what fits a screen, every table of the terminal, or all that the page and Markdown have."""


@singledispatch
def blocks(value: Any, detail: Detail = "brief") -> Iterable[Block]:
    """Describes a value.

    Raises:
        TypeError: nothing describes values of its type.
    """
    raise TypeError(f"nothing says how {type(value).__name__} is shown")


@dataclass(frozen=True)
class Section:
    """A part of the report; `key` is the target of links to it."""

    key: str
    title: str
    blocks: Iterable[Block]


@dataclass(frozen=True)
class Document:
    """A page or a file of its own.

    Attributes:
        facts: What the title stands for, in a line.
        end: The last line; "" for none.
    """

    title: str
    facts: tuple[Line, ...]
    head: tuple[Block, ...]
    sections: tuple[Section, ...]
    end: str = ""


def columns(*headings: Line, right: Iterable[str] = (), whole: Iterable[str] = ()) -> tuple[Column, ...]:
    """Columns of a table; those in `right` are numbers, and those in `whole` are never broken into lines."""
    of_numbers, unbroken = set(right), set(whole)
    return tuple(Column(heading, heading in of_numbers, heading in unbroken) for heading in headings)


def notes(texts: Mapping[str, str]) -> Bullets:
    """Notes below a table, as `name: text`; names with the same text share a line."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return Bullets(tuple((Span(listed(map(Name, those)), "strong"), f": {text}") for text, those in names.items()))


def warnings(texts: Iterable[str], label: str = "note") -> Iterable[Text]:
    """Notes that a reader should not miss, each on a line."""
    return (Text(f"{label}: {text}", "miss") for text in texts)


def quiet(*lines: str) -> Iterable[Text]:
    """Explanations, such as of columns, each on a line."""
    return (Text(line, "quiet") for line in lines)


def numbers(*headings: Line) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(heading, number=True) for heading in headings)


def rows(cells_of_rows: Iterable[tuple[Line, ...]]) -> tuple[Group, ...]:
    """Rows without groups."""
    return (Group(tuple(Row(cells) for cells in cells_of_rows)),)


def merged(cells_of_rows: Iterable[tuple[Line, ...]]) -> Iterator[tuple[Line, ...]]:
    """Adjacent rows that differ only in their first cell as one; it then has both names, or the first and the last."""
    for rest, alike in itertools.groupby(cells_of_rows, key=lambda cells: cells[1:]):
        yield together([cells[0] for cells in alike]), *rest


def together(names: Sequence[Line]) -> Line:
    """The names of what is alike: one or two, or how many, the first and the last."""
    return listed(names) if len(names) < 3 else (f"{len(names)}: ", names[0], " to ", names[-1])


def filled(table: Table) -> Table:
    """The table without the columns in which no row has a value."""
    width = len(table.columns)
    rows = [row for group in table.groups for row in group.rows if len(row.cells) == width]
    kept = [place for place in range(width) if not rows or any(row.cells[place] not in _NOTHING for row in rows)]

    def short(row: Row) -> Row:
        return replace(row, cells=tuple(row.cells[place] for place in kept)) if len(row.cells) == width else row

    groups = tuple(replace(group, rows=tuple(map(short, group.rows))) for group in table.groups)
    return replace(table, columns=tuple(table.columns[place] for place in kept), groups=groups)


def listed(parts: Iterable[Line], separator: str = ", ") -> Line:
    """Parts with a separator between them."""
    joined: list[Line] = []
    for part in parts:
        joined += [separator, part] if joined else [part]
    return tuple(joined)


def pending(command: str) -> Text:
    """The text for a stage that has not run."""
    return Text(("Not run yet: ", Code(command)), "pending")


def scientific(value: float | None) -> str:
    """`1.23e-7`."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def significant(value: float | None) -> str:
    """`0.0123`, `1.23`, `123`, `12 300`: three significant digits, thousands separated by a narrow space."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.2e}".partition("e")[2])  # of the rounded value: 99.96 counts as 100
    places = 2 - exponent
    return f"{round(value, places):,.{max(0, places)}f}".replace(",", "\u202f")


def count(value: int | None) -> str:
    """A whole number, thousands separated by a narrow space."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def milliseconds(value_ns: float | None) -> str:
    """Nanoseconds as milliseconds."""
    return significant(None if value_ns is None else value_ns / 1e6)


def mebibytes(value_bytes: float | None) -> str:
    """Bytes as mebibytes (2^20)."""
    return significant(None if value_bytes is None else value_bytes / 2**20)


def interval(of: Interval) -> str:
    """`0.62 [0.60, 0.64]`: the middle of a ratio and its ends, with three decimals where two are too few."""
    low, middle, high = of
    digits = 3 if high - low < 0.1 * middle and middle < 10 else 2
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
