"""Chooses one of several ways to run a model by what was measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from attnport.artifacts import Candidate, Interval, LatencyReport, LatencyRow
from attnport.folder.openings import name_of

CHOSEN, SLOWER, NO_FASTER, REFUSED, NOT_RUN = "chosen", "slower", "no faster", "refused", "NOT_RUN"
PLAINEST_FIRST = ("fp32", "bf16", "int8_bf16", "int8", "int4_bf16", "int4")
Compare = Callable[[LatencyRow, LatencyRow], Interval | None]


def choose(
    candidates: Sequence[Candidate], latency: Mapping[int, LatencyReport], compare: Compare
) -> tuple[Candidate, ...]:
    """The candidates with their verdicts, the chosen one first, then by time, then those that were not timed.

    The fastest is the one with the least geometric mean of its medians over the workloads. Of those in a plainer
    precision, one takes its place if the fastest is not shown to be faster than it. Two are compared by their intervals
    where they were timed in the same run; otherwise, with other numbers of threads, by their medians.

    Args:
        candidates: With `ms`, and the verdict "" where they may be chosen.
        latency: By the number of threads.
        compare: The interval of the ratio of two rows' medians.
    """

    def rows(one: Candidate) -> list[LatencyRow]:
        name = name_of(one.runtime, one.plan)
        return [shape[name] for shape in latency[one.threads].shapes.values()]

    def faster(one: Candidate, other: Candidate) -> bool:
        """Whether `one` is shown to be faster than `other`: on average, and by its interval on some workload."""
        if mean(one) >= mean(other):
            return False
        if one.threads != other.threads:
            return True
        intervals = [compare(*pair) for pair in zip(rows(one), rows(other), strict=True)]
        return any(interval is not None and interval[2] < 1 for interval in intervals)

    able = sorted((one for one in candidates if not one.verdict and one.ms), key=mean)
    if not able:
        return tuple(candidates)
    fastest = able[0]
    plain = sorted(able, key=lambda one: (_rank(one), mean(one)))
    chosen = next((one for one in plain if one is fastest or not faster(fastest, one)), fastest)
    judged = []
    for one in candidates:
        if one is chosen:
            told = dataclasses.replace(one, verdict=CHOSEN)
        elif one.verdict or not one.ms:
            told = one if one.verdict else dataclasses.replace(one, verdict=NOT_RUN)
        elif faster(chosen, one):
            over = math.exp(mean(one) - mean(chosen))
            told = dataclasses.replace(one, verdict=SLOWER, reason=_joined(one, f"{over:.2f} times the chosen one's"))
        else:
            why = f"not shown to be faster than {name_of(chosen.runtime, chosen.plan)}"
            told = dataclasses.replace(one, verdict=NO_FASTER, reason=_joined(one, why))
        judged.append(told)
    order = {CHOSEN: 0, SLOWER: 1, NO_FASTER: 1, REFUSED: 2, NOT_RUN: 3}
    return tuple(sorted(judged, key=lambda one: (order[one.verdict], mean(one))))


def mean(one: Candidate) -> float:
    """The logarithm of the geometric mean of a candidate's medians; infinite if it was not timed."""
    return sum(map(math.log, one.ms.values())) / len(one.ms) if one.ms else math.inf


def _rank(one: Candidate) -> int:
    return PLAINEST_FIRST.index(one.plan) if one.plan in PLAINEST_FIRST else len(PLAINEST_FIRST)


def _joined(one: Candidate, more: str) -> str:
    return "; ".join(filter(None, (one.reason, more)))
