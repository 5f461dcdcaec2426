"""Renders a document as one HTML file that needs no other files.

Charts are inline SVG that can be widened without scaling text: their axes are logarithmic, and every position is a
percentage, so that strokes and markers keep their size. Lines differ in marker and dash, not only in colour, and each
chart has a description in words.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnport.reporting import document as doc
from attnport.reporting.document import NONE
from attnport.reporting.facts import times
from attnport.reporting.markup import Html, details, el, join, name, text, verdict

_FOLDER = Path(__file__).parent
INK = (10, 58, 120)
"""The colour of an attention map, opaque for weight 1; the style sheet inverts it on a dark page."""
VEIL = (150, 96, 30, 72)
"""Colour and opacity of hidden pairs."""
IMAGE_BUDGET_BYTES = 1_000_000
"""Beyond this size, whole attentions are left out, so that the page stays below two megabytes."""
_LONG = 400
"""Of a longer reason, the page shows the first sentence, and the rest on demand."""
_FEW_PLACES = 2
"""Of so many, a line says no more than its numbers."""

ROW_PX = 10
HEIGHT_PX = 220
KINDS = 6
"""The number of kinds of lines; a chart with more lines repeats them."""
_MARKS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-4,-4h8v8h-8z", "M0,-5l5,9h-10z", "M0,-5l5,5l-5,5l-5,-5z",
          "M-4,-4l8,8m0,-8l-8,8", "M0,-5v10m-5,-5h10")  # fmt: skip
_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(1 + part / 10 for part in range(90)))
_MOST_TICKS = 6
_MOST_LABELS, _MOST_SLANTED, _FEW = 12, 24, 6


def _asset(file: str) -> Html:
    """A style sheet or script of this package."""
    return Html((_FOLDER / file).read_text(encoding="utf-8"))


def page(document: doc.Document) -> str:
    """HTML without references to other files or hosts.

    Its content security policy allows only the page's own script, whatever the names in it contain.
    """
    shown = [(part.key, part.title, html(part.blocks)) for part in document.sections]
    contents = el("nav", *(el("a", title, href=f"#{key}") for key, title, _ in shown), aria_label="Sections")
    made = (
        el("section", el("h2", title, id_=f"{key}-title"), inside, id_=key, aria_labelledby=f"{key}-title")
        for key, title, inside in shown
    )
    script = _asset("page.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{document.title} · attnport report"),
        el("link", rel="icon", href="data:,"),
        el("style", _asset("style.css")),
    )
    heading = el(
        "header",
        el("p", "attnport report", class_="kicker"),
        el("h1", document.title),
        el("p", join(map(line, document.facts), " · "), class_="origin"),
        html(document.head),
    )
    body = el(
        "body",
        el("a", "Skip to the findings", href="#main", class_="skip-link"),
        heading,
        contents,
        el("main", *made, id_="main", tabindex="-1"),
        el("footer", document.end) if document.end else None,
        el("script", script),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"


def html(blocks: Iterable[doc.Block]) -> Html:
    """Blocks one after the other."""
    return join(map(_block, blocks))


def line(value: doc.Line) -> Html:
    """A line or a cell."""
    if isinstance(value, tuple):
        return join(map(line, value))
    if isinstance(value, doc.Name):
        return name(value.text)
    if isinstance(value, doc.Code):
        return el("code", value.text, title=value.title)
    if isinstance(value, doc.Verdict):
        return el("span", value.text, class_=f"v {value.style}") if value.style else verdict(value.text)
    if isinstance(value, doc.Span):
        inner = line(value.line)
        if value.style == "strong":
            return el("b", inner)
        return el("a", inner, href=value.link) if value.link else el("span", inner, class_=value.style)
    if isinstance(value, str):
        return text(value)
    raise TypeError(f"{type(value).__name__} is a cell of its own, and no part of a line")


def _reasoned(value: doc.Line) -> Html:
    """A line; of a long text at its end, such as a runtime's error, the first sentence, and the rest on demand."""
    *before, last = value if isinstance(value, tuple) else (value,)
    if not isinstance(last, str) or len(last) <= _LONG:
        return line(value)
    first = re.match(r".{40,}?[.;:](?= )", last)
    cut = first.end() if first and first.end() <= _LONG else last.rfind(" ", 0, _LONG) + 1 or _LONG
    return details(join((*map(line, before), last[:cut], " …")), el("div", last[cut:].strip()))


