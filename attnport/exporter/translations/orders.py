"""What depends on the order of numbers: stable sorting, running maxima, ranks, places in a sorted row.

None of them has a translation in torch 2.13; one of stable sorting is proposed in
https://github.com/microsoft/onnxscript/pull/3053.
"""

from __future__ import annotations

from typing import Any

import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    aten = torch.ops.aten
    return {
        aten.sort.stable: sort,
        aten.cummax.default: cummax,
        aten.cummin.default: cummin,
        aten.kthvalue.default: kthvalue,
        aten.median.dim: median,
        aten.searchsorted.Tensor: searchsorted,
        aten.bucketize.Tensor: bucketize,
    }


_INT64 = 7


def sort(self: Any, stable: Any = True, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """Sorted, and the places before. `TopK` has the smaller index first where numbers are equal, as a stable sort."""
    count = op.Shape(self, start=_axis(self, dim), end=_axis(self, dim) + 1)
    values, indices = op.TopK(self, count, axis=_axis(self, dim), largest=int(descending), sorted=1)
    return values, indices


def cummax(self: Any, dim: int) -> tuple[Any, Any]:
    """The largest number so far, and where it is; of equal ones the last."""
    return _running(self, dim, largest=True)


def cummin(self: Any, dim: int) -> tuple[Any, Any]:
    """The smallest number so far, and where it is; of equal ones the last."""
    return _running(self, dim, largest=False)


def _running(self: Any, dim: int, *, largest: bool) -> tuple[Any, Any]:
    """Compares every pair of a row, as no ONNX operator has a running maximum: `[..., N]` becomes `[..., N, N]`."""
    axis, rank = _axis(self, dim), len(self.shape)
    order = [*(at for at in range(rank) if at != axis), axis]
    back = [order.index(at) for at in range(rank)]
    rows = op.Transpose(self, perm=order)
    one, count = op.Constant(value_ints=[1]), op.Shape(rows, start=rank - 1, end=rank)
    places = op.Range(op.Constant(value_int=0), op.Squeeze(count), op.Constant(value_int=1))
    earlier = op.LessOrEqual(op.Unsqueeze(places, op.Constant(value_ints=[0])), op.Unsqueeze(places, one))
    first = op.Slice(rows, op.Constant(value_ints=[0]), one, op.Constant(value_ints=[rank - 1]))
    shown = op.Where(
        earlier, op.Unsqueeze(rows, op.Constant(value_ints=[-2])), op.Unsqueeze(first, op.Constant(value_ints=[-2]))
    )
    values = (op.ReduceMax if largest else op.ReduceMin)(shown, op.Constant(value_ints=[-1]), keepdims=0)
    equal = op.And(
        earlier,
        op.Equal(op.Unsqueeze(rows, op.Constant(value_ints=[-2])), op.Unsqueeze(values, op.Constant(value_ints=[-1]))),
    )
    # Of equal numbers the last: its place is the largest.
    indices = op.ReduceMax(op.Mul(op.Cast(equal, to=_INT64), places), op.Constant(value_ints=[-1]), keepdims=0)
    return op.Transpose(values, perm=back), op.Transpose(indices, perm=back)


def kthvalue(self: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The k-th smallest number, counted from 1, and where it is."""
    values, indices = sort(self, True, dim)
    place = op.Constant(value_int=k - 1)
    return _at(values, place, self, dim, keepdim), _at(indices, place, self, dim, keepdim)


def median(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The middle number, the lower of two, and where it is."""
    values, indices = sort(self, True, dim)
    count = op.Squeeze(op.Shape(self, start=_axis(self, dim), end=_axis(self, dim) + 1))
    middle = op.Div(op.Sub(count, op.Constant(value_int=1)), op.Constant(value_int=2))
    return _at(values, middle, self, dim, keepdim), _at(indices, middle, self, dim, keepdim)


def searchsorted(
    sorted_sequence: Any, self: Any, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    """How many numbers of a sorted row are below each of `self`."""
    if sorter is not None:
        raise ValueError("searchsorted with a sorter has no translation.")
    last = op.Constant(value_ints=[-1])
    wanted = op.Unsqueeze(self, last)
    row = sorted_sequence
    if len(row.shape) > 1:
        row = op.Unsqueeze(row, op.Constant(value_ints=[-2]))
    below = op.LessOrEqual(row, wanted) if right or side == "right" else op.Less(row, wanted)
    counted = op.Cast(below, to=6 if out_int32 else _INT64)
    # A zero is appended: ONNX Runtime's sum along an axis of length 0 has the wrong shape.
    ends = op.Constant(value_ints=[0] * (2 * len(self.shape) + 1) + [1])
    return op.ReduceSum(op.Pad(counted, ends), last, keepdims=0)


def bucketize(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    """As `searchsorted`, with its arguments in the other order."""
    return searchsorted(boundaries, self, out_int32, right)


def _at(value: Any, place: Any, of: Any, dim: int, keepdim: bool) -> Any:
    axis = _axis(of, dim)
    found = op.Gather(value, place, axis=axis)
    return op.Unsqueeze(found, op.Constant(value_ints=[axis])) if keepdim else found


def _axis(value: Any, dim: int) -> int:
    return dim % len(value.shape) if len(value.shape) else 0
