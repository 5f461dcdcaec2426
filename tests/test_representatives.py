"""What is no representative is slow, and is not left out."""

from __future__ import annotations

import pytest
from representatives import crossed, representatives


def test_every_value_is_a_parameter_and_those_that_are_not_quick_are_slow() -> None:
    failing = pytest.mark.xfail(strict=True)
    found = representatives(["a", "b", "c"], ["b"], {"a": failing})
    assert [one.values for one in found] == [("a",), ("b",), ("c",)]
    assert [[mark.name for mark in one.marks] for one in found] == [["xfail", "slow"], [], ["slow"]]
    assert [one.values for one in representatives([(1, 2), (3, 4)], [(1, 2)])] == [(1, 2), (3, 4)]


def test_of_every_combination_each_value_is_quick_once() -> None:
    found = {one.values: not one.marks for one in crossed("ab", [1, 2, 3])}
    assert [values for values, quick in found.items() if quick] == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert len(found) == 6


@pytest.mark.parametrize("quick", [[], ["b", "d"]])
def test_a_representative_that_there_is_not_is_noticed(quick: list[str]) -> None:
    with pytest.raises(AssertionError):
        representatives(["a", "b"], quick)