def _block(block: doc.Block) -> Html:
    if isinstance(block, doc.Text):
        return el("p", line(block.line), class_=block.style)
    if isinstance(block, doc.Table):
        return _table(block)
    if isinstance(block, doc.Bullets):
        ids = (f"{block.anchor}-{place}" if block.anchor else None for place in range(1, len(block.items) + 1))
        items = (el("li", _reasoned(item), id_=id_) for item, id_ in zip(block.items, ids, strict=True))
        return el("ol" if block.anchor else "ul", *items, class_="notes")
    if isinstance(block, doc.Pairs):
        items = (el("div", el("dt", line(term)), el("dd", _reasoned(description))) for term, description in block.items)
        return el("dl", *items, class_=block.style)
    if isinstance(block, doc.Commands):
        label = el("p", line(block.label), class_="label") if block.label else None
        return join((label, el("pre", "\n".join(block.lines), class_="commands", tabindex="0")))
    if isinstance(block, doc.Folded):
        return details(line(block.summary), html(block.blocks), id_=block.id_)
    if isinstance(block, doc.Only):
        return html(block.blocks) if block.where == "page" else text("")
    if isinstance(block, doc.Lines):
        return _lines(block)
    if isinstance(block, doc.Maps):
        return _maps(block)
    if isinstance(block, doc.Cards):
        cards = (el("section", el("h2", card.title), html(card.blocks), class_="card") for card in block.cards)
        return el("div", *cards, class_="cards")
    inside = el("div", html(block.blocks))
    return el("section", el("h2", block.title), inside, class_=f"notrun {block.style}".strip())


