"""What a runtime takes from nothing: opening, the first call of each workload, memory; and again from what it kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnport.latency.measured import TimedRuntime
from attnport.latency.workloads import Workload
from attnport.processes.child import Child


@dataclass(frozen=True)
class Start:
    """How a process is started for it.

    Attributes:
        child: Starts one.
        processors: Where it stays.
        feeds: The file of each workload's feeds.
        dtypes: Of the inputs.
    """

    child: Callable[[], Child]
    processors: Sequence[int]
    feeds: Mapping[str, str]
    dtypes: Mapping[str, str]

    def cold(self, found: TimedRuntime, workloads: Sequence[Workload]) -> None:
        """Times a fresh process, and for a runtime that keeps what it compiled a second one that finds it.

        The small workloads come first: a peak is the most up to the end of its workload.

        Raises:
            AttnportError: what the process answers, or that it died.
        """
        ordered = sorted(workloads, key=lambda one: sum(array.size for array in one.feeds.values()))
        if not found.keeps:
            found.load_ns = self._one(found, ordered, found.first_ns, None, peaks=True)
            return
        with tempfile.TemporaryDirectory(prefix="attnport-kept-") as cache:
            found.load_ns = self._one(found, ordered, found.first_ns, cache, peaks=True)
            found.cached_load_ns = self._one(found, ordered, found.cached_first_ns, cache)

    def _one(
        self,
        found: TimedRuntime,
        workloads: Sequence[Workload],
        first_ns: dict[str, int],
        cache: str | None,
        *,
        peaks: bool = False,
    ) -> int:
        """One process; returns what opening took. It is closed and not killed: only then it keeps what it compiled."""
        child = self.child()
        try:
            child.ask("settle", processors=self.processors)
            for workload in workloads:
                child.ask("feeds", name=workload.name, path=self.feeds[workload.name], dtypes=self.dtypes)
            child.ask("level", modules=found.modules)
            load_ns = int(child.ask("open", **found.opening | {"cache": cache})["load_ns"])
            for workload in workloads:
                answer = child.ask("run", name=workload.name, calls=2, warm=0, mode=found.mode)
                first_ns[workload.name] = answer["ns"][0]
                if peaks:
                    found.peaks[workload.name] = int(child.ask("peak")["peak_bytes"])
            if cache:
                child.ask("close")
            return load_ns
        finally:
            child.kill()
