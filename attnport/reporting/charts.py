"""Drawings as inline SVG that can be widened without scaling text: intervals of ratios, and lines over layers or sizes.

Axes are logarithmic. Every position is a percentage, so that strokes and markers keep their size. Lines differ in
marker and dash, not only in colour, and each chart has a description in words.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

from attnport.reporting import document as doc
from attnport.reporting.markup import Html, el, join, name

ROW_PX = 10


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


HEIGHT_PX = 220
KINDS = 6
"""The number of kinds of lines; a chart with more lines repeats them."""
_MARKS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-4,-4h8v8h-8z", "M0,-5l5,9h-10z", "M0,-5l5,5l-5,5l-5,-5z",
          "M-4,-4l8,8m0,-8l-8,8", "M0,-5v10m-5,-5h10")  # fmt: skip
_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(1 + part / 10 for part in range(90)))
_MOST_TICKS = 6
_MOST_LABELS, _MOST_SLANTED, _FEW = 12, 24, 6


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
