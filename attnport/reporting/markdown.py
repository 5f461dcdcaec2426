"""Renders a document as GitHub-flavoured Markdown, with the facts of the page but without its pictures.

Names, reasons and evidence come from models, files and libraries; `escaped` makes sure that they are not markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from attnport.reporting import document as doc
from attnport.reporting.document import NONE
from attnport.reporting.facts import times
from attnport.reporting.markup import printable

_MARKUP = re.compile(r"([\\`*_\[\]|<>~&$]|:(?=//)|(?<=www)\.)")
_AT_START = re.compile(r"((?<=^)[-+#=]|(?<=^\d)[.)]|(?<=^\d\d)[.)])")


def escaped(value: object) -> str:
    """Text escaped so that nothing in it is markup, a border of a table or the end of a line."""
    return _AT_START.sub(r"\\\1", _inline(str(value)).strip())


def _inline(value: str) -> str:
    """As `escaped`, for text inside a line; it keeps spaces at its ends."""
    return _MARKUP.sub(r"\\\1", re.sub(r"\s+", " ", printable(value)))


def code(value: str) -> str:
    """A name as code, or as plain text if it contains a backtick or a border of a table."""
    text = " ".join(printable(value).split())
    return f"`{text}`" if text and not set("`|") & set(text) else escaped(text)


def block(lines: Iterable[str]) -> str:
    """Commands as a fenced block; the fence is longer than any sequence of backticks in them."""
    text = "\n".join(printable(line) for line in lines)
    longest = max((len(backticks) for backticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def bullets(items: Sequence[str], *, numbered: bool = False) -> str:
    """A list of Markdown items."""
    marks = (f"{place}." if numbered else "-" for place in range(1, len(items) + 1))
    return "\n".join(f"{mark} {item}" for mark, item in zip(marks, items, strict=True))


def render(document: doc.Document) -> str:
    """The content of the file."""
    parts = [f"# {escaped(document.title)}", " · ".join(map(line, document.facts)), *paragraphs(document.head)]
    for section in document.sections:
        blocks = list(paragraphs(section.blocks))
        parts += [f"## {section.title}", *blocks] if blocks else []
    parts.append(escaped(document.end))
    return "\n\n".join(part for part in parts if part) + "\n"


def line(value: doc.Line) -> str:
    """A line or a cell."""
    if isinstance(value, tuple):
        joined = ""
        for part in value:
            below = isinstance(part, doc.Span) and part.style in doc.BELOW
            joined += ("; " if below and joined else "") + line(part)
        return joined
    if isinstance(value, doc.Name | doc.Code):
        return code(value.text)
    if isinstance(value, doc.Share):
        note = f", {value.note}" if value.note else ""
        return _inline(f"{value.verdict} {times(value.share)}{note}") if value.verdict else NONE
    if isinstance(value, doc.Span):
        return line(value.line)
    return _inline(value if isinstance(value, str) else value.text)


def _paragraph(value: doc.Line) -> str:
    """A line at the beginning of a line of the file."""
    return _AT_START.sub(r"\\\1", line(value).strip())


def paragraphs(blocks: Iterable[doc.Block]) -> Iterator[str]:
    """Blocks as paragraphs; charts become tables of their numbers, and pictures are left out."""
    for part in blocks:
        if isinstance(part, doc.Text):
            description = _paragraph(part.line)
            yield (
                f"**{description}**"
                if part.style == "big"
                else f"{description}:"
                if part.style == "label"
                else description
            )
        elif isinstance(part, doc.Table):
            yield f"{_paragraph(part.caption)}:"
            yield table(part)
        elif isinstance(part, doc.Bullets):
            yield bullets([_paragraph(item) for item in part.items], numbered=bool(part.anchor))
        elif isinstance(part, doc.Pairs):
            yield bullets(_terms(part))
        elif isinstance(part, doc.Commands):
            yield f"{_paragraph(part.label)}:" if part.label else ""
            yield block(part.lines)
        elif isinstance(part, doc.Folded):
            yield f"{_paragraph(part.summary)}:"
            yield from paragraphs(part.blocks)
        elif isinstance(part, doc.Lines):
            yield from paragraphs([chart.table() for chart in part.charts])
        elif isinstance(part, doc.Only) and part.where == "markdown":
            yield from paragraphs(part.blocks)
        elif isinstance(part, doc.Cards):
            yield bullets([_card(card) for card in part.cards])
        elif isinstance(part, doc.Aside):
            yield f"{escaped(part.title)}:"
            yield from paragraphs(part.blocks)


def _terms(pairs: doc.Pairs) -> list[str]:
    return [f"{_paragraph(term)}: {line(description)}" for term, description in pairs.items]


def _card(card: doc.Card) -> str:
    """The lines of a card in one, and its pairs as items below."""
    words = (
        f"**{line(block.line)}**" if block.style == "big" else line(block.line)
        for block in card.blocks
        if isinstance(block, doc.Text)
    )
    terms = [item for block in card.blocks if isinstance(block, doc.Pairs) for item in _terms(block)]
    return "\n".join((f"{escaped(card.title)}: {'; '.join(words)}".rstrip(": "), *(f"  - {item}" for item in terms)))


def table(block: doc.Table) -> str:
    """A table; the titles of its groups have a column of their own."""
    grouped = bool(block.groups_are)
    head = [*[escaped(block.groups_are)] * grouped, *(line(column.heading) for column in block.columns)]
    aligned = [*[":--"] * grouped, *("--:" if column.number else ":--" for column in block.columns)]
    rows = []
    for group in block.groups:
        cells = [_cells(row, len(block.columns)) for row in group.rows]
        label = [escaped(group.short) if group.short else line(group.title)] * grouped
        rows += [[*label, *row] for row in cells]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, aligned, *rows))


def _cells(row: doc.Row, width: int) -> list[str]:
    """The cells of a row, one for each column; a reason takes the place of missing ones, or is beside the verdict."""
    cells = [line(cell) for cell in row.cells]
    if len(cells) < width:
        cells += [NONE] * (width - len(cells) - 1) + [escaped(row.reason)]
    elif row.reason:
        cells[row.reason_at] += f"; {_inline(row.reason)}"
    return cells
