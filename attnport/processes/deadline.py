"""The time at which the work of a verb has to end; `gpu-check` keeps its budget with it.

It is looked at wherever a verb waits for a child process that answers requests, and by whoever calls `in_time`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_END_S: ContextVar[float] = ContextVar("end_s", default=math.inf)


class OutOfTime(BaseException):
    """The time is over. No `Exception`: as for Ctrl-C, no runtime's row may take it for a failure of its own."""


@contextmanager
def ending_at(end_s: float | None) -> Iterator[None]:
    """Inside, `in_time` raises from `end_s` on, a time of `time.monotonic`; None = no limit."""
    before = _END_S.set(math.inf if end_s is None else end_s)
    try:
        yield
    finally:
        _END_S.reset(before)


def end_s() -> float:
    """When the time is over, of `time.monotonic`; infinity where there is no limit."""
    return _END_S.get()


def in_time() -> None:
    """Raises OutOfTime if the time is over."""
    if time.monotonic() > _END_S.get():
        raise OutOfTime
