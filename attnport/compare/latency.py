"""Latency statistics: samples in rounds in, medians and an honest interval of the ratio out.

In each round every runtime is timed once, in a random order, so that what disturbs the machine for a while disturbs
all of them. The interval resamples whole blocks of rounds, the same ones for both sides: samples of one round, and of
rounds next to each other, are not independent, and pretending so makes intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.artifacts import LatencyRow, Ran

CONFIDENCE = 0.99
"""Nominal. Of 12 rounds the percentile interval of a median is too narrow: at a nominal 95 % two equal runtimes were
told apart in up to 9 % of simulated runs, at 99 % in at most 5 %."""
RESAMPLES = 4000
P90_SAMPLES = 20
"""Fewer samples than this do not say where a tenth of the calls lies."""


@dataclass(frozen=True)
class Samples:
    """What one runtime gave on one workload.

    Attributes:
        rounds_ns: For each round, the time of each call in it.
        problem: Why there are no samples; "" where there are.
    """

    rounds_ns: tuple[tuple[int, ...], ...] = ()
    problem: str = ""
    note: str = ""
    ran: Ran | None = None
    peak_bytes: int | None = None


def ratio_interval(
    rounds_ns: Sequence[Sequence[int]],
    baseline_ns: Sequence[Sequence[int]],
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> tuple[float, float, float]:
    """Low, middle and high of median / baseline median.

    A circular moving-block bootstrap (Politis and Romano, 1992) over rounds, drawn jointly for both sides; blocks of
    about the cube root of the number of rounds.

    Args:
        rounds_ns: Calls by round, the same number in each.
        baseline_ns: The baseline's, in the same rounds.

    Raises:
        ValueError: no rounds, no calls, or not the same number of rounds on both sides or of calls in each.
    """
    count = len(rounds_ns)
    if (
        count == 0
        or len(baseline_ns) != count
        or any(len({len(calls) for calls in side} | {0}) != 2 for side in (rounds_ns, baseline_ns))
    ):
        raise ValueError(
            f"got {count} rounds and {len(baseline_ns)} of the baseline; expected the same number, with equally many "
            "calls in each."
        )
    ours, theirs = (np.array(side, dtype=np.float64) for side in (rounds_ns, baseline_ns))
    middle = float(np.median(ours) / np.median(theirs))
    block = max(1, round(count ** (1 / 3)))
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, count, (RESAMPLES, -(-count // block)))
    drawn = ((starts[:, :, None] + np.arange(block)) % count).reshape(RESAMPLES, -1)[:, :count]
    ratios = np.median(ours[drawn], axis=(1, 2)) / np.median(theirs[drawn], axis=(1, 2))
    tail = (1 - confidence) / 2
    low, high = (float(edge) for edge in np.quantile(ratios, (tail, 1 - tail)))
    return min(low, middle), middle, max(high, middle)


def row(
    samples: Samples, baseline: Samples | None, items: int, tokens: int, *, is_baseline: bool = False, seed: int = 0
) -> LatencyRow:
    """The row of one runtime on one workload.

    Args:
        baseline: The baseline's samples; None, or one with a problem, leaves the ratio out.
        items: Sentences (batch items) in the workload.
        tokens: Real tokens in it.
    """
    flat = [sample for calls in samples.rounds_ns for sample in calls]
    if samples.problem or not flat:
        return LatencyRow("NOT_RUN", samples.problem or "no call was timed", ran=samples.ran)
    median = float(np.median(flat))
    ratio = None
    verdict, reason = "baseline", samples.note
    if not is_baseline:
        if baseline is None or baseline.problem or not baseline.rounds_ns:
            verdict, reason = "no difference shown", "; ".join(filter(None, ("the baseline was not run", samples.note)))
        else:
            shared = min(len(samples.rounds_ns), len(baseline.rounds_ns))
            ratio = ratio_interval(samples.rounds_ns[:shared], baseline.rounds_ns[:shared], seed)
            verdict = "faster" if ratio[2] < 1 else "slower" if ratio[0] > 1 else "no difference shown"
    return LatencyRow(
        verdict=verdict,
        reason=reason,
        median_ns=median,
        p90_ns=float(np.quantile(flat, 0.9)) if len(flat) >= P90_SAMPLES else None,
        samples_ns=tuple(flat),
        ratio=ratio,
        items_per_s=items / (median * 1e-9),
        tokens_per_s=tokens / (median * 1e-9),
        peak_bytes=samples.peak_bytes,
        ran=samples.ran,
    )


def rows(
    by_runtime: Mapping[str, Samples], baseline: str, items: int, tokens: int, seed: int = 0
) -> dict[str, LatencyRow]:
    """The rows of one workload."""
    return {
        name: row(samples, by_runtime.get(baseline), items, tokens, is_baseline=name == baseline, seed=seed + number)
        for number, (name, samples) in enumerate(by_runtime.items())
    }


def orders(names: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """A random order of the runtimes for each round."""
    rng: Any = np.random.default_rng(seed)
    return [[names[index] for index in rng.permutation(len(names))] for _ in range(rounds)]
