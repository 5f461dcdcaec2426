from __future__ import annotations

import numpy as np
import pytest

from attnport.artifacts import Ran
from attnport.compare.latency import P90_SAMPLES, Samples, orders, ratio_interval, row, rows

Rounds = list[tuple[int, ...]]


def world(seed: int, rounds: int, calls: int, factor: float, *, drift: bool) -> tuple[Rounds, Rounds]:
    """Two runtimes on a noisy machine, the first `factor` times as slow: skewed noise, outliers, a common drift."""
    rng = np.random.default_rng(seed)
    level = 1 + (np.cumsum(rng.normal(0, 0.02, rounds)) if drift else np.zeros(rounds))

    def side(speed: float) -> Rounds:
        noise = np.exp(np.abs(rng.normal(0, 0.03, (rounds, calls))))
        noise *= 1 + (rng.random((rounds, calls)) < 0.05) * rng.exponential(1, (rounds, calls))
        return [tuple(int(5e6 * speed * level[index] * one) for one in noise[index]) for index in range(rounds)]

    return side(factor), side(1.0)


def told_apart(factor: float, rounds: int, calls: int, *, drift: bool, worlds: int = 150) -> float:
    hits = 0
    for seed in range(worlds):
        ours, theirs = world(seed, rounds, calls, factor, drift=drift)
        low, _, high = ratio_interval(ours, theirs, seed)
        hits += not low <= 1 <= high
    return hits / worlds


@pytest.mark.parametrize(("rounds", "calls", "drift"), [(12, 1, False), (12, 4, True), (40, 1, True)])
def test_two_equal_runtimes_are_hardly_ever_told_apart(rounds: int, calls: int, drift: bool) -> None:
    assert told_apart(1.0, rounds, calls, drift=drift) <= 0.08


@pytest.mark.parametrize(("rounds", "calls"), [(12, 4), (40, 1)])
def test_a_slowdown_of_a_tenth_is_found(rounds: int, calls: int) -> None:
    assert told_apart(1.1, rounds, calls, drift=True) >= 0.95


def test_the_interval_holds_the_ratio_and_is_the_same_for_a_seed() -> None:
    ours, theirs = world(1, 20, 3, 1.5, drift=True)
    low, middle, high = ratio_interval(ours, theirs, 3)
    assert low <= middle <= high
    assert middle == np.median(ours) / np.median(theirs)
    assert (low, middle, high) == ratio_interval(ours, theirs, 3)
    assert low > 1.3
    assert high < 1.7


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], []), ([(1,)], [(1,), (2,)]), ([(1,), (1, 2)], [(1,), (1,)]), ([()], [()])]
)
def test_samples_that_do_not_pair_up_are_refused(ours: Rounds, theirs: Rounds) -> None:
    with pytest.raises(ValueError, match="rounds"):
        ratio_interval(ours, theirs)


def samples(ns: int, rounds: int = 12) -> Samples:
    jitter = np.random.default_rng(ns).integers(0, ns // 50, rounds)
    return Samples(tuple((ns + int(one),) for one in jitter), ran=Ran("CPU", "x", "fp32"), peak_bytes=7)


def test_rows_say_faster_slower_or_that_no_difference_shows() -> None:
    found = rows(
        {"eager": samples(1_000_000), "fast": samples(500_000), "slow": samples(2_000_000), "same": samples(1_000_001)},
        "eager",
        items=4,
        tokens=100,
    )
    assert {name: one.verdict for name, one in found.items()} == {
        "eager": "baseline",
        "fast": "faster",
        "slow": "slower",
        "same": "no difference shown",
    }
    assert found["eager"].ratio is None
    fast = found["fast"]
    assert fast.items_per_s == pytest.approx(4e9 / fast.median_ns)
    assert fast.tokens_per_s == pytest.approx(100e9 / fast.median_ns)
    assert fast.peak_bytes == 7
    assert len(fast.samples_ns) == 12


def test_p90_is_told_only_where_the_samples_support_it() -> None:
    assert row(samples(1000, P90_SAMPLES - 1), None, 1, 1).p90_ns is None
    assert row(samples(1000, P90_SAMPLES), None, 1, 1).p90_ns is not None


def test_a_runtime_without_samples_is_not_run_with_its_reason() -> None:
    assert row(Samples(problem="it ended"), samples(9999), 1, 1).verdict == "NOT_RUN"
    assert row(Samples(problem="it ended"), samples(9999), 1, 1).reason == "it ended"
    assert row(Samples(), samples(9999), 1, 1).verdict == "NOT_RUN"
    assert row(Samples(((5,),), problem="it ended"), samples(9999), 1, 1).verdict == "NOT_RUN"


def test_without_a_baseline_no_ratio_is_claimed() -> None:
    found = row(samples(1000), Samples(problem="it ended"), 1, 1)
    assert found.ratio is None
    assert found.verdict == "no difference shown"
    assert "baseline" in found.reason


def test_every_round_has_every_runtime_once_in_an_order_that_changes() -> None:
    made = orders(["a", "b", "c"], 30, seed=1)
    assert all(sorted(order) == ["a", "b", "c"] for order in made)
    assert len({tuple(order) for order in made}) == 6
    assert made == orders(["a", "b", "c"], 30, seed=1)
