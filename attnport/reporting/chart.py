"""A dot-and-interval chart of ratios on a logarithmic axis, as inline SVG that can be widened without scaling text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attnport.artifacts import LatencyRow
from attnport.reporting.markup import Html, el, join, name

ROW_PX = 26
_TICKS = tuple(round(step * 10**power, 12) for power in range(-4, 5) for step in (1, 2, 5))


def domain(rows: Iterable[LatencyRow]) -> tuple[float, float]:
    """The range that contains all intervals, and 1, with a margin."""
    ends = [end for row in rows if row.ratio for end in (row.ratio[0], row.ratio[2]) if 0 < end < math.inf]
    low, high = min((*ends, 1.0)), max((*ends, 1.0))
    margin = (high / low) ** 0.08 * 1.04
    return low / margin, high * margin


def place(ratio: float, within: tuple[float, float]) -> float:
    """The position of a ratio on the axis, in percent from its left end."""
    low, high = within
    return 100 * math.log(min(max(ratio, low), high) / low) / math.log(high / low)


def ticks(within: tuple[float, float], *, most: int = 6) -> list[float]:
    """Round ratios inside a range; only powers of ten if there would be too many."""
    inside = [tick for tick in _TICKS if within[0] <= tick <= within[1]]
    if len(inside) > most:
        inside = [tick for tick in inside if math.log10(tick).is_integer()]
    return inside


def _track(row: LatencyRow | None, within: tuple[float, float]) -> Html:
    """One row's lines, interval and dot."""
    lines = [
        el("line", x1=f"{place(tick, within):.2f}%", x2=f"{place(tick, within):.2f}%", y1=0, y2=ROW_PX, class_=kind)
        for tick in ticks(within)
        for kind in ("one" if tick == 1 else "grid",)
    ]
    marks: list[Html] = []
    middle = ROW_PX // 2
    if row is not None and row.verdict == "baseline":
        marks.append(el("circle", cx=f"{place(1, within):.2f}%", cy=middle, r=4, class_="base"))
    elif row is not None and row.ratio is not None and all(0 < part < math.inf for part in row.ratio):
        low, mid, high = (f"{place(part, within):.2f}%" for part in row.ratio)
        kind = {"faster": "faster", "slower": "slower"}.get(row.verdict, "same")
        marks.append(el("line", x1=low, x2=high, y1=middle, y2=middle, class_=f"span {kind}"))
        marks.append(el("circle", cx=mid, cy=middle, r=4.5, class_=f"dot {kind}"))
    return el("svg", *lines, *marks, width="100%", height=ROW_PX, aria_hidden="true", focusable="false")


def _axis(within: tuple[float, float]) -> Html:
    """The numbers below the rows."""
    labels = [el("span", f"{tick:g}×", style=f"left:{place(tick, within):.2f}%") for tick in ticks(within)]
    return el("div", el("span"), el("div", *labels, class_="ticks"), el("span"), class_="axis", aria_hidden="true")


def chart(workload: str, baseline: str, rows: Mapping[str, LatencyRow], within: tuple[float, float]) -> Html:
    """The ratios of one workload to the baseline.

    Args:
        workload: Its name.
        baseline: The runtime whose ratio is 1.
        rows: By runtime; those without a ratio are only in the table.
        within: The range of the axis, which all charts share.
    """
    drawn = [(runtime, row) for runtime, row in rows.items() if row.ratio or row.verdict == "baseline"]
    lines = [
        el("div", name(runtime), _track(row, within), el("span", _value(row), class_="value"), class_="line")
        for runtime, row in drawn
    ]
    description = "; ".join(f"{runtime} {_describe(row)}" for runtime, row in drawn)
    return el(
        "figure",
        el("figcaption", workload),
        el(
            "div",
            *lines,
            _axis(within),
            role="img",
            aria_label=f"{workload}, median time relative to {baseline}: {description or 'nothing was measured'}",
            class_="rows",
        ),
        class_="chart",
    )


def _value(row: LatencyRow) -> str:
    return "baseline" if row.verdict == "baseline" or row.ratio is None else f"{row.ratio[1]:.2f}×"


def _describe(row: LatencyRow) -> str:
    if row.verdict == "baseline" or row.ratio is None:
        return "1, the baseline"
    low, mid, high = row.ratio
    return f"{mid:.2f}, interval {low:.2f} to {high:.2f}, {row.verdict}"


def legend(baseline: str, verdicts: Sequence[str]) -> Html:
    """The meaning of the marks that occur."""
    kinds = {"faster": "faster", "slower": "slower", "no difference shown": "same"}
    shown = [el("span", el("i", class_=f"key {kinds[item]}"), item) for item in kinds if item in verdicts]
    return el("p", "Dot: ratio of medians to ", name(baseline), "; line: its interval. ", join(shown), class_="legend")
