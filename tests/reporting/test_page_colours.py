"""The page's colours: text stands out (WCAG 2.2, 4.5 to 1) on both the light and the dark page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attnport.reporting
from attnport.reporting.html import KINDS

LINES = tuple(f"s{kind}" for kind in range(KINDS))
TEXT = ("ink", "soft", "link", "pass", "fail", "miss", "skip")


def _palettes(style: str) -> list[dict[str, str]]:
    """The colours by name of each `:root` block, the dark one over the light one."""
    blocks = re.findall(r":root\s*\{(.*?)\}", style, flags=re.S)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks)
    return [light, {**light, **dark}]


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", LINES)
def test_the_lines_of_charts_stand_out(page: int, name: str) -> None:
    style = (Path(attnport.reporting.__file__).parent / "style.css").read_text()
    colours = _palettes(style)[page]
    assert contrast(colours[name], colours["bg"]) >= 4.5


def test_nothing_moves_so_that_nobody_has_to_ask_for_less_motion() -> None:
    style = (Path(attnport.reporting.__file__).parent / "style.css").read_text()
    assert not re.search(r"transition|animation|scroll-behavior", style)


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("ground", ["bg", "sheet"])
def test_text_stands_out(page: int, name: str, ground: str) -> None:
    style = (Path(attnport.reporting.__file__).parent / "style.css").read_text()
    colours = _palettes(style)[page]
    assert contrast(colours[name], colours[ground]) >= 4.5


def test_thecontrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
