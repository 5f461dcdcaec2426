"""Whether the timer can be trusted, and the processors that a timed process stays on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from attnport.runtimes.base import physical_cores

COARSE = 0.01
"""A timer whose steps are more than this share of a call is too coarse for it."""
MOST_DRIFT_PPM = 500.0
"""What a clock that is being disciplined is slewed by at most; beyond it, something else is wrong."""

_READINGS = 2000


def resolution_ns(clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """The smallest step that the timer was seen to make, in nanoseconds; includes what reading it takes."""
    steps = []
    last = clock()
    for _ in range(_READINGS * 100):
        now = clock()
        if now > last:
            steps.append(now - last)
            if len(steps) == _READINGS:
                break
        last = now
    return min(steps, default=0)


class DriftWatch:
    """Compares the timer with the machine's raw clock, which nothing adjusts, between two moments."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        reference: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock
        self._reference = reference or _raw_clock
        self._began = self._clock(), self._reference()

    def ppm(self) -> float:
        """How much faster the timer ran than the reference, in parts per million; 0 for no time at all."""
        passed = self._clock() - self._began[0]
        real = self._reference() - self._began[1]
        return (passed - real) / real * 1e6 if real > 0 else 0.0


def _raw_clock() -> int:
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    return time.time_ns() if raw is None else time.clock_gettime_ns(raw)


def processors(threads: int) -> list[int]:
    """The logical processors to stay on for `threads` threads: one of each core, the last ones.

    The first processor is where most systems serve their interrupts. All that may be used where more threads are
    asked for than there are cores; empty where the system cannot keep a process to processors.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    usable = sorted(os.sched_getaffinity(0))
    if threads > physical_cores():
        return usable
    cores: dict[str, int] = {}
    for cpu in usable:
        listed = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(listed.read_text().strip() if listed.is_file() else str(cpu), cpu)
    return sorted(cores.values())[-threads:]
