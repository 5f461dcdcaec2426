"""What is no representative is slow, and is not left out."""

from __future__ import annotations

import pytest
from representatives import representatives


def test_every_value_is_a_parameter_and_those_that_are_not_quick_are_slow() -> None:
    failing = pytest.mark.xfail(strict=True)
    found = representatives(["a", "b", "c"], ["b"], {"a": failing})
    assert [one.values for one in found] == [("a",), ("b",), ("c",)]
    assert [[mark.name for mark in one.marks] for one in found] == [["xfail", "slow"], [], ["slow"]]
    assert [one.values for one in representatives([(1, 2), (3, 4)], [(1, 2)])] == [(1, 2), (3, 4)]


@pytest.mark.parametrize("quick", [[], ["b", "d"]])
def test_a_representative_that_there_is_not_is_noticed(quick: list[str]) -> None:
    with pytest.raises(AssertionError):
        representatives(["a", "b"], quick)
