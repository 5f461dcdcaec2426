"""What a report says, whatever it is shown in: sections of text, tables, lists and charts.

`page` renders it to HTML, `markdown` to Markdown, and `console.terminal` to a terminal. Text is text: each renderer
escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnport.artifacts import LatencyReport
from attnport.reporting.heatmap import Heatmap
from attnport.reporting.series import Series


@dataclass(frozen=True)
class Name:
    """An identifier: a runtime, a file, a tensor."""

    text: str


@dataclass(frozen=True)
class Code:
    """A command or a value as a program takes it; `title` is its long form."""

    text: str
    title: str | None = None


@dataclass(frozen=True)
class Verdict:
    """A verdict or a state; `style` is its look where it is not one of parity's."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Span:
    """Words with a style of the page's; those of `BELOW` stand below what is before them, or after a comma."""

    line: Line
    style: str = ""
    link: str = ""


@dataclass(frozen=True)
class Share:
    """The worst verdict of some results, and the largest part of a bound that they take."""

    verdict: str
    share: float | None


@dataclass(frozen=True)
class Best:
    """The best number of its group."""

    text: str


Part = str | Name | Code | Verdict | Span | Share | Best
Line = Part | tuple["Line", ...]
"""What one line or one cell says."""
BELOW = frozenset({"sub", "how", "why"})


@dataclass(frozen=True)
class Column:
    """A column of a table; one of numbers is aligned to the right, and one that is `whole` is not broken into lines."""

    heading: Line
    number: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Row:
    """A row whose first cell is its heading; `reason` takes the place of the cells that are not there."""

    cells: tuple[Line, ...]
    reason: str | None = None


@dataclass(frozen=True)
class Group:
    """Rows of one kind; `short` is what a column has for the title where there is no room for a heading."""

    rows: tuple[Row, ...]
    title: Line = ""
    short: str = ""


@dataclass(frozen=True)
class Table:
    """Rows in groups.

    Attributes:
        groups_are: What the titles of the groups are, for where they stand in a column.
        style: The page's.
        alike: Rows that differ in their heading alone may be shown as one.
    """

    caption: Line
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    groups_are: str = ""
    style: str | None = None
    alike: bool = False


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
    """Terms and what is said of them."""

    items: tuple[tuple[Line, Line], ...]
    style: str


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


@dataclass(frozen=True)
class Lines:
    """Charts of lines along an axis, or their numbers as tables."""

    charts: tuple[LineChart, ...]


@dataclass(frozen=True)
class LineChart:
    """One of `Lines`: what its values are, and how one is written."""

    series: Series
    what: str
    show: Callable[[float | None], str]

    def table(self) -> Table:
        """The values, a row for each place."""
        found = self.series
        cells: Iterator[tuple[Line, ...]] = (
            (Name(place), *(self.show(line[index]) for line in found.lines.values()))
            for index, place in enumerate(found.places)
        )
        kept = f" at {found.title}" if found.sizes and found.title else ""
        heading = found.axis if found.sizes else found.axis.capitalize()
        caption = f"{self.what} by {found.axis}{kept}"
        return Table(caption, (Column(heading), *numbers(*found.lines)), rows(cells))


@dataclass(frozen=True)
class Ratios:
    """A chart of the ratios to the baseline for each workload; the table has their numbers."""

    report: LatencyReport


@dataclass(frozen=True)
class Maps:
    """Attention weights of one sentence; `note` says why there are none."""

    heatmaps: Sequence[Heatmap]
    sentence: str
    note: str


@dataclass(frozen=True)
class Only:
    """What the page alone has room for, or what stands in its place in Markdown."""

    where: Literal["page", "markdown"]
    blocks: tuple[Block, ...]


Block = Table | Text | Bullets | Pairs | Commands | Folded | Lines | Ratios | Maps | Only


@dataclass(frozen=True)
class Section:
    """A part of the report; `key` is what links to it."""

    key: str
    title: str
    blocks: Iterable[Block]


def numbers(*headings: Line) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(heading, number=True) for heading in headings)


def words(*headings: Line) -> tuple[Column, ...]:
    """Columns of text."""
    return tuple(Column(heading) for heading in headings)


def rows(found: Iterable[tuple[Line, ...]]) -> tuple[Group, ...]:
    """Rows that are in no group."""
    return (Group(tuple(Row(cells) for cells in found)),)


def listed(parts: Iterable[Line], separator: str = ", ") -> Line:
    """Parts with a separator between them."""
    found: list[Line] = []
    for part in parts:
        found += [separator, part] if found else [part]
    return tuple(found)


def pairs(found: Mapping[str, str], style: str) -> Pairs:
    """A mapping as `Pairs`."""
    return Pairs(tuple(found.items()), style)


def pending(command: str) -> Text:
    """What stands where a stage has not run."""
    return Text(("Not run yet: ", Code(command)), "pending")
