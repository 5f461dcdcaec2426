"""Sides in turns: each schedule is tried, then those that may be the quickest are sampled until the ratio is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from beside.schedules import BY_SIZE
from beside.side import Named, SideFailed

from attnport.latency.statistics import half_width, ratio_interval

MOST_DROP = 0.005
"""What int8 may lose of the agreement of vectors; a side that loses more is in no class."""
COARSE = "coarse"
CLASSES = {"fp32": ("fp32",), "half": ("fp32", "half"), "any": ("fp32", "half", "int8")}
"""A ratio's name, and the precisions of the sides that it compares."""
WIDTH = 0.01
"""Half of the interval at which a ratio counts as known."""
LEAST = {"fp32": 0.999, "half": 0.99, "int8": 0.9, COARSE: 0.9}
"""The least cosine to float32 of a side whose time counts. Below, what it gives is wrong or in another order."""
FINALISTS = 3
NEAR = 1.15
"""Behind a schedule that takes so many times as long as the side's best, those of still other sizes are not tried."""
SLOW_NS = 1_000_000_000
"""Where a run takes this long, fewer are run."""
Job = tuple[Named, str]
Run = Callable[[Named, str], int]
Array = np.ndarray[Any, Any]


@dataclass
class Trial:
    """What a side did: nanoseconds by schedule, a list each; or why there is nothing."""

    ns: dict[str, list[int]] = field(default_factory=dict)
    cosine: float | None = None
    failed: str = ""

    @property
    def best(self) -> str:
        """The schedule of the least median, of those that were sampled; one lucky run is none."""
        most = max(map(len, self.ns.values()))
        sampled = [schedule for schedule, taken in self.ns.items() if 2 * len(taken) >= most]
        return min(sampled, key=lambda schedule: median(self.ns[schedule]))

    @property
    def typical_ns(self) -> float:
        """The median of the best schedule."""
        return median(self.ns[self.best])


def least_cosine(got: Array, expected: Array) -> float:
    """The least cosine of a row to that of PyTorch in float32; -1 for another shape or what is no number."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return -1.0
    ours, theirs = (one.reshape(len(one), -1).astype(np.float64) for one in (got, expected))
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(1) / np.maximum(norms, 1e-30)).min())


def refusal(named: Named, cosine: float) -> str:
    """Why a side's time does not count; "" where it does."""
    least = LEAST[named.precision]
    if cosine == -1:
        return "its outputs hold NaN or infinity, or have another shape"
    return (
        "" if cosine >= least else f"its outputs are wrong or not in input order: least cosine {cosine:.4f} < {least}"
    )


def try_side(named: Named, schedules: Sequence[str], run: Run, quickest_ns: float, outputs_ns: int = 0) -> Trial:
    """Schedules from the first on, to smaller and to larger groups as long as they are near the best.

    Each runs once to warm up and once timed; one that is far behind is not run again.

    Args:
        schedules: The first of them has been run already, for its outputs.
        quickest_ns: The best of the sides before it.
        outputs_ns: How long the run for the outputs took, which counts where that is long.
    """
    trial = Trial()

    def near(schedule: str) -> bool:
        first = outputs_ns if schedule == schedules[0] and outputs_ns > SLOW_NS else run(named, schedule)
        best = min([quickest_ns * 1.5, *(min(taken) for taken in trial.ns.values())])
        behind = first > (1.3 if first > SLOW_NS / 3 else 4) * best
        warm = schedule == schedules[0] and first > SLOW_NS / 3
        trial.ns[schedule] = [first if behind or warm else run(named, schedule)]
        return trial.ns[schedule][0] < NEAR * min(min(taken) for taken in trial.ns.values())

    near(schedules[0])
    by_size = [schedule for schedule in BY_SIZE if schedule in schedules]
    at = by_size.index(schedules[0]) if schedules[0] in by_size else -1
    for way in (by_size[at - 1 :: -1] if at > 0 else [], by_size[at + 1 :]):
        for schedule in way:
            if not near(schedule):
                break
    for schedule in schedules:
        if schedule not in BY_SIZE and schedule not in trial.ns:
            near(schedule)
    return trial


