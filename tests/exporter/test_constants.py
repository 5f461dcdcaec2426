"""Constants read as formulas: positions and bands of any size, element by element, and nothing that is no such rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from formula_values import value_of
from hypothesis import given, settings
from hypothesis import strategies as st

from attnport.exporter.fusion.elements import constant_element
from attnport.exporter.fusion.formula import Axis, Const, Expr


def read(array: np.ndarray[Any, Any]) -> Expr | None:
    value = ir.Value(name="c", const_value=ir.tensor(array))
    return constant_element(value, tuple(Axis(f"x{axis}") for axis in range(array.ndim)))


def check(array: np.ndarray[Any, Any]) -> None:
    expr = read(array)
    assert expr is not None
    for place in np.ndindex(array.shape):
        at = {f"x{axis}": index for axis, index in enumerate(place)}
        assert value_of(expr, at, {}, {}) == array[place]


sizes = st.integers(2, 7)


@settings(max_examples=150, deadline=None)
@given(sizes, sizes, st.data(), st.sampled_from([(True, False), (0.0, -np.inf), (1, 0), (-1e4, 0.0)]))
def test_a_band_is_read(rows: int, columns: int, data: st.DataObject, numbers: tuple[Any, Any]) -> None:
    low = data.draw(st.integers(1 - rows, columns - 1))
    high = data.draw(st.integers(low, columns - 1))
    distance = np.arange(columns) - np.arange(rows)[:, None]
    check(np.where((distance >= low) & (distance <= high), *numbers)[None])


@settings(max_examples=50, deadline=None)
@given(st.integers(-5, 5), st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 3)), min_size=1, max_size=3))
def test_positions_are_read(start: int, axes: list[tuple[int, int]]) -> None:
    array = np.full([size for size, _ in axes], start)
    for axis, (size, step) in enumerate(axes):
        array = array + (np.arange(size) * step).reshape([size if at == axis else 1 for at in range(len(axes))])
    check(array)


@pytest.mark.parametrize(
    "array",
    [
        np.eye(4)[[0, 2, 1, 3]],
        np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]),
        np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]]),
        np.array([0, 1, 3]),
        np.array([0.0, 1.0, 2.0]),
        np.array([np.nan, 1.0]),
    ],
    ids=["permutation", "stripes", "three values", "uneven steps", "floats", "nan"],
)
def test_what_follows_no_rule_is_data(array: np.ndarray[Any, Any]) -> None:
    assert read(array) is None


def test_a_formula_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnport.exporter.fusion import elements

    monkeypatch.setattr(elements, "_between", lambda *args: Const(True))
    with pytest.raises(AssertionError):
        check(np.tri(4))


def test_one_number_throughout_is_that_number() -> None:
    assert read(np.full((3, 4), -np.inf)) == Const(-np.inf)
    assert read(np.full((), 3)) == Const(3)
