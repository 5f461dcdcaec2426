"""The search for what has to be kept, on made-up errors: what it finds, by how many sets, and how it ends."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Sequence

import pytest

from attnport.parity.finer import Kept, Names, NothingHolds, fewest

NAMES = tuple(f"p{number}" for number in range(64))


class Model:
    """Names that overflow in half precision, and an error for each that is rounded."""

    def __init__(self, overflow: set[str], rounding: dict[str, float] | None = None, floor: float = 0.1) -> None:
        self.overflow, self.rounding, self.floor = overflow, rounding or {}, floor
        self.asked: list[Names] = []

    def __call__(self, kept: Names) -> float:
        self.asked.append(kept)
        if self.overflow - kept:
            return math.nan
        return self.floor + sum(error for part, error in self.rounding.items() if part not in kept)


def search(
    names: Sequence[str], model: Callable[[Names], float], suspects: Collection[str] = (), most: int = 10_000
) -> Kept:
    return fewest(names, lambda name: 2.0 if name in suspects else 0.0, model, most)


def check_minimal(found: Kept, model: Model) -> None:
    assert model(frozenset(found.names)) <= 1
    for name in found.names:
        error = model(frozenset(found.names) - {name})
        assert not error <= 1
        assert found.without(name) == error or math.isnan(error)


def test_a_model_that_is_fine_costs_one_evaluation() -> None:
    model = Model(set())
    found = search(NAMES, model, suspects=NAMES[:3])
    assert (found.names, len(found.tried), found.capped) == ((), 1, False)
    assert found.error == found.tried[frozenset()] == 0.1


def test_suspects_that_are_all_needed_cost_one_evaluation_each_and_two_more() -> None:
    model = Model({"p3", "p40", "p60"})
    found = search(NAMES, model, suspects={"p60", "p3", "p40"})
    assert found.names == ("p3", "p40", "p60")
    assert len(found.tried) == len(model.asked) == 2 + 3
    assert math.isnan(found.tried[frozenset()])
    check_minimal(found, model)


def test_a_suspect_that_is_not_needed_goes() -> None:
    model = Model({"p3"})
    found = search(NAMES, model, suspects={"p3", "p9", "p11"})
    assert found.names == ("p3",)
    check_minimal(found, model)


def test_what_nobody_suspects_is_found_among_many_with_few_evaluations() -> None:
    model = Model({"p17", "p50"})
    found = search(NAMES, model)
    assert found.names == ("p17", "p50")
    assert len(found.tried) <= 2 + 4 * math.log2(len(NAMES))
    check_minimal(found, model)


def test_rounding_alone_is_cured_by_parts_that_round_most() -> None:
    model = Model(set(), {"p1": 0.2, "p2": 0.9, "p3": 0.2, "p4": 0.3})
    found = search(NAMES[:8], model)
    check_minimal(found, model)
    assert "p2" in found.names


def test_of_names_that_can_replace_each_other_those_with_the_largest_own_errors_are_kept() -> None:
    """As layers in integers: the errors of the others add up, and so many have to be kept that it is enough."""
    rounding = {name: 1.0 + 9.0 * (name in ("p5", "p11")) for name in NAMES[:16]}
    model = Model(set(), {name: error / 20 for name, error in rounding.items()})
    found = fewest(NAMES[:16], lambda name: rounding[name] / 100, model, most=2 + 4)
    assert found.names == ("p5", "p11")
    assert len(found.tried) == 2 + 4


def test_no_name_is_asked_for_its_own_error_where_nothing_has_to_be_kept() -> None:
    assert fewest(NAMES, lambda name: pytest.fail(name), Model(set()), most=10).names == ()


def test_whatever_the_errors_no_single_island_can_go() -> None:
    rng = random.Random(0)
    for _ in range(200):
        names = NAMES[: rng.randint(1, 20)]
        overflow = {name for name in names if rng.random() < 0.15}
        rounding = {name: rng.random() * 0.5 for name in names}
        # Errors need not shrink with every island: some only help in company, as two casts at a border do.
        model = Model(overflow, rounding)
        suspects = {name for name in names if rng.random() < 0.2}
        check_minimal(search(names, model, suspects, most=10_000), model)


def test_errors_that_are_not_monotone_still_end_at_a_set_that_holds() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        names = NAMES[:6]
        table = {
            frozenset(parts): rng.random() * 2 for size in range(7) for parts in itertools.combinations(names, size)
        }
        table[frozenset(names)] = 0.5
        found = search(names, table.__getitem__, suspects=names[:2], most=10_000)
        assert table[frozenset(found.names)] <= 1
        assert all(table[frozenset(found.names) - {part}] > 1 for part in found.names)


def test_a_model_that_fails_in_float32_too_is_said_to() -> None:
    with pytest.raises(NothingHolds) as told:
        search(NAMES, Model(set(), floor=1.5))
    assert told.value.error == 1.5


def test_at_its_limit_the_search_returns_what_holds_and_says_so() -> None:
    model = Model({"p17", "p50"})
    found = search(NAMES, model, most=6)
    assert found.capped
    assert len(found.tried) == len(model.asked) == 6
    assert {"p17", "p50"} <= set(found.names)
    assert found.error <= 1


def test_the_limit_is_at_least_what_tells_whether_there_is_a_plan() -> None:
    found = search(NAMES, Model({"p17"}), most=1)
    assert len(found.tried) == 3
    assert found.capped
    assert found.error <= 1
