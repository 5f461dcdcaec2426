"""Arguments of callers, checked: one of another kind, sign or size is refused, by its name."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import FeedError

LARGEST = (1 << 63) - 1
"""The largest integer that the runtimes, and the reader in C++, take."""

_SHOWN = 60
"""The letters of a value in a message."""
_MOST_THREADS = (1 << 31) - 1
"""Runtimes keep the number of compute threads in 32 bits."""


def shown(value: object) -> str:
    """A value as a message shows it, in at most 60 letters."""
    try:
        text = repr(_begin(value, _SHOWN))
    except Exception:  # of a caller's own class; or an integer of more than 4300 digits, which Python does not print
        text = f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _begin(value: object, most: int) -> object:
    """A list as it begins: to print millions of values, of which few are shown, would hold all threads."""
    return [_begin(each, most // 2) for each in value[:most]] if type(value) is list else value


def require(fits: bool, name: str, value: object, expected: str) -> None:
    """Raises FeedError for a value that does not fit."""
    if not fits:
        raise FeedError(f"{name}: got {shown(value)}; expected {expected}.")


def integer(name: str, value: object, least: int, most: int = LARGEST, what: str = "") -> int:
    """An integer of Python or NumPy; True and False are none.

    Args:
        what: What is expected, to stand before the limits in a message, as `token ids of`.

    Raises:
        FeedError: it is none, or not from `least` to `most`.
    """
    try:
        found = least - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = least - 1
    if not least <= found <= most:
        limits = f"{least} or more" if most == LARGEST and found <= most else f"{least} to {most}"
        require(False, name, value, f"{what} {limits}".strip())
    return found


def threads(value: object) -> int | None:
    """A number of compute threads, or None. Raises FeedError for anything else, and below 1."""
    return None if value is None else integer("threads", value, 1, _MOST_THREADS)


def number(name: str, value: object, least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> float:
    """A number of Python or NumPy; NaN, True and False are none.

    Args:
        above: Whether it has to be above `least`.

    Raises:
        FeedError: it is none, or not from `least` to `most`.
    """
    found = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of an integer beyond all floats
            found = float(value)
    if not least <= found <= most or (above and found == least):
        low = f"above {least:g}" if above else f"{least:g} or more"
        known = "a number" if least == -math.inf else low if most == math.inf else f"{low}, at most {most:g}"
        require(False, name, value, known)
    return found


def flag(name: str, value: object) -> bool:
    """True or False, as a text such as "no" counts as true. Raises FeedError for anything else."""
    require(isinstance(value, bool), name, value, "True or False")
    return bool(value)


def path(name: str, value: object) -> Path:
    """A path of text; an empty one is the current folder. Raises FeedError for anything else."""
    text: Any = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    require(isinstance(text, str), name, value, "a path")
    return Path(text)


def mapping(name: str, value: object, of: str) -> Mapping[str, Any]:
    """What is given by name. Raises FeedError for anything else.

    Args:
        of: What each name has, as `an array for each input`.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise FeedError(f"{name}: got {shown(value)}; expected {of} by its name.")
    return value


def several(name: str, value: object, of: str) -> Iterator[Any]:
    """The elements of a list or another iterable.

    Args:
        of: What the elements are, as `several texts`.

    Raises:
        FeedError: it is no iterable; or text, bytes or a mapping, whose letters, bytes and keys are not meant.
    """
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise FeedError(f"{name}: got {shown(value)}; expected {of}.")
    return iter(value)
