"""Rows of tables: those of each bag of indices joined, and those of each group times a matrix of its own.

torch.onnx 2.13 writes `nn.EmbeddingBag` as a loop that holds its results in a sequence; inlined, the loop has the type
of a tensor, and ONNX Runtime refuses the file.

transformers 5 computes experts with products of sorted rows. `aten._grouped_mm` has no ONNX form
(https://github.com/microsoft/onnxscript/issues/2795); on CPUs transformers calls an operator of its own instead, which
no exporter knows.
"""

from __future__ import annotations

from typing import Any

import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """The operators of this file, that of transformers if it is there; those of bags differ in their gradients."""
    aten = torch.ops.aten
    found: dict[Any, Translation] = {
        aten.embedding_bag.default: embedding_bag,
        aten.embedding_bag.padding_idx: embedding_bag,
        aten._embedding_bag.default: embedding_bag,
        aten._embedding_bag_forward_only.default: embedding_bag,
    }
    for library, name in (("aten", "_grouped_mm"), ("transformers", "grouped_mm_fallback")):
        packet = getattr(getattr(torch.ops, library), name, None)
        if packet is not None:
            found[packet.default] = grouped_mm
    return found


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


def grouped_mm(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows `[M,K]`, sorted by group, each times its group's matrix of `[G,K,N]`: `[M,N]`.

    A group's rows end at its element of `offs`; torch leaves rows behind the last end undefined, and here they belong
    to the last group. Gathering a matrix for each row instead would take `M*K*N` numbers.
    """
    groups = mat_b.shape[0]
    if not isinstance(groups, int) or len(mat_a.shape) != 2 or offs is None or out_dtype is not None:
        raise ValueError(f"grouped_mm of {mat_a.shape} and {mat_b.shape} is not supported; expected [M,K], [G,K,N].")
    first = op.Constant(value_ints=[0])
    one = op.Constant(value_int=1)
    rows = op.Squeeze(op.Shape(mat_a, start=0, end=1), first)
    begin = op.Constant(value_int=0)
    parts = []
    for group in range(groups):
        at = op.Constant(value_int=group)
        end = rows if group == groups - 1 else op.Cast(op.Gather(offs, at, axis=0), to=7)
        part = op.MatMul(op.Gather(mat_a, op.Range(begin, end, one), axis=0), op.Gather(mat_b, at, axis=0))
        parts.append(part if bias is None else op.Add(part, op.Gather(bias, at, axis=0)))
        begin = end
    return op.Concat(*parts, axis=0)
