"""Intervals of ratios by a block bootstrap over rounds, and the quantiles that a number of samples supports.

Samples of one round, and of neighbouring rounds, are not independent, as disturbances of the machine last for a while.
So whole blocks of neighbouring rounds are resampled, the same ones for both sides of a ratio (Politis and Romano, "A
circular block-resampling procedure for stationary data", 1992). The length of a block follows from the autocorrelation
of the rounds (Politis and White, "Automatic block-length selection for the dependent bootstrap", 2004).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from attnport.artifacts import Interval

Array = np.ndarray[Any, Any]
Rounds = Sequence[Sequence[int]]
Run = tuple[Rounds, Rounds | None]
"""Calls by round of a runtime, and of the baseline in the same rounds; None = a run that is taken without it."""

CONFIDENCE = 0.99
"""The nominal confidence. Percentile intervals are too narrow for few rounds, even more so if a run ends once its
interval is narrow: on simulated machines with drift and autocorrelation, equal runtimes differ in 4 to 6 % of runs."""
RESAMPLES = 2000
_LEAST_TAIL = 0.005
"""At least ten resamples lie beyond an edge; with fewer, the edge would depend on single resamples."""
P90_SAMPLES = 20
"""The fewest samples from which a 90th percentile is computed."""
P99_SAMPLES = 1000
"""At least ten samples lie beyond the quantile; with fewer, it would depend on one or two outliers."""


def ratio_interval(rounds_ns: Rounds, baseline_ns: Rounds, seed: int = 0, starts: Sequence[int] = ()) -> Interval:
    """Low, middle and high of median / baseline median, for two sides that took turns.

    Args:
        rounds_ns: Calls by round, the same number in each.
        baseline_ns: The baseline's, in the same rounds.
        starts: The number of rounds in each start of the processes, if there were several. How fast a process is
            depends on where its memory lies, so each start then counts as one observation (Student's interval).

    Raises:
        ValueError: there are no rounds or calls, the numbers of rounds or of calls in each round differ, or the starts
            have other numbers of rounds in all.
    """
    ours, theirs = _paired(rounds_ns, baseline_ns)
    if len(starts) > 1:
        return _students([_by_start(ours, theirs, starts)], CONFIDENCE)
    return _interval(_log_ratio(ours, theirs), _resampled(ours, theirs, np.random.default_rng(seed)), CONFIDENCE)


def change_interval(
    after: Run,
    before: Run,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    starts: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Interval:
    """Low, middle and high of the change between two runs, each resampled on its own.

    Args:
        after: With a baseline, the change is that of median / baseline median, which leaves out changes of the machine;
            without one, that of the median alone.
        before: The same of the earlier run.
        starts: Of both runs, as in `ratio_interval`; their starts are taken to differ equally from each other.

    Raises:
        ValueError: as `ratio_interval`; or only one run has a baseline.
    """
    late, early = _two_runs(after, before)
    if min(map(len, starts)) > 1:
        return _students([_by_start(*late, starts[0]), _by_start(*early, starts[1])], confidence)
    rng = np.random.default_rng(seed)
    middle = _log_ratio(*late) - _log_ratio(*early)
    return _interval(middle, _resampled(*late, rng) - _resampled(*early, rng), confidence)


def mean_change(pairs: Sequence[tuple[Run, Run]], confidence: float = CONFIDENCE) -> Interval:
    """The mean change over several pairs of runs: low, middle and high of Student's interval.

    Unlike `change_interval`, it includes how much whole runs differ from each other.

    Args:
        pairs: After and before; at least two pairs.

    Raises:
        ValueError: as `change_interval`.
    """
    runs = [_two_runs(*pair) for pair in pairs]
    return _students([np.array([_log_ratio(*late) - _log_ratio(*early) for late, early in runs])], confidence)


def _two_runs(after: Run, before: Run) -> tuple[tuple[Array, Array | None], tuple[Array, Array | None]]:
    if (after[1] is None) != (before[1] is None):
        raise ValueError("one run has a baseline and the other has none.")
    sides = [_paired(rounds, rounds if base is None else base) for rounds, base in (after, before)]
    late, early = ((ours, None if after[1] is None else theirs) for ours, theirs in sides)
    return late, early


def family_confidence(count: int) -> float:
    """The confidence of each of `count` intervals whose joint confidence is `CONFIDENCE` (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(1, count)


def quantile(samples: Sequence[int], share: float) -> float | None:
    """The 0.9 or 0.99 quantile, or None if there are too few samples for it."""
    least = P99_SAMPLES if share > 0.9 else P90_SAMPLES
    return float(np.quantile(samples, share)) if len(samples) >= least else None


def half_width(interval: Interval) -> float:
    """Half of an interval's width as a share of its middle: 0.03 is plus or minus 3 %."""
    low, middle, high = interval
    return (high - low) / (2 * middle)


def block_length(series: Array) -> int:
    """The length of a block of rounds, from the lag-1 autocorrelation of a series with one value for each round.

    It is that of Politis and White for a first-order autoregressive series, n^(1/3) (6 (r / (1 - r^2))^2)^(1/3); at
    least n^(1/3), since the autocorrelation of a short series is underestimated, and at most a quarter of the rounds.
    """
    count = len(series)
    centred = series - series.mean()
    power = float(centred @ centred)
    r = float(centred[1:] @ centred[:-1]) / power if count > 2 and power > 0 else 0.0
    r = min(max(r, 0.0), 0.95)
    wanted = max(1.0, (6 * (r / (1 - r * r)) ** 2) ** (1 / 3)) * count ** (1 / 3)
    return int(max(1, min(round(wanted), count // 4)))


def _paired(rounds_ns: Rounds, baseline_ns: Rounds) -> tuple[Array, Array]:
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
    return ours, theirs


def _log_ratio(ours: Array, theirs: Array | None) -> float:
    return float(np.log(np.median(ours)) - (0.0 if theirs is None else np.log(np.median(theirs))))


def _resampled(ours: Array, theirs: Array | None, rng: np.random.Generator) -> Array:
    """The logarithm of the ratio of medians in each of `RESAMPLES` resamples [RESAMPLES]."""
    count = len(ours)
    by_round = np.log(np.median(ours, axis=1)) - (0.0 if theirs is None else np.log(np.median(theirs, axis=1)))
    block = block_length(by_round)
    starts = rng.integers(0, count, (RESAMPLES, -(-count // block)))
    drawn = ((starts[:, :, None] + np.arange(block)) % count).reshape(RESAMPLES, -1)[:, :count]
    places = drawn + np.arange(RESAMPLES)[:, None] * count
    times = np.bincount(places.ravel(), minlength=RESAMPLES * count).reshape(RESAMPLES, count)
    ratios = np.log(_medians(ours, times))
    ratios = ratios if theirs is None else ratios - np.log(_medians(theirs, times))
    # Resampling whole blocks reduces the variance by the factor (n - b) / n, which is corrected here.
    middle = _log_ratio(ours, theirs)
    return np.asarray(middle + (ratios - middle) * np.sqrt(count / max(1, count - block)))


def _by_start(ours: Array, theirs: Array | None, starts: Sequence[int]) -> Array:
    """The logarithm of the ratio of medians in each start [starts]."""
    if sum(starts) != len(ours) or min(starts) < 1:
        raise ValueError(f"got {len(ours)} rounds; expected those of the starts, {list(starts)}.")
    ends = np.cumsum(starts).tolist()
    parts = [slice(end - count, end) for end, count in zip(ends, starts, strict=True)]
    return np.array([_log_ratio(ours[part], None if theirs is None else theirs[part]) for part in parts])


def _students(groups: Sequence[Array], confidence: float) -> Interval:
    """Student's interval of the mean of one group, or of the first's mean less the second's, of equal variance."""
    middle = float(groups[0].mean() - (groups[1].mean() if len(groups) > 1 else 0.0))
    freedom = sum(len(group) - 1 for group in groups)
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom
    error = np.sqrt(variance * sum(1 / len(group) for group in groups))
    half = students_quantile((1 + confidence) / 2, freedom) * error
    low, value, high = (float(np.exp(edge)) for edge in (middle - half, middle, middle + half))
    return low, value, high


@functools.cache
def students_quantile(share: float, freedom: int) -> float:
    """Returns a quantile of Student's t distribution; `share` is 0.5 or more.

    With t = sqrt(freedom) tan(a), the density of the angle is proportional to cos(a)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return float(np.sqrt(freedom) * np.tan(np.interp(2 * share - 1, below / below[-1], angles)))


def _medians(calls: Array, times: Array) -> Array:
    """The median of each resample, given how often each round is in it [resamples, rounds]; sorts only once."""
    order = np.argsort(calls, axis=None)
    values, rounds = calls.ravel()[order], order // calls.shape[1]
    counter = np.int16 if calls.size < 2**15 else np.int32  # a third of the time of int64
    reached: Array = np.cumsum(times.astype(counter)[:, rounds], axis=1, dtype=counter)
    low, high = ((calls.size - 1) // 2, calls.size // 2)
    middle = values[(reached > low).argmax(axis=1)]
    return np.asarray((middle + values[(reached > high).argmax(axis=1)]) / 2 if high > low else middle)


def _interval(middle: float, resampled: Array, confidence: float) -> Interval:
    """The interval of a confidence. Beyond what the resamples support, it is extended as for a normal distribution."""
    tail = (1 - confidence) / 2
    tail_shown = max(tail, _LEAST_TAIL)
    stretch = NormalDist().inv_cdf(1 - tail) / NormalDist().inv_cdf(1 - tail_shown)
    edges = np.quantile(resampled, (tail_shown, 1 - tail_shown))
    low, high = (float(edge) for edge in np.exp(middle + (edges - middle) * stretch))
    value = float(np.exp(middle))
    return min(low, value), value, max(high, value)