def finalists(trials: Mapping[Named, Trial]) -> list[Job]:
    """The schedules that may turn out the quickest, of attnport and of the peers, in each class of precisions."""
    found: list[Job] = []
    for precisions in CLASSES.values():
        for ours in (True, False):
            jobs = [
                (min(taken), named, schedule)
                for named, trial in trials.items()
                if named.ours == ours and named.precision in precisions and not trial.failed
                for schedule, taken in trial.ns.items()
            ]
            jobs.sort(key=lambda job: job[0])
            slow = bool(jobs) and jobs[0][0] > SLOW_NS
            near = [job for job in jobs[: 2 if slow else FINALISTS] if job[0] < (1.1 if slow else 1.25) * jobs[0][0]]
            found += [(named, schedule) for _, named, schedule in near]
    return list(dict.fromkeys(found))


def quickest(trials: Mapping[Named, Trial], jobs: Sequence[Job], precisions: Sequence[str], ours: bool) -> Job | None:
    """The finalist of the least median, attnport's or a peer's."""
    found = [job for job in jobs if job[0].ours == ours and job[0].precision in precisions]
    return min(found, key=lambda job: median(trials[job[0]].ns[job[1]]), default=None)


def ratios(trials: Mapping[Named, Trial], jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """By class: the ratio of attnport's best to the fastest peer's, its interval, and who they are."""
    found: dict[str, dict[str, Any]] = {}
    for name, precisions in CLASSES.items():
        ours, theirs = (quickest(trials, jobs, precisions, side) for side in (True, False))
        if ours is None or theirs is None:
            continue
        mine, other = ([[ns] for ns in trials[named].ns[schedule]] for named, schedule in (ours, theirs))
        low, middle, high = ratio_interval(mine, other)
        found[name] = {
            "ratio": round(middle, 4),
            "interval": [round(low, 4), round(high, 4)],
            "samples": len(mine),
            "ours": str(ours[0]),
            "peer": str(theirs[0]),
        }
    return found


def known(found: Mapping[str, Mapping[str, Any]], least: int = 8) -> bool:
    """Whether each interval is narrow enough."""
    return bool(found) and all(
        row["samples"] >= least
        and half_width((row["interval"][0], row["ratio"], row["interval"][1])) <= WIDTH
        for row in found.values()
    )  # fmt: skip


def settle(trials: Mapping[Named, Trial], run: Run, rounds: int = 2) -> None:
    """Runs every side's best schedule again, in random order: who is near the quickest must not hang on one run."""
    random, sides = np.random.default_rng(1), [named for named, trial in trials.items() if trial.typical_ns < SLOW_NS]
    for _ in range(rounds):
        for at in random.permutation(len(sides)):
            trial = trials[sides[at]]
            try:
                if not trial.failed:
                    trial.ns[trial.best].append(run(sides[at], trial.best))
            except SideFailed as err:
                trial.failed = str(err)


def sample(trials: dict[Named, Trial], run: Run, until: float, least: int = 5) -> dict[str, dict[str, Any]]:
    """Rounds of the finalists in random order, until every ratio is known or the time is over.

    Args:
        until: Of `time.perf_counter`.
        least: Rounds in any case.
    """
    jobs = finalists(trials)
    for named, schedule in jobs:
        trials[named].ns[schedule] = []
    random, rounds, checked = np.random.default_rng(0), 0, time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    while rounds < least or (time.perf_counter() < until and not known(found)):
        for at in random.permutation(len(jobs)):
            named, schedule = jobs[at]
            try:
                trials[named].ns[schedule].append(run(named, schedule))
            except SideFailed as err:
                trials[named].failed = str(err)
        jobs = [job for job in jobs if not trials[job[0]].failed]
        rounds += 1
        if rounds % 8 == 0 or time.perf_counter() - checked > 5:
            found, checked = ratios(trials, jobs), time.perf_counter()
    return ratios(trials, jobs)
