"""What the pictures of the claims have in common: an SVG file that reads on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable

from attnport.reporting.markup import Html, el, join

COLOURS = ("#0b4f9c", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be123c", "#52525b")
GRID, TEXT = "#d4d4d8", "#27272a"
LETTER_PX = 6.2
"""About the width of a letter at 11 px."""
_TICKS = tuple(round(step * 10**power, 12) for power in range(-4, 5) for step in (1, 2, 5))


def ticks(within: tuple[float, float], *, most: int = 6) -> list[float]:
    """Round ratios inside a range; only powers of ten if there would be too many."""
    inside = [tick for tick in _TICKS if within[0] <= tick <= within[1]]
    if len(inside) > most:
        inside = [tick for tick in inside if math.log10(tick).is_integer()]
    return inside


def picture(width: float, height: float, title: str, parts: Iterable[Html]) -> str:
    """An SVG file with a white ground of its own, and a title for readers that do not see it."""
    return (
        el(
            "svg",
            el("title", title),
            el("rect", width=f"{width:g}", height=f"{height:g}", fill="#fff", rx=4),
            join(parts),
            xmlns="http://www.w3.org/2000/svg",
            width=f"{width:g}",
            height=f"{height:g}",
            viewBox=f"0 0 {width:g} {height:g}",
            font_family="system-ui, sans-serif",
            font_size=11,
            fill=TEXT,
            role="img",
        )
        + "\n"
    )


def words(x: float, y: float, text: object, anchor: str = "start", **attributes: object) -> Html:
    """Text at a place; `anchor` start, middle or end."""
    return el("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, width: float = 1) -> Html:
    """A straight line."""
    return el(
        "line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", stroke=colour, stroke_width=f"{width:g}"
    )
