"""Checks of the timer, and the choice of processors for a timed process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from attnport.runtimes.base import physical_cores

COARSE = 0.01
"""The largest step of the timer, as a share of a call's time, at which the call can be timed."""
MOST_DRIFT_PPM = 500.0
"""The largest rate at which the system adjusts its clock; a larger drift is an error."""

_READINGS = 2000


def resolution_ns(clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """The smallest observed step of the timer, in nanoseconds, including the time to read it."""
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
    """Compares the timer with the machine's raw clock, which is never adjusted, between two moments."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        reference: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock
        self._reference = reference or _raw_clock
        self._began = self._clock(), self._reference()

    def ppm(self) -> float:
        """How much faster the timer ran than the reference, in parts per million; 0 if no time has passed."""
        passed = self._clock() - self._began[0]
        real = self._reference() - self._began[1]
        return (passed - real) / real * 1e6 if real > 0 else 0.0


def _raw_clock() -> int:
    raw = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    return time.time_ns() if raw is None else time.clock_gettime_ns(raw)


def processors(threads: int) -> list[int]:
    """The logical processors to stay on for `threads` threads: one for each thread, on the last cores.

    Most systems handle interrupts on the first processor. The result is all usable processors if there are more threads
    than cores, and empty if the system cannot restrict a process to processors.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    usable = sorted(os.sched_getaffinity(0))
    if threads > physical_cores():
        return usable
    cores: dict[str, int] = {}
    for cpu in usable:
        siblings_file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings_file.read_text().strip() if siblings_file.is_file() else str(cpu), cpu)
    return sorted(cores.values())[-threads:]
