"""Intervals of ratios by a block bootstrap over rounds, and which quantiles a number of samples supports.

Samples of one round, and of rounds next to each other, are not independent: whatever disturbs the machine lasts for a
while. So whole blocks of neighbouring rounds are resampled, the same ones for both sides of a ratio (Politis and
Romano, "A circular block-resampling procedure for stationary data", 1992). How long a block is follows from the
autocorrelation that the rounds show (Politis and White, "Automatic block-length selection for the dependent
bootstrap", 2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Interval = tuple[float, float, float]
"""Low, middle and high of a ratio."""
Rounds = Sequence[Sequence[int]]

CONFIDENCE = 0.99
"""Nominal. Percentile intervals are too narrow for few rounds, and a run that ends once its interval is narrow makes
that worse: on simulated machines with drift and autocorrelation, equal runtimes are told apart in 4 to 6 % of runs."""
RESAMPLES = 2000
_LEAST_TAIL = 0.005
"""Ten resamples beyond an edge; with fewer it lies where one of them happens to."""
P90_SAMPLES = 20
"""Fewer samples than this do not say where a tenth of the calls lies."""
P99_SAMPLES = 1000
"""Ten samples beyond the quantile: with fewer the figure is that of one or two accidents."""


def ratio_interval(rounds_ns: Rounds, baseline_ns: Rounds, seed: int = 0, confidence: float = CONFIDENCE) -> Interval:
    """Low, middle and high of median / baseline median, for two sides that took turns.

    Args:
        rounds_ns: Calls by round, the same number in each.
        baseline_ns: The baseline's, in the same rounds.

    Raises:
        ValueError: no rounds, no calls, or not the same number of rounds on both sides or of calls in each.
    """
    ours, theirs = _paired(rounds_ns, baseline_ns)
    return _interval(_log_ratio(ours, theirs), _resampled(ours, theirs, np.random.default_rng(seed)), confidence)


def change_interval(
    after: tuple[Rounds, Rounds | None],
    before: tuple[Rounds, Rounds | None],
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Low, middle and high of the change between two runs, each resampled on its own.

    Args:
        after: The calls by round of a runtime, and of the baseline in the same rounds; the change is then that of
            median / baseline median, which leaves out what the machine did to both. None = of the median alone.
        before: The same of the earlier run.

    Raises:
        ValueError: as `ratio_interval`; or a baseline in one run alone.
    """
    if (after[1] is None) != (before[1] is None):
        raise ValueError("one run has a baseline and the other has none.")
    rng = np.random.default_rng(seed)
    sides = [_paired(rounds, rounds if base is None else base) for rounds, base in (after, before)]
    alone = after[1] is None
    (late, early) = ((ours, None if alone else theirs) for ours, theirs in sides)
    middle = _log_ratio(*late) - _log_ratio(*early)
    return _interval(middle, _resampled(*late, rng) - _resampled(*early, rng), confidence)


def family_confidence(count: int) -> float:
    """The confidence of each of `count` intervals that are to hold all together at `CONFIDENCE` (Bonferroni's)."""
    return 1 - (1 - CONFIDENCE) / max(1, count)


def quantile(samples: Sequence[int], share: float) -> float | None:
    """The 0.9 or 0.99 quantile, or None where there are too few samples to support it."""
    least = P99_SAMPLES if share > 0.9 else P90_SAMPLES
    return float(np.quantile(samples, share)) if len(samples) >= least else None


def half_width(interval: Interval) -> float:
    """Half of an interval's width as a share of its middle: 0.03 is plus or minus 3 %."""
    low, middle, high = interval
    return (high - low) / (2 * middle)


def block_length(series: Array) -> int:
    """How many neighbouring rounds stay together, by the lag-1 autocorrelation of one value a round.

    That of Politis and White for a first-order autoregressive series, n^(1/3) (6 (r / (1 - r^2))^2)^(1/3); at least
    n^(1/3), since the autocorrelation of a short series is underestimated, and at most a quarter of the rounds.
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
    found = np.log(_medians(ours, times))
    found = found if theirs is None else found - np.log(_medians(theirs, times))
    # Whole blocks vary less than what they are drawn from, by (n - b) / n in variance.
    middle = _log_ratio(ours, theirs)
    return np.asarray(middle + (found - middle) * np.sqrt(count / max(1, count - block)))


def _medians(calls: Array, times: Array) -> Array:
    """The median of each resample, by how many times each round is in it [resamples, rounds]; sorts only once."""
    order = np.argsort(calls, axis=None)
    values, rounds = calls.ravel()[order], order // calls.shape[1]
    counter = np.int16 if calls.size < 2**15 else np.int32  # a third of the time of int64
    reached: Array = np.cumsum(times.astype(counter)[:, rounds], axis=1, dtype=counter)
    low, high = ((calls.size - 1) // 2, calls.size // 2)
    middle = values[(reached > low).argmax(axis=1)]
    return np.asarray((middle + values[(reached > high).argmax(axis=1)]) / 2 if high > low else middle)


def _interval(middle: float, resampled: Array, confidence: float) -> Interval:
    """The interval of a confidence; farther out than the resamples tell, it is stretched as a normal one would be."""
    tail = (1 - confidence) / 2
    told = max(tail, _LEAST_TAIL)
    stretch = NormalDist().inv_cdf(1 - tail) / NormalDist().inv_cdf(1 - told)
    edges = np.quantile(resampled, (told, 1 - told))
    low, high = (float(edge) for edge in np.exp(middle + (edges - middle) * stretch))
    value = float(np.exp(middle))
    return min(low, value), value, max(high, value)
