"""The report as GitHub-flavoured Markdown: the facts of the page without its pictures.

Names, reasons and evidence come from models, files and libraries; `escaped` keeps them from being markup.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from attnport.reporting import document as doc
from attnport.reporting.facts import UNCHECKED, count, failed, fastest_right, not_counted, not_run, tallies, times
from attnport.reporting.findings import Findings
from attnport.reporting.markup import printable
from attnport.reporting.measures import NONE, milliseconds
from attnport.reporting.sections import sections

_MARKUP = re.compile(r"([\\`*_\[\]|<>~&$]|:(?=//)|(?<=www)\.)")
_AT_START = re.compile(r"((?<=^)[-+#=]|(?<=^\d)[.)]|(?<=^\d\d)[.)])")


def escaped(value: object) -> str:
    """Text in which nothing is markup, a table's border or a line's end."""
    return _AT_START.sub(r"\\\1", _inline(str(value)).strip())


def _inline(value: str) -> str:
    """As `escaped`, for what stands in a line: it keeps a space at its ends."""
    return _MARKUP.sub(r"\\\1", re.sub(r"\s+", " ", printable(value)))


def code(value: str) -> str:
    """A name as code; one with a backtick or a table's border as plain text."""
    text = " ".join(printable(value).split())
    return f"`{text}`" if text and not set("`|") & set(text) else escaped(text)


def block(lines: Iterable[str]) -> str:
    """Commands as a fenced block, the fence longer than any in them."""
    text = "\n".join(printable(line) for line in lines)
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def bullets(items: Sequence[str], *, numbered: bool = False) -> str:
    """A list of Markdown items."""
    marks = (f"{place}." if numbered else "-" for place in range(1, len(items) + 1))
    return "\n".join(f"{mark} {item}" for mark, item in zip(marks, items, strict=True))


def render(found: Findings) -> str:
    """Makes the file; what has not run is named with its command."""
    manifest = found.manifest
    dims = [f"{dim.name} {dim.min} to {dim.max}" for dim in manifest.io.dims]
    facts = [code(manifest.source.text), f"opset {manifest.opset}", count(len(manifest.attentions), "attention")]
    parts = [f"# {escaped(manifest.name)}", " · ".join([*facts, *map(escaped, dims)]), _verdict(found)]
    for section in sections(found):
        blocks = list(paragraphs(section.blocks))
        parts += [f"## {section.title}", *blocks] if blocks else []
    parts.append(f"Made by attnport {escaped(manifest.attnport)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def line(value: doc.Line) -> str:
    """What a line or a cell says."""
    if isinstance(value, tuple):
        said = ""
        for part in value:
            below = isinstance(part, doc.Span) and part.style in doc.BELOW
            said += ("; " if below and said else "") + line(part)
        return said
    if isinstance(value, doc.Name | doc.Code):
        return code(value.text)
    if isinstance(value, doc.Share):
        return _inline(f"{value.verdict} {times(value.share)}") if value.verdict else NONE
    if isinstance(value, doc.Span):
        return line(value.line)
    return _inline(value if isinstance(value, str) else value.text)


def _paragraph(value: doc.Line) -> str:
    """A line that begins one of the file's."""
    return _AT_START.sub(r"\\\1", line(value).strip())


def paragraphs(blocks: Iterable[doc.Block]) -> Iterator[str]:
    """Blocks as paragraphs; charts as tables of their numbers, and nothing for what is a picture alone."""
    for found in blocks:
        if isinstance(found, doc.Text):
            said = _paragraph(found.line)
            yield f"**{said}**" if found.style == "big" else f"{said}:" if found.style == "label" else said
        elif isinstance(found, doc.Table):
            yield f"{_paragraph(found.caption)}:"
            yield table(found)
        elif isinstance(found, doc.Bullets):
            yield bullets([_paragraph(item) for item in found.items], numbered=bool(found.anchor))
        elif isinstance(found, doc.Pairs):
            yield bullets([f"{_paragraph(term)}: {line(said)}" for term, said in found.items])
        elif isinstance(found, doc.Commands):
            yield f"{_paragraph(found.label)}:" if found.label else ""
            yield block(found.lines)
        elif isinstance(found, doc.Folded):
            yield f"{_paragraph(found.summary)}:"
            yield from paragraphs(found.blocks)
        elif isinstance(found, doc.Lines):
            yield from paragraphs([chart.table() for chart in found.charts])
        elif isinstance(found, doc.Only) and found.where == "markdown":
            yield from paragraphs(found.blocks)


def table(found: doc.Table) -> str:
    """A table; the titles of its groups stand in a column of their own."""
    grouped = bool(found.groups_are)
    head = [*[escaped(found.groups_are)] * grouped, *(line(column.heading) for column in found.columns)]
    aligned = [*[":--"] * grouped, *("--:" if column.number else ":--" for column in found.columns)]
    rows = []
    for group in found.groups:
        cells = [_cells(row, len(found.columns)) for row in group.rows]
        label = [escaped(group.short) if group.short else line(group.title)] * grouped
        rows += [[*label, *row] for row in (_merged(cells) if found.alike else cells)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, aligned, *rows))


def _cells(row: doc.Row, width: int) -> list[str]:
    """As many cells as there are columns; a reason stands in the last one."""
    cells = [line(cell) for cell in row.cells]
    if len(cells) < width:
        cells += [NONE] * (width - len(cells) - 1) + [escaped(row.reason or "")]
    return cells


def _merged(rows: Sequence[list[str]]) -> list[list[str]]:
    """Rows below each other that differ in their first cell alone, as one: with all of up to two, else both ends."""
    found = []
    for rest, alike in itertools.groupby(rows, key=lambda cells: cells[1:]):
        names = [cells[0] for cells in alike]
        some = ", ".join(names) if len(names) < 3 else f"{len(names)}: {names[0]} to {names[-1]}"
        found.append([some, *rest])
    return found


def _verdict(found: Findings) -> str:
    lines = []
    if found.parity is not None:
        lines.append(f"Parity: **{found.parity.verdict}**, {', '.join(tallies(found.parity))}")
        if wrong := failed(found.parity):
            lines.append(f"Outside: {', '.join(map(code, wrong))}")
    if found.fusion is not None:
        lines.append(
            "Attention fused: " + ", ".join(f"{code(target)} {proof}" for target, proof in found.fusion.targets.items())
        )
    if found.latency is not None:
        for workload, (runtime, row) in fastest_right(found.latency, found.parity).items():
            ratio = f", {row.ratio[1]:.2f} [{row.ratio[0]:.2f}, {row.ratio[2]:.2f}]" if row.ratio else ""
            lines.append(
                f"Fastest, {escaped(workload)}: {code(runtime)}, {milliseconds(row.median_ns)} ms{ratio}, "
                f"{escaped(row.verdict)}{f', {UNCHECKED}' if found.parity is None else ''}"
            )
        for why, names in not_counted(found.latency, found.parity).items():
            lines.append(f"Not counted as fastest: {', '.join(map(code, names))}, {escaped(why)}")
    reasons = not_run(found.parity, found.latency)
    lines += [f"NOT\\_RUN {code(key)}: {escaped(reason)}" for key, reason in reasons.items()]
    return bullets(lines)