def _table(block: doc.Table) -> Html:
    width = len(block.columns)
    bodies = []
    for group in block.groups:
        title = el("th", line(group.title), scope="rowgroup", colspan=width) if group.title else None
        heading = el("tr", title, class_="group") if title else None
        bodies.append(el("tbody", heading, *(_row(row, block.columns) for row in group.rows)))
    head = (
        el("th", line(column.heading), scope="col", class_="n" if column.number else None) for column in block.columns
    )
    caption = line(block.caption)
    body = el("table", el("caption", caption), el("thead", el("tr", *head)), *bodies, class_=block.style)
    # Focusable, so that it can also be scrolled with the keyboard.
    return el("div", body, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _row(row: doc.Row, columns: tuple[doc.Column, ...]) -> Html:
    left = len(columns) - len(row.cells)
    why = el("div" if len(row.reason) > _LONG else "span", _reasoned(row.reason), class_="why") if row.reason else None
    cells = [
        _cell(cell, columns[place], why if place == row.reason_at and not left else None)
        for place, cell in enumerate(row.cells[1:], start=1)
    ]
    if left:
        cells.append(el("td", why, colspan=left))
    return el("tr", el("th", line(row.cells[0]), scope="row"), *cells, class_="skipped" if left else None)


def _cell(value: doc.Line, column: doc.Column, why: Html | None) -> Html:
    if isinstance(value, doc.Share):
        return _share(value)
    if isinstance(value, doc.Ratio):
        return el("td", value.text, track(value), class_="n")
    if isinstance(value, doc.Best):
        return el("td", value.text, class_="n", data_best=True)
    return el("td", line(value), why and join((" ", why)), class_="n" if column.number else None)


def _share(cell: doc.Share) -> Html:
    """The worst of some results: its verdict, and its share of the bound as a number and as a bar."""
    if not cell.verdict:
        return el("td", NONE, class_="m")
    largest = cell.share
    full = 100 if largest is None or not math.isfinite(largest) else min(100, round(100 * largest))
    kind = {"PASS": "pass", "FAIL": "fail"}.get(cell.verdict, "skip")
    bar = el("span", el("i", style=f"width:{full}%"), class_="bar", aria_hidden="true")
    value = None if largest is None or math.isnan(largest) else f"{largest:.6g}"
    shown = el("span", times(largest), class_="r")
    note = el("span", cell.note, class_="sub") if cell.note else None
    return el("td", verdict(cell.verdict), shown, bar, note, class_=f"m {kind}", data_v=value)


def _lines(block: doc.Lines) -> Html:
    """The charts with their legend, and their numbers in a part that opens on demand; of two places these alone."""
    lines = [item for item in block.charts if len(item.series.places) > _FEW_PLACES]
    styles = kinds([item.series for item in lines])
    figures = [line_chart(item, styles) for item in lines]
    drawn = [figure for figure in figures if figure]
    bounds = dict.fromkeys(key for item in lines for key in item.series.lines if key.startswith(doc.BOUND))
    shown = drawn[0] if len(figures) == 1 and drawn else el("div", *drawn, class_="charts pairs")
    return join(
        (
            *(_table(item.table()) for item in block.charts if item not in lines),
            shown if drawn else None,
            line_legend(styles, list(bounds)) if drawn else None,
            details("The numbers", *(_table(item.table()) for item in lines)) if lines else None,
        )
    )


def place(ratio: float, within: tuple[float, float]) -> float:
    """The position of a ratio on the axis, in percent from its left end."""
    low, high = within
    return 100 * math.log(min(max(ratio, low), high) / low) / math.log(high / low)


def track(ratio: doc.Ratio) -> Html:
    """A ratio's interval as a line with a dot, and a line at 1; its text has the numbers."""
    low, middle, high = (f"{place(end, ratio.within):.2f}%" for end in ratio.ends)
    one, half = f"{place(1, ratio.within):.2f}%", ROW_PX // 2
    return el(
        "svg",
        el("line", x1=one, x2=one, y1=0, y2=ROW_PX, class_="one"),
        el("line", x1=low, x2=high, y1=half, y2=half, class_=f"span {ratio.style}"),
        el("circle", cx=middle, cy=half, r=3.5, class_=f"dot {ratio.style}"),
        width="100%",
        height=ROW_PX,
        class_="track",
        aria_hidden="true",
        focusable="false",
    )


def kinds(charts: Sequence[doc.Series]) -> dict[str, int]:
    """The kind of line of each runtime, which is the same in all charts of a section."""
    names = dict.fromkeys(runtime for chart in charts for runtime in chart.lines if not runtime.startswith(doc.BOUND))
    return {runtime: place % KINDS for place, runtime in enumerate(names)}


def axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """The range of a logarithmic axis for values above 0, and its ticks, which are round numbers if any fit."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = 0.06 * (high - low) + 0.035
    low, high = max(low - margin, -307.0), min(high + margin, 307.0)
    first, last = math.floor(low), math.ceil(high)
    candidates = [
        [
            step * 10.0**power
            for power in range(first, last)
            for step in steps
            if low <= math.log10(step) + power <= high
        ]
        for steps in _STEPS
    ]
    best = max((ticks for ticks in candidates if len(ticks) <= _MOST_TICKS), key=len, default=[])
    if not best:  # too many decades, or no round number in the range
        stride = -(-(last - first) // _MOST_TICKS)
        best = [10.0**power for power in range(first + 1, last, stride)] or [10 ** ((low + high) / 2)]
    return 10**low, 10**high, best


def line_chart(chart: doc.LineChart, styles: Mapping[str, int]) -> Html | None:
    """A chart in the `styles` of `kinds`; None if there is no value to draw."""
    series, show = chart.series, chart.show
    known = [value for line in series.lines.values() for value in line if value is not None and value > 0]
    if not known:
        return None
    low, high, ticks = axis(known)
    count = len(series.places)
    if series.sizes:
        first, span = math.log(series.sizes[0]), math.log(series.sizes[-1] / series.sizes[0])
        across = [4 + 92 * (math.log(size) - first) / span for size in series.sizes]
    else:
        across = [4 + 92 * place / max(1, count - 1) if count > 1 else 50.0 for place in range(count)]

    def up(value: float) -> float:
        return 100 - 100 * (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    grid = [
        el("line", x1="0", x2="100%", y1=f"{up(tick):.2f}%", y2=f"{up(tick):.2f}%", class_="grid") for tick in ticks
    ]
    drawn = []
    for runtime, line in series.lines.items():
        points = [
            (x, up(value)) if value is not None and value > 0 else None for x, value in zip(across, line, strict=True)
        ]
        drawn.append(_line(points, *_look(runtime, styles)))
    heading = f"{chart.what} by {series.axis}" + (f", {series.title}" if series.title else "")
    svg = el(
        "svg",
        el("title", heading),
        el("desc", describe(series, show)),
        *grid,
        *drawn,
        width="100%",
        height=HEIGHT_PX,
        role="img",
        aria_label=f"{heading}. {describe(series, show)}",
    )
    slanted = not series.sizes
    every = -(-count // (_MOST_SLANTED if slanted else _MOST_LABELS))
    side = "right:{:.2f}%" if slanted else "left:{:.2f}%"
    below = [
        el(
            "span",
            _short(series.places[place]) if slanted else series.places[place],
            style=side.format(100 - across[place] if slanted else across[place]),
            class_="minor" if (place // every) % 2 and not slanted and count > _FEW else None,
        )
        for place in range(0, count, every)
    ]
    left = [el("span", _bare(show(tick)), style=f"top:{up(tick):.2f}%") for tick in ticks]
    return el(
        "figure",
        el("figcaption", heading),
        el("div", *left, class_="values", aria_hidden="true"),
        el("div", svg, class_="area"),
        el("div", *below, class_="ticks", aria_hidden="true"),
        class_="lines slanted" if slanted else "lines",
    )


def _bare(number: str) -> str:
    """A number without trailing zeros: `1.00e-6` is `1e-6`."""
    return re.sub(r"(\.\d*?)0+(?=e|$)", r"\1", number).replace(".e", "e").rstrip(".")


def _short(path: str) -> str:
    """The last part of a module's path, or the last two if the last is a number."""
    parts = path.split(".")
    return ".".join(parts[-2:] if parts[-1].isdecimal() else parts[-1:])


def _look(runtime: str, styles: Mapping[str, int]) -> tuple[str, int | None]:
    """The class of a line and its marker; a bound has none."""
    return ("sb", None) if runtime.startswith(doc.BOUND) else (f"s{styles[runtime]}", styles[runtime])


def _line(points: Sequence[tuple[float, float] | None], class_: str, mark: int | None) -> Html:
    """Segments between neighbours, and a mark at each point."""
    segments = [
        el("line", x1=f"{start[0]:.2f}%", y1=f"{start[1]:.2f}%", x2=f"{end[0]:.2f}%", y2=f"{end[1]:.2f}%")
        for start, end in itertools.pairwise(points)
        if start is not None and end is not None
    ]
    marks = [
        el("svg", el("path", d=_MARKS[mark]), x=f"{point[0]:.2f}%", y=f"{point[1]:.2f}%", overflow="visible")
        for point in points
        if point is not None and mark is not None
    ]
    return el("g", *segments, *marks, class_=class_)


def describe(series: doc.Series, show: Callable[[float], str]) -> str:
    """The lines in words: where each begins and ends, and its largest value."""
    descriptions = []
    for runtime, line in series.lines.items():
        known = [(place, value) for place, value in zip(series.places, line, strict=True) if value is not None]
        if not known:
            continue
        (first, begin), (last, end) = known[0], known[-1]
        top, most = max(known, key=lambda pair: pair[1])
        text = f"{runtime}: {show(begin)} at {first} to {show(end)} at {last}"
        descriptions.append(text if top in (first, last) else f"{text}, most {show(most)} at {top}")
    return "; ".join(descriptions) + "."


def line_legend(styles: Mapping[str, int], bounds: Sequence[str] = ()) -> Html:
    """The runtime of each line."""

    def sample(class_: str, mark: int | None) -> Html:
        path = None if mark is None else el("svg", el("path", d=_MARKS[mark]), x="50%", y="50%", overflow="visible")
        stroke = el("line", x1="0", x2="100%", y1="50%", y2="50%")
        return el(
            "svg", el("g", stroke, path, class_=class_), width=30, height=12, aria_hidden="true", focusable="false"
        )

    items = [el("span", sample(f"s{kind}", kind), name(runtime)) for runtime, kind in styles.items()]
    items += [el("span", sample("sb", None), bound) for bound in bounds]
    return el("p", join(items), class_="legend keys-of-lines")


def png(weights_ST: np.ndarray[Any, Any], hidden_ST: np.ndarray[Any, Any]) -> bytes:
    """A PNG (RFC 2083) of S x T pixels: constant colour, opacity the square root of the weight.

    The root keeps weights near 1/T visible beside those near 1; 8 bits resolve a weight to 0.004. Hidden pairs have
    another colour. As the weight is an opacity, the same image works on the light and the dark page.
    """
    rows, columns = weights_ST.shape
    pixels = np.empty((rows, columns, 4), np.uint8)
    pixels[..., :3] = INK
    pixels[..., 3] = np.rint(np.sqrt(np.clip(np.nan_to_num(weights_ST), 0, 1)) * 255)
    pixels[hidden_ST] = VEIL
    # Each line starts with its filter type; 0 is none.
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _maps(block: doc.Maps) -> Html:
    """A row for each attention, with an image for each head, on one scale; of many, every second, third, ..."""
    maps = [item for item in block.heatmaps if len(item.weights_HST)]
    if not maps:
        return el("p", block.note or "The model has no attention to show.", class_="pending")
    urls = [
        [f"data:image/png;base64,{base64.b64encode(png(head, item.hidden_ST)).decode()}" for head in item.weights_HST]
        for item in maps
    ]
    every = -(-sum(len(url) for row in urls for url in row) // IMAGE_BUDGET_BYTES)
    maps, urls = maps[::every], urls[::every]
    rows = [
        el("tr", el("th", name(item.attention), scope="row"), *(_map(item, head, url) for head, url in enumerate(row)))
        for item, row in zip(maps, urls, strict=True)
    ]
    numbers = (el("th", head, scope="col") for head in range(max(map(len, urls))))
    caption = el("caption", f"{len(maps)} attentions by heads")
    header = el("thead", el("tr", el("th", "head", scope="col"), *numbers))
    tokens = {(item.queries, item.keys): item.attention for item in reversed(maps)}
    steps = (el("span", el("i", el("b", style=f"opacity:{w**0.5:.2f}")), f"{w:g}") for w in (0, 0.06, 0.25, 0.56, 1))
    return join(
        (
            el("p", *(("Sentence: ", el("q", block.inputs)) if block.quoted else ("Inputs: ", block.inputs))),
            el("p", f"One of {every} attentions is shown, to keep the page small.") if every > 1 else None,
            el("p", "Weight ", *steps, el("span", el("i", class_="hidden"), "hidden by the mask"), class_="scale"),
            el(
                "div", el("table", caption, header, el("tbody", *rows), class_="heads"),
                class_="scroll", role="region", tabindex="0", aria_label="Attention maps by head",
            ),
            *(
                el(
                    *("p", f"{attention}: rows from the top ", el("code", " ".join(queries))),
                    *("; columns from the left ", el("code", " ".join(keys))), class_="quiet",
                )
                for (queries, keys), attention in reversed(tokens.items())
            ),
        )
    )  # fmt: skip


def _map(item: doc.Heatmap, head: int, url: str) -> Html:
    """The image of a head, with its strongest pair in words for readers who do not see it."""
    query, key = divmod(int(item.weights_HST[head].argmax()), len(item.keys))
    strongest = f"strongest: {item.queries[query]} to {item.keys[key]}, {item.weights_HST[head][query, key]:.2f}"
    size = {"width": len(item.keys), "height": len(item.queries)}
    return el("td", el("img", src=url, alt=f"{item.attention}, head {head}; {strongest}", title=strongest, **size))
