"""What is timed, and with how much effort."""

from __future__ import annotations

from dataclasses import dataclass

from attnport.processes.isolated import TIMEOUT_S
from attnport.runtimes.base import Opening, Runtime
from attnport_bundle.arguments import integer, number, threads

BASELINE = "torch_eager"

Subject = tuple[Runtime, Opening | None, str]
"""A runtime, what it opens, and if that is None the reason why there is nothing to open."""


@dataclass(frozen=True)
class Effort:
    """The settings of a measurement, which are equal for all runtimes and recorded in the report.

    Attributes:
        budget_s: How long the measurement may take, starts, warm-up and cold starts included; at least `MIN_ROUNDS`
            rounds are always made.
        precision: A workload is finished once every ratio is known within this share.
        samples: The fewest calls of every runtime, if there is time; p99 needs 1000.
        pin: Whether processes stay on fixed processors, if the system allows it.
        baseline: The runtime that the others are compared with.
        timeout_s: Seconds for each answer of a process: opening, the calls of a turn.
        cold: Whether cold starts and memory are measured, in new processes.
        starts: How often the processes are started; each start is timed in rounds.
    """

    threads: int
    budget_s: float = 60.0
    precision: float = 0.03
    samples: int = 0
    pin: bool = True
    seed: int = 0
    baseline: str = BASELINE
    timeout_s: float = TIMEOUT_S
    cold: bool = True
    starts: int = 1

    def __post_init__(self) -> None:
        """Raises FeedError for a number that has no meaning."""
        threads(self.threads)
        integer("samples", self.samples, 0)
        integer("starts", self.starts, 1)
        number("budget_s", self.budget_s, 0)
        number("precision", self.precision, 0)
        number("timeout_s", self.timeout_s, 0, above=True)
