"""What a model may take at sizes at which it has not run, and that it is only run where that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from attnport import budget
from attnport.budget import Budget, free_memory_bytes

LENGTHS = {"height": 16, "width": 16}
on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell memory")


def known(monkeypatch: pytest.MonkeyPatch, sizes: Mapping[str, int], *, free: float = 24e9, took: int = 0) -> Budget:
    """A budget on a machine with so much memory, of a model that ran at sizes in no time and took so much."""
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: int(free))
    monkeypatch.setattr(budget, "_level_bytes", lambda: 0)
    monkeypatch.setattr(budget, "memory_bytes", lambda field: took)
    made = Budget(["batch"])
    with made.measured(sizes):
        pass
    return made


def test_a_bound_grows_as_attention_over_all_positions_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, {"batch": 2, **LENGTHS}, took=100_000_000)
    one = made.cost({"batch": 2, **LENGTHS}).bytes
    assert made.cost({"batch": 1, **LENGTHS}).bytes == one
    assert made.cost({"batch": 8, **LENGTHS}).bytes == 4 * one
    assert made.cost({"batch": 2, "height": 32, "width": 32}).bytes >= 16 * one
    assert not made.fits({"batch": 2, "height": 128, "width": 128})
    assert str(made.cost({"batch": 2, **LENGTHS, "height": 64})).startswith("6.4 GB of memory (the limit is 8.0 GB")


def test_the_lowest_bound_of_all_runs_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, LENGTHS, took=100_000_000)
    before = made.cost({"height": 64, "width": 16}).bytes
    with made.measured({"height": 32, "width": 16}):
        pass
    assert made.cost({"height": 64, "width": 16}).bytes < before


def test_sizes_grow_step_by_step_to_one_that_is_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, {"seq": 2})
    seen: list[int] = []
    assert made.reach({"seq": 4096}, lambda sizes: bool(seen.append(sizes["seq"])) or True)
    assert seen[-1] == 4096
    assert len(seen) > 1
    assert seen == sorted(seen)


def test_lengths_grow_one_after_the_other_where_nothing_could_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, dict.fromkeys("abcde", 8))
    assert made.reach(dict.fromkeys("abcde", 64), lambda sizes: True)


def test_a_size_that_does_not_fit_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, {"seq": 128})
    seen: list[int] = []

    def attends(sizes: Mapping[str, int]) -> bool:
        seen.append(sizes["seq"])
        monkeypatch.setattr(budget, "memory_bytes", lambda field: 100 * sizes["seq"] ** 2)
        return True

    assert made.reach({"seq": 65536}, attends) is None
    assert 2048 <= max(seen) <= 8192  # 8192 take 6.7 GB, and 8 GB may be taken


def test_what_is_loaded_once_is_not_taken_for_the_cost_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, {"seq": 16}, took=4_000_000_000)
    monkeypatch.setattr(budget, "memory_bytes", lambda field: 1_000_000)
    assert made.reach({"seq": 64}, lambda sizes: True)


def test_a_size_at_which_the_model_does_not_run_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, {"seq": 8})
    assert made.reach({"seq": 16}, lambda sizes: False) is False
    assert made.cost({"seq": 16}).bytes > made.cost({"seq": 8}).bytes
    assert made.reach({"seq": 512}, lambda sizes: sizes["seq"] < 100) is False

    def none_left(sizes: Mapping[str, int]) -> bool:
        raise MemoryError

    assert made.reach({"seq": 16}, none_left) is None


def test_time_is_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = known(monkeypatch, {"seq": 128})
    monkeypatch.setattr(budget, "SECONDS", 0.01)
    assert made.fits({"seq": 128})
    assert not made.fits({"seq": 512})


@on_linux
def test_the_memory_that_a_run_takes_is_measured() -> None:
    made = Budget()
    for _ in range(2):  # what the first run leaves behind must not hide what the second one takes
        with made.measured({"x": 1}):
            np.ones(1 << 24).sum()
    assert (1 << 27) * 0.9 < made.cost({"x": 1}).bytes < (1 << 27) * 1.5


@on_linux
def test_free_memory_is_a_part_of_all() -> None:
    assert 0 < free_memory_bytes() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
