"""The state of a runtime while it is measured, and the samples that result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnport.artifacts import Ran
from attnport.latency.judging import Samples
from attnport.processes.child import Child

SPINNING = 0.05
"""The share of a core that an idle process may take; more would disturb the one being timed."""


@dataclass
class TimedRuntime:
    """A runtime in one of its modes, its process while that lives, and its measurements by workload."""

    child: Child | None = None
    opening: dict[str, Any] = field(default_factory=dict)
    mode: str = ""
    modules: list[str] = field(default_factory=list)
    ran: Ran | None = None
    problem: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    rounds_ns: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)
    parts_ns: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    warm_calls: dict[str, int] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    peaks: dict[str, int] = field(default_factory=dict)
    first_ns: dict[str, int] = field(default_factory=dict)
    load_ns: int | None = None
    keeps: bool = False
    cached_first_ns: dict[str, int] = field(default_factory=dict)
    cached_load_ns: int | None = None
    no_cold: str = ""
    idle_cpu_ns: int = 0
    idle_ns: int = 0
    answered_ns: int = 0

    def in_mode(self, mode: str) -> TimedRuntime:
        """The same process in another mode, with nothing measured yet."""
        return TimedRuntime(self.child, self.opening, mode, self.modules, self.ran, keeps=self.keeps)


def samples_of(timed: TimedRuntime, workload: str, idle_share: float) -> Samples:
    """A runtime's samples on a workload; none if it did not finish the workload."""
    problem = timed.problems.get(workload, "")
    rounds = () if problem else tuple(timed.rounds_ns.get(workload, ()))
    spun = f"its threads took {idle_share:.0%} of a core while others ran" if idle_share > SPINNING else ""
    return Samples(
        rounds,
        problem if rounds or problem else timed.problem,
        "; ".join(filter(None, (spun, timed.no_cold))),
        timed.ran,
        timed.peaks.get(workload),
        warm_calls=timed.warm_calls.get(workload, 0),
        warm=workload not in timed.unsettled,
        load_ns=timed.load_ns,
        first_ns=timed.first_ns.get(workload),
        cached_load_ns=timed.cached_load_ns,
        cached_first_ns=timed.cached_first_ns.get(workload),
        parts_ns=timed.parts_ns.get(workload, {}),
        starts=tuple(starts) if len(starts := timed.starts.get(workload, [])) > 1 else (),
    )
