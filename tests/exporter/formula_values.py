"""What a formula stands for at given indices, inputs and sizes, computed with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnport.exporter.fusion.formula import Axis, Const, Expr, Read, Size

_OPS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Abs": np.abs,
    "Max": lambda *a: max(a),
    "Min": lambda *a: min(a),
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Equal": np.equal,
    "Ne": np.not_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Where": lambda c, a, b: a if c else b,
    "Wrapped": lambda number, bits: int(number) % 2**bits,
    "Join": lambda high, low, size: high * size + low,
    "FloorDiv": lambda index, size: index // size,
    "FloorMod": lambda index, size: index % size,
}


def value_of(
    expr: Expr, at: Mapping[str, int], values: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int]
) -> Any:
    """The number that a formula stands for, at `at`; reads look into `values` with indices that may not be negative.

    An index beyond an input's end stops the test, as it would a graph.
    """
    if isinstance(expr, Axis):
        return at[expr.name]
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Size):
        return sizes[expr.dim]
    if isinstance(expr, Read):
        index = tuple(int(value_of(each, at, values, sizes)) for each in expr.index)
        assert all(each >= 0 for each in index)
        return values[str(expr.value.name)][index].item()
    found = [value_of(arg, at, values, sizes) for arg in expr.args]
    if expr.name not in ("And", "Or", "Not", "Xor", "Where"):
        found = [int(each) if isinstance(each, bool | np.bool_) else each for each in found]
    return _OPS[expr.name](*found)
