from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnport.artifacts import LatencyRow, Ran
from attnport.latency.rows import Measured, orders, row, rows
from attnport.latency.statistics import P90_SAMPLES, P99_SAMPLES

ENDED = LatencyRow(reason="it ended", kind="died")


def samples(ns: int, rounds: int = 12) -> Measured:
    jitter = np.random.default_rng(ns).integers(0, ns // 50, rounds)
    return Measured([(ns + int(one),) for one in jitter], row=LatencyRow(ran=Ran("CPU", "x", "fp32"), peak_bytes=7))


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


def test_quantiles_are_told_only_where_the_samples_support_them() -> None:
    assert row(samples(1000, P90_SAMPLES - 1), None, 1, 1).p90_ns is None
    assert row(samples(1000, P90_SAMPLES), None, 1, 1).p90_ns is not None
    assert row(samples(1000, P99_SAMPLES - 1), None, 1, 1).p99_ns is None
    assert row(samples(1000, P99_SAMPLES), None, 1, 1).p99_ns is not None


def test_what_the_reader_must_know_of_a_row_stands_in_it() -> None:
    wild = Measured([(1000 + 900 * (number % 3),) for number in range(12)], warm=False, row=LatencyRow(warm_calls=7))
    found = row(wild, samples(1000), 1, 1, precision=0.03)
    assert "not settled after 7 calls" in found.reason
    assert "the time limit came first" in found.reason
    assert "not 3.0%" in found.reason
    assert row(samples(1000), samples(1001), 1, 1, precision=0.5).reason == ""


def test_what_events_on_a_device_timed_stands_in_the_row_as_medians() -> None:
    timed = Measured([(30, 50), (40, 60)], parts_ns={"host_to_device": [1, 2, 9, 3], "device": []})
    assert row(timed, None, 1, 1).parts_ns == {"host_to_device": 2.5}
    assert row(timed, None, 1, 1).calls == 2


def test_a_runtime_without_samples_is_not_run_with_its_reason() -> None:
    for lost in (Measured(row=ENDED), Measured([(5,)], row=ENDED)):
        assert row(lost, samples(9999), 1, 1) == ENDED
    found = row(Measured(), samples(9999), 1, 1)
    assert (found.verdict, found.kind) == ("NOT_RUN", "unavailable")


def test_without_a_baseline_no_ratio_is_claimed() -> None:
    for lost in (Measured(row=ENDED), dataclasses.replace(samples(900), row=ENDED)):
        found = row(samples(1000), lost, 1, 1)
        assert found.ratio is None
        assert found.verdict == "no difference shown"
        assert "baseline" in found.reason


def test_every_round_has_every_runtime_once_in_an_order_that_changes() -> None:
    made = orders(["a", "b", "c"], 30, seed=1)
    assert all(sorted(order) == ["a", "b", "c"] for order in made)
    assert len({tuple(order) for order in made}) == 6
    assert made == orders(["a", "b", "c"], 30, seed=1)
