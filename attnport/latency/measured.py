"""The state of a runtime while it is measured."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from attnport.artifacts import Ran
from attnport.latency.judging import Samples
from attnport.processes.child import Child

SPINNING = 0.05
"""The share of a core that an idle process may take; more would disturb the one being timed."""


@dataclass
class TimedRuntime:
    """A runtime in one of its modes, its process while that lives, and its samples by workload.

    Attributes:
        keeps: Whether it keeps what it compiles on the device.
        no_cold: Why its load time, first call and peak memory are unknown.
    """

    child: Child | None = None
    opening: dict[str, Any] = field(default_factory=dict)
    mode: str = ""
    modules: list[str] = field(default_factory=list)
    ran: Ran | None = None
    problem: str = ""
    of: defaultdict[str, Samples] = field(default_factory=lambda: defaultdict(Samples))
    load_ns: int | None = None
    keeps: bool = False
    cached_load_ns: int | None = None
    no_cold: str = ""
    idle_cpu_ns: int = 0
    idle_ns: int = 0
    answered_ns: int = 0

    def in_mode(self, mode: str) -> TimedRuntime:
        """The same process in another mode, with nothing measured yet."""
        return TimedRuntime(self.child, self.opening, mode, self.modules, self.ran, keeps=self.keeps)

    @property
    def was_timed(self) -> bool:
        """Whether any call was."""
        return any(samples.rounds_ns for samples in self.of.values())

    def samples(self, workload: str, idle_share: float) -> Samples:
        """What was measured of a workload; without rounds if it was not finished."""
        found = self.of[workload]
        spun = f"its threads took {idle_share:.0%} of a core while others ran" if idle_share > SPINNING else ""
        return replace(
            found,
            rounds_ns=[] if found.problem else found.rounds_ns,
            problem=found.problem if found.rounds_ns or found.problem else self.problem,
            note="; ".join(filter(None, (spun, self.no_cold))),
            ran=self.ran,
            load_ns=self.load_ns,
            cached_load_ns=self.cached_load_ns,
        )
