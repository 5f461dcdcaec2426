"""Elements of constants as formulas: masks and positions that an exporter or a module stored as a tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attnport.exporter.fusion.formula import TRUE, Const, Expr, op
from attnport.exporter.fusion.indices import Index

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_ELEMENTS = 8192**2
"""Constants with more elements are data and are not examined."""
Array = Any


def constant_element(value: ir.Value, index: Index) -> Expr | None:
    """The formula of `value[index]`; None if the value is not constant or follows no simple rule."""
    from onnx_ir.convenience import get_const_tensor

    tensor = get_const_tensor(value)
    if tensor is None or not 0 < tensor.size <= MAX_ELEMENTS:
        return None
    array = tensor.numpy()
    first = array.reshape(-1)[0].item()
    if array.reshape(-1)[-1].item() == first and (array == first).all():
        return Const(first)
    if all(isinstance(entry, Const) for entry in index):
        number = array[tuple(int(entry.value) for entry in index if isinstance(entry, Const))].item()
        return Const(number) if not (isinstance(number, float) and math.isnan(number)) else None
    return _steps(array, index) or _band(array, index)


def _steps(array: Array, index: Index) -> Expr | None:
    """Whole numbers that grow by the same step along each axis, as positions do."""
    import numpy as np

    if array.dtype.kind not in "iu":
        return None
    start = int(array.reshape(-1)[0])
    expected: Array = np.full([1] * array.ndim, start, np.int64)
    total: Expr = Const(start)
    for axis, size in enumerate(array.shape):
        if size < 2:
            continue
        step = int(array[tuple(int(at == axis) for at in range(array.ndim))]) - start
        along = np.arange(size, dtype=np.int64) * step
        expected = expected + along.reshape([size if at == axis else 1 for at in range(array.ndim)])
        total = op("Add", op("Mul", index[axis], Const(step)), total)
    return total if np.array_equal(array, expected) else None


def _band(array: Array, index: Index) -> Expr | None:
    """A matrix with one number on adjacent diagonals and another elsewhere, as a causal mask or a window has them."""
    import numpy as np

    if array.ndim < 2 or min(array.shape[-2:]) < 2 or any(size != 1 for size in array.shape[:-2]):
        return None
    rows, columns = array.shape[-2:]
    matrix = array.reshape(rows, columns)
    if len(np.unique(matrix[0])) > 2:
        return None
    # By diagonal, from the lower left corner to the upper right one.
    diagonals = np.concatenate((matrix[:0:-1, 0], matrix[0]))
    values = np.unique(diagonals)
    laid_out = np.lib.stride_tricks.sliding_window_view(diagonals, columns)[::-1]
    if len(values) != 2 or not np.array_equal(laid_out, matrix):
        return None
    main = diagonals[rows - 1]
    for inside in (main, values[values != main][0]):
        (where,) = np.nonzero(diagonals == inside)
        if where[-1] - where[0] + 1 == len(where):
            keep = _between(index, int(where[0]) - rows + 1, int(where[-1]) - rows + 1, rows, columns)
            outside = values[values != inside][0]
            return op("Where", keep, Const(inside.item()), Const(outside.item()))
    return None


def _between(index: Index, low: int, high: int, rows: int, columns: int) -> Expr:
    """`low <= column - row <= high`, without a bound that lies outside the matrix."""
    row, column = index[-2:]
    above = op("LessOrEqual", op("Sub", column, row), Const(high)) if high else op("LessOrEqual", column, row)
    below = op("LessOrEqual", op("Sub", row, column), Const(-low)) if low else op("LessOrEqual", row, column)
    return op("And", above if high < columns - 1 else TRUE, below if low > 1 - rows else TRUE)
