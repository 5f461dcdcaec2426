"""Ratios with their intervals on a logarithmic axis, with a line at 1."""

from __future__ import annotations

from collections.abc import Mapping

from attnport.reporting.html import place
from attnport.reporting.markup import Html, el
from claims._findings import Ratio, shown
from claims._svg import COLOURS, LETTER_PX, TEXT, line, picture, ticks, words

_WIDTH, _ROW, _TOP = 320.0, 22.0, 30.0


def _marks(within: tuple[float, float]) -> list[float]:
    """Round ratios on the axis; tenths where it is too short for several of those of larger steps."""
    marks = ticks(within)
    return marks if len(marks) > 1 else [tenth / 10 for tenth in range(5, 20) if within[0] <= tenth / 10 <= within[1]]


def ratios(rows: Mapping[str, Ratio], what: str) -> str:
    """A row a ratio: a dot, a line for its interval, and the figures.

    Args:
        what: What is divided by what.
    """
    ends = [end for ratio in rows.values() for end in ratio]
    within = (min(*ends, 1.0) / 1.1, max(*ends, 1.0) * 1.1)
    left = 20 + LETTER_PX * max(map(len, rows))
    bottom = _TOP + _ROW * len(rows)
    parts: list[Html] = [words(14, 16, what, font_weight="bold")]

    def x(ratio: float) -> float:
        return left + _WIDTH * place(ratio, within) / 100

    for tick in _marks(within):
        parts.append(line(x(tick), _TOP, x(tick), bottom, *((TEXT, 1.4) if tick == 1 else ())))
        parts.append(words(x(tick), bottom + 14, f"{tick:g}", "middle"))
    for number, (name, ratio) in enumerate(rows.items()):
        y = _TOP + _ROW * (number + 0.5)
        colour = COLOURS[0] if ratio[2] < 1 else COLOURS[1]
        parts += [
            words(14, y + 4, name),
            line(x(ratio[0]), y, x(ratio[2]), y, colour, 2.5),
            el("circle", cx=f"{x(ratio[1]):.1f}", cy=f"{y:.1f}", r=4, fill=colour),
            words(left + _WIDTH + 10, y + 4, shown(ratio)),
        ]
    return picture(left + _WIDTH + 130, bottom + 24, what, parts)
