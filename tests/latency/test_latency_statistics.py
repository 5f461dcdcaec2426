"""Intervals on simulated machines: drift of the whole machine, autocorrelated noise, outliers, all from one seed."""

from __future__ import annotations

import numpy as np
import pytest

from attnport.latency import rows as latency
from attnport.latency import statistics
from attnport.latency.rows import STEADY_ROUNDS, next_look, precise
from attnport.latency.statistics import (
    CONFIDENCE,
    P90_SAMPLES,
    P99_SAMPLES,
    block_length,
    change_interval,
    family_confidence,
    half_width,
    quantile,
    ratio_interval,
)

Rounds = list[list[int]]
PRECISION, MOST = 0.03, 120
WORLDS = 1000


def autoregressive(rng: np.random.Generator, count: int, r: float) -> np.ndarray:
    """A first-order autoregressive series of variance 1."""
    noise = rng.normal(0, np.sqrt(1 - r * r), count + 30).tolist()
    series, value = [], 0.0
    for one in noise:
        value = r * value + one
        series.append(value)
    return np.array(series[30:])


def world(
    seed: int, rounds: int, calls: int, factor: float, r: float = 0.5, drift: float = 0.15
) -> tuple[Rounds, Rounds]:
    """Two runtimes that take turns, the first `factor` times as slow.

    Both share a drift of the machine (a sine of +-15 %) and a disturbance of 3 %; each has one of 2 % of its own, which
    lasts over rounds (autocorrelation 0.5), skewed noise of 3 % a call, and 5 % of outliers.
    """
    rng = np.random.default_rng(seed)
    level = drift * np.sin(rng.uniform(0, 2 * np.pi) + np.linspace(0, 3, rounds))
    level = level + 0.03 * autoregressive(rng, rounds, r)

    def side(speed: float) -> Rounds:
        noise = np.abs(rng.normal(0, 0.03, (rounds, calls)))
        noise += (rng.random((rounds, calls)) < 0.05) * rng.exponential(0.5, (rounds, calls))
        own = 0.02 * autoregressive(rng, rounds, r)
        return (5e6 * speed * np.exp(level[:, None] + own[:, None] + noise)).astype(int).tolist()

    return side(factor), side(1.0)


def ended(seed: int, calls: int, factor: float, r: float = 0.5) -> tuple[Rounds, Rounds]:
    """The rounds of a run that ends as one of `attnport bench` does: when it is narrow enough, or at its limit."""
    ours, theirs = world(seed, MOST, calls, factor, r)
    done = next_look(0)
    while not precise({"ours": ours[:done], "base": theirs[:done]}, "base", PRECISION) and done < MOST:
        done = min(MOST, next_look(done))
    return ours[:done], theirs[:done]


def measured(seed: int, calls: int, factor: float, r: float = 0.5) -> statistics.Interval:
    """The interval of a run that ends as one of `attnport bench` does: when it is narrow enough, or at its limit."""
    return ratio_interval(*ended(seed, calls, factor, r), seed)


def intervals(factor: float, worlds: int, r: float = 0.5) -> list[statistics.Interval]:
    return [measured(seed, 1 + 3 * (seed % 2), factor, r) for seed in range(worlds)]


def told_apart(worlds: int, r: float = 0.5) -> float:
    """The share of equal pairs that are taken for different."""
    return sum(not low <= 1 <= high for low, _, high in intervals(1.0, worlds, r)) / worlds


def found_slower(factor: float, worlds: int) -> float:
    """The share of slowdowns that are found, as such."""
    return sum(low > 1 for low, _, _ in intervals(factor, worlds)) / worlds


@pytest.mark.slow
def test_of_a_thousand_equal_pairs_at_most_seven_percent_are_told_apart() -> None:
    assert told_apart(WORLDS) <= 0.07


@pytest.mark.slow
def test_of_a_thousand_slowdowns_of_a_twentieth_at_least_ninety_five_percent_are_found() -> None:
    assert found_slower(1.05, WORLDS) >= 0.95


def test_of_some_equal_pairs_few_are_told_apart_and_of_some_slowdowns_most() -> None:
    """The two above in little."""
    assert told_apart(60) <= 0.07
    assert found_slower(1.05, 60) >= 0.95


def test_an_interval_that_takes_rounds_for_independent_raises_too_many_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the blocks are for, and that the test above can fail."""
    monkeypatch.setattr(statistics, "block_length", lambda series: 1)
    assert told_apart(100, r=0.8) > 0.1


def test_an_interval_of_other_rounds_for_each_side_misses_the_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What drawing the same rounds for both sides is for: the machine's drift cancels."""

    def apart(factor: float) -> statistics.Interval:
        ours, theirs = world(3, 40, 4, factor, drift=0.3)
        return change_interval((ours, None), (theirs, None), 3)

    low, _, high = apart(1.05)
    assert low < 1 < high
    ours, theirs = world(3, 40, 4, 1.05, drift=0.3)
    assert ratio_interval(ours, theirs, 3)[0] > 1


@pytest.mark.parametrize("calls", [1, 4])
def test_a_run_that_its_time_limit_ends_after_twelve_rounds_raises_no_more_alarms(calls: int) -> None:
    alarms = 0
    for seed in range(300):
        low, _, high = ratio_interval(*world(seed, 12, calls, 1.0), seed)
        alarms += not low <= 1 <= high
    assert alarms / 300 <= 0.07


