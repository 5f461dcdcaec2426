"""Sums, means and maxima of rows of a table, one result for each bag of indices, as `nn.EmbeddingBag` gives them.

torch.onnx 2.13 writes a loop that holds its results in a sequence; inlined, the loop has the type of a tensor, and
ONNX Runtime refuses the file.
"""

from __future__ import annotations

from typing import Any

import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """The operators of this file; they differ in what is done without a gradient."""
    aten = torch.ops.aten
    found = (
        aten.embedding_bag.default,
        aten.embedding_bag.padding_idx,
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
    )
    return dict.fromkeys(found, embedding_bag)


_INT64, _BOOL = 7, 9
_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Rows of `weight` `[V,E]` at `indices` `[N]`, joined within each bag: `[B,E]`.

    Bag b begins at `offsets[b]`; with `include_last_offset`, the last offset is the end of the last bag. Indices that
    are `padding_idx` do not count, and a bag without any other has zeros. The three other results are for gradients
    alone, and nothing reads them.
    """
    unused = op.Identity(indices)  # torch.onnx writes shapes of its own on what is returned
    first, width = op.Constant(value_ints=[0]), op.Shape(weight, start=1, end=2)
    begins = op.Cast(offsets, to=_INT64)
    if include_last_offset:
        begins = op.Slice(begins, first, op.Constant(value_ints=[-1]), first)
    places = op.Range(op.Constant(value_int=0), op.Squeeze(op.Shape(indices), first), op.Constant(value_int=1))
    # A bag's number is how many bags begin at a place or before it, less one.
    begun = op.LessOrEqual(op.Unsqueeze(begins, first), op.Unsqueeze(places, op.Constant(value_ints=[1])))
    bags = op.Sub(
        op.ReduceSum(op.Cast(begun, to=_INT64), op.Constant(value_ints=[1]), keepdims=0), op.Constant(value_ints=[1])
    )
    kept = op.CastLike(op.Constant(value_float=1.0), weight)
    kept = op.Expand(kept, op.Shape(indices))
    if padding_idx is not None and padding_idx >= 0:
        padding = op.CastLike(op.Constant(value_int=padding_idx), indices)
        kept = op.CastLike(op.Not(op.Equal(indices, padding)), weight)
    count_of = op.Shape(begins)
    counts = op.ScatterElements(_filled(0.0, weight, count_of), bags, kept, axis=0, reduction="add")
    rows = op.Gather(weight, indices, axis=0)
    counted = op.Unsqueeze(kept, op.Constant(value_ints=[1]))
    results = op.Concat(count_of, width, axis=0)
    each = op.Expand(op.Unsqueeze(bags, op.Constant(value_ints=[1])), op.Shape(rows))
    if mode == _MAX:
        least = _filled(float("-inf"), weight, results)
        rows = op.Where(op.Cast(counted, to=_BOOL), rows, op.CastLike(op.Constant(value_float=float("-inf")), weight))
        found = op.ScatterElements(least, each, rows, axis=0, reduction="max")
        some = op.Cast(op.Unsqueeze(counts, op.Constant(value_ints=[1])), to=_BOOL)
        found = op.Where(some, found, op.CastLike(op.Constant(value_float=0.0), weight))
        return found, unused, unused, unused
    if per_sample_weights is not None:
        counted = op.Mul(counted, op.Unsqueeze(per_sample_weights, op.Constant(value_ints=[1])))
    found = op.ScatterElements(_filled(0.0, weight, results), each, op.Mul(rows, counted), axis=0, reduction="add")
    if mode == _MEAN:
        least_one = op.Max(counts, op.CastLike(op.Constant(value_float=1.0), weight))
        found = op.Div(found, op.Unsqueeze(least_one, op.Constant(value_ints=[1])))
    return found, unused, unused, unused


def _filled(value: float, like: Any, shape: Any) -> Any:
    return op.Expand(op.CastLike(op.Constant(value_float=value), like), shape)
