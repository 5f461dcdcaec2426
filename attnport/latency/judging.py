"""Computes latency rows from samples in rounds: medians, quantiles and the interval of the ratio.

In each round every runtime is timed once, in a random order, so that a disturbance of the machine affects all of them.
`statistics` computes the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnport.artifacts import Interval, LatencyRow, Ran
from attnport.latency.statistics import half_width, quantile, ratio_interval

STEADY_ROUNDS = 20
"""The fewest rounds after which narrow intervals end a run; with fewer, they are often narrow by chance."""
AGREE = 0.05
"""A runtime is warm if the medians of two windows of calls differ by less than this share."""
_GROWTH = 1.25


@dataclass
class Samples:
    """The measurements of one runtime on one workload.

    Attributes:
        rounds_ns: For each round, the time of each call in it.
        problem: Why there are no samples; "" if there are.
        note: What the reader must know about them.
        ran: What really ran.
        peak_bytes: The peak memory, in a process of its own.
        warm_calls: Calls before the first sample.
        warm: Whether their times had settled by then.
        load_ns: The time to open, with packages imported before, in a process of its own.
        first_ns: The time of the first call there.
        cached_load_ns: As `load_ns`, with the cache that this process left; None for a runtime that keeps nothing.
        cached_first_ns: As `first_ns`, likewise.
        starts: The number of rounds in each start of the processes.
        parts_ns: The times of each call from events, by part of `artifacts.DEVICE_PARTS`; empty without a device.
    """

    rounds_ns: list[tuple[int, ...]] = field(default_factory=list)
    problem: str = ""
    note: str = ""
    ran: Ran | None = None
    peak_bytes: int | None = None
    warm_calls: int = 0
    warm: bool = True
    load_ns: int | None = None
    first_ns: int | None = None
    parts_ns: dict[str, list[int]] = field(default_factory=dict)
    cached_load_ns: int | None = None
    cached_first_ns: int | None = None
    starts: list[int] = field(default_factory=list)


def row(
    samples: Samples,
    baseline: Samples | None,
    items: int,
    tokens: int,
    *,
    is_baseline: bool = False,
    seed: int = 0,
    precision: float | None = None,
) -> LatencyRow:
    """The row of one runtime on one workload.

    Args:
        baseline: The baseline's samples; None, or one with a problem, leaves the ratio out.
        items: Sentences (batch items) in the workload.
        tokens: Real tokens in it.
        precision: The wanted half width of the interval, as a share of the ratio; a wider interval gets a note.
    """
    flat = [sample for calls in samples.rounds_ns for sample in calls]
    starts = _starts(samples)
    if samples.problem or not flat:
        return LatencyRow("NOT_RUN", samples.problem or "no call was timed", ran=samples.ran)
    median = float(np.median(flat))
    ratio: Interval | None = None
    verdict, notes = "baseline", [samples.note]
    if not samples.warm:
        notes.append(f"its times had not settled after {samples.warm_calls} calls")
    if not is_baseline:
        verdict = "no difference shown"
        if baseline is None or baseline.problem or not baseline.rounds_ns:
            notes.insert(0, "the baseline was not run")
        else:
            shared = min(len(samples.rounds_ns), len(baseline.rounds_ns))
            ratio = ratio_interval(samples.rounds_ns[:shared], baseline.rounds_ns[:shared], seed, starts=starts)
            verdict = "faster" if ratio[2] < 1 else "slower" if ratio[0] > 1 else verdict
            if precision is not None and half_width(ratio) > precision:
                why = "starts of the processes differ" if starts else "the time limit came first"
                notes.append(f"{why}: its ratio is known within {half_width(ratio):.1%}, not {precision:.1%}")
    return LatencyRow(
        verdict=verdict,
        reason="; ".join(filter(None, notes)),
        median_ns=median,
        p90_ns=quantile(flat, 0.9),
        p99_ns=quantile(flat, 0.99),
        samples_ns=tuple(flat),
        calls=len(samples.rounds_ns[0]),
        starts=starts,
        ratio=ratio,
        items_per_s=items / (median * 1e-9),
        tokens_per_s=tokens / (median * 1e-9),
        peak_bytes=samples.peak_bytes,
        load_ns=samples.load_ns,
        first_ns=samples.first_ns,
        cached_load_ns=samples.cached_load_ns,
        cached_first_ns=samples.cached_first_ns,
        warm_calls=samples.warm_calls,
        parts_ns={part: float(np.median(times)) for part, times in samples.parts_ns.items() if len(times)},
        device_ratio=None if is_baseline or baseline is None else _device_ratio(samples, baseline, seed),
        ran=samples.ran,
    )


def _starts(samples: Samples) -> tuple[int, ...]:
    """The rounds of each start of the processes, if there were several."""
    return tuple(samples.starts) if len(samples.starts) > 1 else ()


def _device_ratio(samples: Samples, baseline: Samples, seed: int) -> Interval | None:
    """The interval of the ratio of computing times on the device; None if one of the two has no such times."""
    mine, theirs = (_device_rounds(side) for side in (samples, baseline))
    shared = min(len(mine), len(theirs))
    # Events have a finite resolution: there is no ratio if a median is 0.
    if not shared or not (np.median(mine) and np.median(theirs)):
        return None
    return ratio_interval(mine[:shared], theirs[:shared], seed, starts=_starts(samples))


def _device_rounds(samples: Samples) -> list[tuple[int, ...]]:
    """The computing times on the device of the calls in each round."""
    times, calls = samples.parts_ns.get("device", []), len(samples.rounds_ns[0]) if samples.rounds_ns else 0
    if not calls or len(times) != calls * len(samples.rounds_ns):
        return []
    return [tuple(times[at : at + calls]) for at in range(0, len(times), calls)]


def rows(
    by_runtime: Mapping[str, Samples],
    baseline: str,
    items: int,
    tokens: int,
    seed: int = 0,
    precision: float | None = None,
) -> dict[str, LatencyRow]:
    """The rows of one workload."""
    return {
        name: row(
            samples,
            by_runtime.get(baseline),
            items,
            tokens,
            is_baseline=name == baseline,
            seed=seed + number,
            precision=precision,
        )
        for number, (name, samples) in enumerate(by_runtime.items())
    }


def orders(names: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """A random order of the runtimes for each round."""
    rng: Any = np.random.default_rng(seed)
    return [[names[index] for index in rng.permutation(len(names))] for _ in range(rounds)]


def precise(by_runtime: Mapping[str, Sequence[Sequence[int]]], baseline: str, precision: float, seed: int = 0) -> bool:
    """Whether the ratio of every runtime is known within `precision`, from enough rounds."""
    base = by_runtime.get(baseline, ())
    return len(base) >= STEADY_ROUNDS and all(
        half_width(ratio_interval(rounds[: len(base)], base[: len(rounds)], seed)) <= precision
        for name, rounds in by_runtime.items()
        if name != baseline and rounds
    )


def next_look(rounds: int) -> int:
    """The number of rounds at which to call `precise` again; each call may end the run by chance."""
    return max(STEADY_ROUNDS, int(rounds * _GROWTH) + 1)


def settled(windows_ns: Sequence[Sequence[int]]) -> bool:
    """Whether the last two windows of calls agree, so that compilation, caches and clock rates have settled."""
    if len(windows_ns) < 2:
        return False
    before, now = (float(np.median(window)) for window in windows_ns[-2:])
    return abs(now - before) <= AGREE * before


def drift(rounds_ns: Sequence[Sequence[int]]) -> float:
    """The share by which the last third of the rounds is slower than the first; negative if it is faster."""
    by_round = np.median(np.array(rounds_ns, dtype=np.float64), axis=1)
    third = max(1, len(by_round) // 3)
    return float(np.median(by_round[-third:]) / np.median(by_round[:third]) - 1)
