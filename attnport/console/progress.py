"""The one line that says what is being done, how far it is and about how long it still takes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_COUNTED = re.compile(r"(?<![\w/.])(\d+)/(\d+)(?![\w/.])")
_LEAST_S = 5.0
"""What is finished sooner needs no estimate."""
_LEAST_DONE = 2
"""Steps that an estimate is from: one alone may be far from the usual."""


class TimeLeft:
    """About how long counted steps still take, measured from those before but the first, which loads things."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._what = ""
        self._first = 0
        self._since: tuple[int, float] | None = None

    def told(self, message: str) -> str:
        """A message with the time that is left, if it counts its steps: `checking sizes 3/20`, and some are done.

        The text before the count says which steps belong together.
        """
        found = _COUNTED.search(message)
        if not found:
            return message
        number, count = int(found[1]), int(found[2])
        what = message[: found.start()]
        if what != self._what or number <= self._first:
            self._what, self._first, self._since = what, number, None
            return message
        now_s = self._clock()
        began, began_s = self._since = self._since or (number, now_s)
        done = number - began
        left_s = (now_s - began_s) / done * (count - number + 1) if done >= _LEAST_DONE else 0.0
        return f"{message}, about {duration(left_s)} left" if left_s >= _LEAST_S else message


def duration(seconds: float) -> str:
    """`40 s`, `3 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def shortened(message: str, columns: int) -> str:
    """A message in one line of a terminal; of a longer one the beginning and the end, where its count is."""
    from rich.cells import cell_len, set_cell_size

    message = " ".join(message.split())
    if cell_len(message) <= columns:
        return message
    end = message[len(message) - columns // 3 :]
    while cell_len(end) > columns // 3:
        end = end[1:]
    begin = set_cell_size(message, max(0, columns - 1 - cell_len(end)))
    return f"{begin.rstrip()}…{end.lstrip()}"
