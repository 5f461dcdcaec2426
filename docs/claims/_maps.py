"""Attention weights of several heads as maps beside each other, with the tokens on their axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnport.reporting.html import INK
from attnport.reporting.markup import Html, el
from claims._svg import LETTER_PX, line, picture, words

_CELL, _GAP, _COLUMNS = 13.0, 26.0, 3
_SHADES = 24


def maps(heads: Mapping[str, np.ndarray[Any, Any]], tokens: Sequence[str]) -> str:
    """One map a head: queries down, keys across, the square root of the weight as opacity.

    Args:
        heads: By title, weights [T, T].
        tokens: The T tokens.

    Raises:
        ValueError: weights of another shape.
    """
    if any(weights_TT.shape != (len(tokens), len(tokens)) for weights_TT in heads.values()):
        got = [weights_TT.shape for weights_TT in heads.values()]
        raise ValueError(f"got weights of shapes {got} for {len(tokens)} tokens.")
    side = _CELL * len(tokens)
    margin = 12 + LETTER_PX * max(map(len, tokens))
    columns = min(_COLUMNS, len(heads))
    rows = -(-len(heads) // columns)
    parts: list[Html] = []
    for number, (title, weights_TT) in enumerate(heads.items()):
        row, column = divmod(number, columns)
        left, top = margin + column * (side + _GAP), margin + 22 + row * (side + _GAP + 8)
        parts.append(words(left, top - (margin - 6 if not row else 6), title, font_weight="bold"))
        parts += _cells(weights_TT, left, top)
        parts += _frame(left, top, side)
        if not column:
            parts += [words(left - 5, top + _CELL * (i + 0.8), token, "end") for i, token in enumerate(tokens)]
        if not row:
            parts += [_upright(left + _CELL * (i + 0.8), top - 4, token) for i, token in enumerate(tokens)]
    width, height = margin + columns * (side + _GAP), margin + 22 + rows * (side + _GAP + 8)
    return picture(width, height, f"Attention weights: {', '.join(heads)}", parts)


def _cells(weights_TT: np.ndarray[Any, Any], left: float, top: float) -> Iterable[Html]:
    """The cells, one path for all of one shade: thousands of squares would make a large file."""
    shades = np.rint(np.sqrt(np.clip(weights_TT, 0, 1)) * _SHADES).astype(int)
    for shade in np.unique(shades[shades > 0]):
        squares = (
            f"M{left + _CELL * key:g} {top + _CELL * query:g}h{_CELL:g}v{_CELL:g}h-{_CELL:g}z"
            for query, key in np.argwhere(shades == shade)
        )
        yield el("path", d="".join(squares), fill=f"rgb{INK}", fill_opacity=f"{shade / _SHADES:.2f}")


def _frame(left: float, top: float, side: float) -> Iterable[Html]:
    right, bottom = left + side, top + side
    for ends in ((left, top, right, top), (left, bottom, right, bottom), (left, top, left, bottom)):
        yield line(*ends)
    yield line(right, top, right, bottom)


def _upright(x: float, y: float, token: str) -> Html:
    return words(x, y, token, transform=f"rotate(-90 {x:.1f} {y:.1f})")