def test_the_interval_holds_the_ratio_and_is_the_same_for_a_seed() -> None:
    ours, theirs = world(1, 20, 3, 1.5)
    low, middle, high = ratio_interval(ours, theirs, 3)
    assert low <= middle <= high
    assert middle == pytest.approx(np.median(ours) / np.median(theirs))
    assert (low, middle, high) == ratio_interval(ours, theirs, 3)
    assert low > 1.3
    assert high < 1.7


def test_resampled_medians_are_those_that_numpy_takes_of_the_drawn_rounds() -> None:
    rng = np.random.default_rng(0)
    for rounds, calls in ((5, 1), (6, 3), (4, 2), (3, 3)):
        times_taken = rng.integers(1, 100, (rounds, calls)).astype(float)
        drawn = rng.integers(0, rounds, (50, rounds))
        counts = np.array([np.bincount(one, minlength=rounds) for one in drawn])
        expected = [np.median(times_taken[one]) for one in drawn]
        np.testing.assert_array_equal(statistics._medians(times_taken, counts), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], []), ([(1,)], [(1,), (2,)]), ([(1,), (1, 2)], [(1,), (1,)]), ([()], [()])]
)
def test_samples_that_do_not_pair_up_are_refused(ours: Rounds, theirs: Rounds) -> None:
    with pytest.raises(ValueError, match="rounds"):
        ratio_interval(ours, theirs)


def test_blocks_are_longer_where_rounds_resemble_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    alone, resembling = rng.normal(size=200), autoregressive(rng, 200, 0.8)
    assert block_length(alone) == round(200 ** (1 / 3))
    assert block_length(resembling) > 2 * block_length(alone)
    assert block_length(np.ones(40)) == round(40 ** (1 / 3))  # a timer that shows one value only
    assert [block_length(np.arange(count, dtype=float)) for count in (1, 2, 3, 12)] == [1, 1, 1, 3]


def test_a_change_between_runs_is_that_of_the_ratio_to_the_baseline() -> None:
    before, base_before = world(1, 30, 4, 0.5)
    after, base_after = world(2, 30, 4, 0.6)
    slow_machine = (
        [[2 * call for call in calls] for calls in after],
        [[2 * call for call in calls] for calls in base_after],
    )
    low, middle, high = change_interval(slow_machine, (before, base_before))
    assert middle == pytest.approx(1.2, rel=0.06)
    assert 1 < low < middle < high
    assert change_interval((slow_machine[0], None), (before, None))[1] == pytest.approx(2.4, rel=0.3)
    with pytest.raises(ValueError, match="baseline"):
        change_interval((after, base_after), (before, None))


@pytest.mark.parametrize("runs", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_of_equal_runs_few_are_told_apart_and_of_slowdowns_of_a_tenth_between_runs_most_are_found(runs: int) -> None:
    alarms = found = 0
    for seed in range(runs):
        before, again = world(seed, 40, 4, 0.5), world(10_000 + seed, 40, 4, 0.5)
        low, _, high = change_interval(again, before, seed)
        alarms += not low <= 1 <= high
        found += change_interval(world(20_000 + seed, 40, 4, 0.5 * 1.1), before, seed)[0] > 1
    assert alarms / runs <= 0.07
    assert found / runs >= 0.95


@pytest.mark.slow
def test_of_equal_reports_of_24_rows_few_show_a_regression() -> None:
    """What a gate over a whole report asks: single rows are told apart too often for that."""
    families, rows = 40, 24
    confidence = family_confidence(rows)
    gates = alone = 0
    for family in range(families):
        lows = []
        for row in range(rows):
            seed = 1000 * family + row
            calls = 1 + 3 * (row % 2)
            before, again = ended(seed, calls, 0.5), ended(5_000_000 + seed, calls, 0.5)
            lows.append([change_interval(again, before, seed, level)[0] for level in (confidence, CONFIDENCE)])
        gates += any(low > 1 for low, _ in lows)
        alone += any(low > 1 for _, low in lows)
    assert gates / families <= 0.07
    assert alone / families > 0.07


def test_quantiles_are_told_only_where_the_samples_support_them() -> None:
    for share, least in ((0.9, P90_SAMPLES), (0.99, P99_SAMPLES)):
        assert quantile(range(1, least), share) is None
        assert quantile(range(1, least + 1), share) == pytest.approx(share * least, rel=0.06)


def test_a_run_is_precise_only_with_narrow_intervals_of_every_runtime_and_enough_rounds() -> None:
    base = [[100 + number % 2] for number in range(STEADY_ROUNDS)]
    wild = np.random.default_rng(0).integers(100, 300, (STEADY_ROUNDS, 1)).tolist()
    assert precise({"base": base, "same": base}, "base", 0.03)
    assert not precise({"base": base, "same": base, "wild": wild}, "base", 0.03)
    assert not precise({"base": base[:-1], "same": base[:-1]}, "base", 0.03)
    assert half_width((0.9, 1.0, 1.1)) == pytest.approx(0.1)


def test_a_warm_up_is_over_when_two_windows_agree() -> None:
    assert not latency.settled([[100]])
    assert not latency.settled([[100], [100], [80]])
    assert latency.settled([[200], [100, 103, 101], [102, 98, 99]])


def test_drift_is_the_change_from_the_first_third_to_the_last() -> None:
    assert latency.drift([[100]] * 10 + [[150]] * 10 + [[120]] * 10) == pytest.approx(0.2)
    assert latency.drift([[100]]) == 0
