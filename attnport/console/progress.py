"""The one line that says what is being done, how far it is and about how long it still takes."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from attnport.console.streams import one_line

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

    def with_time_left(self, message: str) -> str:
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


class Line:
    """The line for a verb that Python calls, on stderr: a terminal, or the output of a notebook."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._left = TimeLeft()
        self._stage = ""
        self._shown = 0

    def stage(self, name: str, what: str, number: int, count: int) -> None:
        """Shows which part of a verb with several begins."""
        self._stage = f"{number} of {count}, {name}: "
        self.progress(what)

    def progress(self, message: str) -> None:
        """Shows what is being done, in place of what was shown before."""
        from rich.cells import cell_len

        room = shutil.get_terminal_size().columns - 1
        text = shortened(one_line(self._stage + self._left.with_time_left(message)), room)
        self._erase()
        self._stream.write(text)
        self._stream.flush()
        self._shown = cell_len(text)

    def _erase(self) -> None:
        # Notebooks understand a return to the line's beginning, and no other control code.
        self._stream.write(f"\r{' ' * self._shown}\r")
        self._shown = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Makes room for a warning, as a filter of the logger `attnport`."""
        self._erase()
        return True

    def __enter__(self) -> Line:
        logging.getLogger("attnport").addFilter(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("attnport").removeFilter(self)
        self._erase()
        self._stream.flush()


def line() -> AbstractContextManager[Line | None]:
    """A `Line` where somebody sees it: not in a file or a pipe, nor with `attnport.quiet = True`."""
    seen = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
    return Line() if seen and not getattr(sys.modules["attnport"], "quiet", False) else nullcontext()


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
