"""Indices through reshapes: on random shapes, the element that the arithmetic names is the one that NumPy moves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from formula_values import value_of
from hypothesis import given, settings
from hypothesis import strategies as st

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, Size
from attnport.exporter.fusion.indices import components, join, reshaped, split

A, B, C = Axis("a"), Axis("b"), Axis("c")


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes of equally many elements, made by merging neighbouring factors in two ways."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=5))
    split_factors = [part for factor in factors for part in draw(st.sampled_from(parts(factor)))]

    def merged() -> list[int]:
        shape = [1]
        for factor in split_factors:
            if draw(st.booleans()):
                shape[-1] *= factor
            else:
                shape.append(factor)
        return shape

    return merged(), merged()


def parts(factor: int) -> list[list[int]]:
    return [[factor], *([a, factor // a] for a in range(2, factor) if factor % a == 0)]


def check(after: list[int], before: list[int], named: set[int], sizes: dict[str, int]) -> int:
    """Compares with NumPy at every index; returns how many were compared. `named`: axes whose size is a name."""
    spelt = [[f"n{size}" if size in named else size for size in shape] for shape in (after, before)]
    index = tuple(Axis(f"x{axis}") for axis in range(len(after)))
    moved = reshaped(index, *spelt)
    if moved is None:
        return 0
    tensor = np.arange(math.prod(before)).reshape(before)
    expected = tensor.reshape(after)
    for place in itertools.product(*map(range, after)):
        at = {f"x{axis}": value for axis, value in enumerate(place)}
        found = tuple(value_of(expr, at, {}, sizes) for expr in moved)
        assert tensor[found] == expected[place]
    return expected.size


@settings(max_examples=200, deadline=None)
@given(reshapes(), st.sets(st.sampled_from([2, 3, 6, 12]), max_size=2))
def test_a_reshape_moves_every_element_as_numpy_does(shapes: tuple[list[int], list[int]], named: set[int]) -> None:
    check(*shapes, named, {f"n{size}": size for size in named})


def test_the_comparison_can_fail() -> None:
    with pytest.raises((AssertionError, IndexError)):
        check([2, 6], [4, 3], {2, 6, 4}, {"n2": 2, "n6": 5, "n4": 4})


def test_heads_split_off_and_merged_back_leave_the_indices_as_they_were() -> None:
    assert check([2, 4, 3, 5], [8, 3, 5], {2, 8}, {"n2": 2, "n8": 8}) == 120
    there = reshaped((A, B, C), ["batch", "seq", 16], ["batch", "seq", 4, 4])
    assert there is not None
    assert reshaped(there, ["batch", "seq", 4, 4], ["batch", "seq", 16]) == (A, B, C)
    merged = reshaped((A, B, C), ["n", "seq", 8], ["batch", 4, "seq", 8])
    assert merged == (Op("FloorDiv", (A, Const(4))), Op("FloorMod", (A, Const(4))), B, C)


def test_unknown_sizes_are_not_guessed() -> None:
    assert reshaped((A, B), [None, 4], [2, 2, 4]) is None
    assert reshaped((A,), ["n", 4], [4, "n"]) is None
    assert reshaped((A, B), ["n", "m"], ["m"]) is None
    assert reshaped((A, B), ["n", "m"], ["k"]) == (join(A, B, Size("m")),), "one group is left, whatever its sizes"


@pytest.mark.parametrize(
    ("index", "size", "expected"),
    [
        (join(A, B, Const(4)), 4, (A, B)),
        (join(A, B, Const(8)), 4, (join(A, Op("FloorDiv", (B, Const(4))), Const(2)), Op("FloorMod", (B, Const(4))))),
        (join(join(A, B, Const(2)), C, Const(4)), 8, (A, join(B, C, Const(4)))),
        (Const(11), 4, (Const(2), Const(3))),
        (A, 1, (A, ZERO)),
    ],
)  # fmt: skip
def test_merged_indices_come_apart(index: Expr, size: int, expected: tuple[Expr, Expr]) -> None:
    assert split(index, Const(size)) == expected


def test_components_name_the_variables_from_slowest_to_fastest() -> None:
    assert components((join(A, B, Const(4)), ZERO, C)) == (A, B, C)
    assert components(split(A, Const(4))) == (A,)
    assert components((split(A, Const(4))[1], B)) is None, "half of an axis is not the axis"
    assert components((Op("Add", (A, Const(1))),)) is None
