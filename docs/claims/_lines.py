"""Figures by size on two logarithmic axes: a power law is a straight line, its exponent the slope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from attnport.reporting.html import place
from attnport.reporting.markup import Html, el
from claims._svg import COLOURS, LETTER_PX, TEXT, line, picture, ticks, words

_WIDTH, _HEIGHT = 300.0, 240.0
_LEFT, _TOP, _BELOW, _GAP = 62.0, 30.0, 44.0, 40.0
_ROW = 15.0


def lines(panels: Mapping[str, Mapping[str, Mapping[int, float]]], across: str, up: str) -> str:
    """Panels beside each other with one legend, and the same axes.

    Args:
        panels: By title: by series: figures by size; those of zero, which have no logarithm, are left out.
        across: What the sizes are.
        up: What the figures are, with their unit.
    """
    names = list(dict.fromkeys(chain.from_iterable(panels.values())))
    points = [point for panel in panels.values() for series in panel.values() for point in _positive(series).items()]
    sizes = sorted({size for size, _ in points})
    xs = (sizes[0] / 1.08, sizes[-1] * 1.08)
    ys = (min(value for _, value in points) / 1.3, max(value for _, value in points) * 1.3)
    parts: list[Html] = []
    for number, (title, panel) in enumerate(panels.items()):
        left = _LEFT + number * (_WIDTH + _GAP)
        parts += _axes(left, title, across, sizes, xs, ys, labelled=not number)
        for series, figures in panel.items():
            parts += _series(left, figures, xs, ys, COLOURS[names.index(series) % len(COLOURS)])
    width = _LEFT + len(panels) * (_WIDTH + _GAP) - _GAP + 14
    under = _TOP + _HEIGHT + _BELOW
    legend, rows = _legend(names, width, under)
    parts.append(words(14, 14, up))
    return picture(width, under + rows * _ROW + 2, f"{up} by {across}: {', '.join(panels)}", [*parts, *legend])


def _axes(
    left: float,
    title: str,
    across: str,
    sizes: Sequence[int],
    xs: tuple[float, float],
    ys: tuple[float, float],
    *,
    labelled: bool,
) -> Iterable[Html]:
    bottom = _TOP + _HEIGHT
    yield words(left + _WIDTH / 2, _TOP - 8, title, "middle", font_weight="bold")
    for size in sizes:
        x = _x(size, left, xs)
        yield line(x, _TOP, x, bottom)
        yield words(x, bottom + 14, size, "middle")
    for tick in ticks(ys):
        y = _y(tick, ys)
        yield line(left, y, left + _WIDTH, y)
        if labelled:
            yield words(left - 6, y + 4, f"{tick:g}", "end")
    yield words(left + _WIDTH / 2, bottom + 29, across, "middle")


def _series(
    left: float, figures: Mapping[int, float], xs: tuple[float, float], ys: tuple[float, float], colour: str
) -> Iterable[Html]:
    at = [(_x(size, left, xs), _y(value, ys)) for size, value in sorted(_positive(figures).items())]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    yield el("polyline", points=path, fill="none", stroke=colour, stroke_width=1.8)
    for x, y in at:
        yield el("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2.8, fill=colour)


def _positive(figures: Mapping[int, float]) -> dict[int, float]:
    return {size: value for size, value in figures.items() if value > 0}


def _legend(names: Sequence[str], width: float, top: float) -> tuple[list[Html], int]:
    """The series' names in rows below the panels, and how many rows there are."""
    parts: list[Html] = []
    x, row = 14.0, 0
    for number, name in enumerate(names):
        wide = 30 + LETTER_PX * len(name)
        if x + wide > width and x > 14:
            x, row = 14.0, row + 1
        y = top + row * _ROW + 4
        parts += [line(x, y - 4, x + 16, y - 4, COLOURS[number % len(COLOURS)], 2.5), words(x + 20, y, name, fill=TEXT)]
        x += wide
    return parts, row + 1


def _x(size: float, left: float, within: tuple[float, float]) -> float:
    return left + _WIDTH * place(size, within) / 100


def _y(value: float, within: tuple[float, float]) -> float:
    return _TOP + _HEIGHT * (1 - place(value, within) / 100)
