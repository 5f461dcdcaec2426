"""Rows of latency from calls in rounds: medians, quantiles and the interval of the ratio.

In each round every runtime is timed once, in a random order, so that a disturbance of the machine affects all of them.
`statistics` computes the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnport.artifacts import Interval, LatencyRow
from attnport.latency.statistics import half_width, quantile, ratio_interval

STEADY_ROUNDS = 20
"""The fewest rounds after which narrow intervals end a run; with fewer, they are often narrow by chance."""
AGREE = 0.05
"""A runtime is warm if the medians of two windows of calls differ by less than this share."""
_GROWTH = 1.25


@dataclass
class Measured:
    """One runtime on one workload, while it is measured.

    Attributes:
        rounds_ns: For each round, the time of each call in it.
        parts_ns: The times of each call from events, by part of `artifacts.DEVICE_PARTS`; empty without a device.
        starts: The number of rounds in each start of the processes.
        warm: Whether times had settled before the first sample.
        notes: What the reader must know of the figures.
        row: The figures that do not come from rounds, or why there are no figures.
    """

    rounds_ns: list[tuple[int, ...]] = field(default_factory=list)
    parts_ns: dict[str, list[int]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    warm: bool = True
    notes: list[str] = field(default_factory=list)
    row: LatencyRow = field(default_factory=LatencyRow)


def row(
    own: Measured, baseline: Measured | None, items: int, tokens: int, *, seed: int = 0, precision: float = np.inf
) -> LatencyRow:
    """The row of one runtime on one workload.

    Args:
        baseline: What was measured of the baseline; `own`, None, or one without figures leaves the ratio out.
        items: Sentences (batch items) in the workload.
        tokens: Real tokens in it.
        seed: Makes the interval reproducible.
        precision: The wanted half width of the interval, as a share of the ratio; a wider interval gets a note.
    """
    flat = [sample for calls in own.rounds_ns for sample in calls]
    if own.row.kind or not flat:
        reason, kind = own.row.reason or "no call was timed", own.row.kind or "unavailable"
        return LatencyRow(reason=reason, kind=kind, ran=own.row.ran)
    starts = _starts(own)
    median = float(np.median(flat))
    ratio: Interval | None = None
    verdict, notes = "baseline", [*own.notes]
    if not own.warm:
        notes.append(f"its times had not settled after {own.row.warm_calls} calls")
    if own is not baseline:
        verdict = "no difference shown"
        if baseline is None or baseline.row.kind or not baseline.rounds_ns:
            notes.insert(0, "the baseline was not run")
        else:
            shared = min(len(own.rounds_ns), len(baseline.rounds_ns))
            ratio = ratio_interval(own.rounds_ns[:shared], baseline.rounds_ns[:shared], seed, starts=starts)
            verdict = "faster" if ratio[2] < 1 else "slower" if ratio[0] > 1 else verdict
            if half_width(ratio) > precision:
                why = "starts of the processes differ" if starts else "the time limit came first"
                notes.append(f"{why}: its ratio is known within {half_width(ratio):.1%}, not {precision:.1%}")
    return replace(
        own.row,
        verdict=verdict,
        reason="; ".join(notes),
        median_ns=median,
        p90_ns=quantile(flat, 0.9),
        p99_ns=quantile(flat, 0.99),
        samples_ns=tuple(flat),
        calls=len(own.rounds_ns[0]),
        starts=starts,
        ratio=ratio,
        items_per_s=items / (median * 1e-9),
        tokens_per_s=tokens / (median * 1e-9),
        parts_ns={part: float(np.median(times)) for part, times in own.parts_ns.items() if len(times)},
        device_ratio=None if baseline is None or baseline is own else _device_ratio(own, baseline, seed),
    )


def _starts(own: Measured) -> tuple[int, ...]:
    """The rounds of each start of the processes, if there were several."""
    return tuple(own.starts) if len(own.starts) > 1 else ()


def _device_ratio(own: Measured, baseline: Measured, seed: int) -> Interval | None:
    """The interval of the ratio of computing times on the device; None if one of the two has no such times."""
    mine, theirs = (_device_rounds(side) for side in (own, baseline))
    shared = min(len(mine), len(theirs))
    # Events have a finite resolution: there is no ratio if a median is 0.
    if not shared or not (np.median(mine) and np.median(theirs)):
        return None
    return ratio_interval(mine[:shared], theirs[:shared], seed, starts=_starts(own))


def _device_rounds(own: Measured) -> list[tuple[int, ...]]:
    """The computing times on the device of the calls in each round."""
    times, calls = own.parts_ns.get("device", []), len(own.rounds_ns[0]) if own.rounds_ns else 0
    if not calls or len(times) != calls * len(own.rounds_ns):
        return []
    return [tuple(times[at : at + calls]) for at in range(0, len(times), calls)]


def rows(
    by_runtime: Mapping[str, Measured], baseline: str, items: int, tokens: int, seed: int = 0, precision: float = np.inf
) -> dict[str, LatencyRow]:
    """The rows of one workload; see `row`."""
    base = by_runtime.get(baseline)
    return {
        name: row(own, base, items, tokens, seed=seed + number, precision=precision)
        for number, (name, own) in enumerate(by_runtime.items())
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
