"""Measures a cold start: time to open, first call of each workload, and memory; then the same with a filled cache."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attnport.errors import AttnportError, IntegrityError, SpecError
from attnport.latency.measured import TimedRuntime
from attnport.latency.workloads import Workload
from attnport.processes.child import Child
from attnport.processes.deadline import OutOfTime


@dataclass(frozen=True)
class Start:
    """How to start a process for a measurement.

    Attributes:
        child: Starts a process.
        processors: The processors that it stays on.
        feeds: The file of each workload's feeds.
        dtypes: The dtypes of the inputs.
        timeout_s: Seconds for each answer; a process that takes longer is ended.
    """

    child: Callable[[], Child]
    processors: Sequence[int]
    feeds: Mapping[str, str]
    dtypes: Mapping[str, str]
    timeout_s: float

    def every(
        self,
        runtimes: Mapping[str, TimedRuntime],
        workloads: Sequence[Workload],
        until_s: float,
        progress: Callable[[str], None],
    ) -> list[str]:
        """Measures all that were timed, one after the other, with no other process alive.

        Args:
            until_s: No process is started from then on, of `time.monotonic`.

        Returns:
            The runtimes for which there was no time, or too little.

        Raises:
            SpecError, IntegrityError: the folder has changed, which affects every runtime.
        """
        left_out = []
        for name, timed in runtimes.items():
            if timed.problem or not timed.was_timed:
                continue
            if time.monotonic() > until_s:
                left_out.append(name)
                continue
            try:
                progress(f"memory of {name}")
                self.cold(timed, [workload for workload in workloads if timed.of[workload.name].rounds_ns])
            except OutOfTime:
                left_out.append(name)
            except (SpecError, IntegrityError):
                raise
            except AttnportError as err:
                timed.no_cold = f"its load time, first call and peak memory are unknown: {err.message}"
        return left_out

    def cold(self, timed: TimedRuntime, workloads: Sequence[Workload]) -> None:
        """Times a fresh process, and for a runtime that keeps what it compiled a second one that uses this.

        Small workloads come first, as the peak of a workload includes those before it.

        Raises:
            AttnportError: the process died, or answered with this error.
        """
        ordered = sorted(workloads, key=lambda workload: sum(array.size for array in workload.feeds.values()))
        if not timed.keeps:
            timed.load_ns = self._one(timed, ordered, None)
            return
        with tempfile.TemporaryDirectory(prefix="attnport-kept-") as cache:
            timed.load_ns = self._one(timed, ordered, cache)
            timed.cached_load_ns = self._one(timed, ordered, cache, again=True)

    def _one(
        self, timed: TimedRuntime, workloads: Sequence[Workload], cache: str | None, *, again: bool = False
    ) -> int:
        """Measures one process, with `again` one that finds a filled cache; returns the time to open.

        With a cache the process is closed, so that it fills the cache.
        """
        child = self.child()
        ask = partial(child.ask, timeout_s=self.timeout_s)
        try:
            ask("settle", processors=self.processors)
            for workload in workloads:
                ask("feeds", name=workload.name, path=self.feeds[workload.name], dtypes=self.dtypes)
            ask("level", modules=timed.modules)
            load_ns = int(ask("open", **timed.opening | {"cache": cache})["load_ns"])
            for workload in workloads:
                answer = ask("run", name=workload.name, calls=2, warm=0, mode=timed.mode)
                samples = timed.of[workload.name]
                if again:
                    samples.cached_first_ns = answer["ns"][0]
                else:
                    samples.first_ns = answer["ns"][0]
                    samples.peak_bytes = int(ask("peak")["peak_bytes"])
            if cache:
                ask("close")
            return load_ns
        finally:
            child.kill()
