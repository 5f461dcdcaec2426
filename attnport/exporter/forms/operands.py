"""q, k and v as the forms need them: scaled, transposed, padded, heads repeated, with as few nodes as possible.

Grouped heads are repeated for forms that multiply matrices. Head dims are padded to those that a target's kernels take:
zero columns change neither scores nor results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder, CannotLower
from attnport.exporter.fusion.attention import Attention
from attnport.onnx_graph import dims_of, made_by, perm_of

if TYPE_CHECKING:
    import onnx_ir as ir


def repeated(build: Builder, attention: Attention, value: ir.Value) -> ir.Value:
    """`[B,G,X,Y]` as `[B,H,X,Y]`: each head is repeated H/G times, as in the standard's grouped attention.

    Raises:
        CannotLower: the head counts do not say how often a head is repeated.
    """
    query_heads, key_heads = attention.head_counts()
    if key_heads == 1 or (query_heads is not None and query_heads == key_heads):
        return value  # a product broadcasts a single key/value head
    if query_heads is None or key_heads is None or query_heads % key_heads:
        q_dim, v_dim = (value.shape[1] if value.shape is not None else None for value in (attention.q, attention.v))
        if query_heads is None and key_heads is None and q_dim is not None and q_dim == v_dim:
            return value
        raise CannotLower(f"query heads {q_dim} and key/value heads {v_dim} do not say how often a head is repeated")
    times = query_heads // key_heads
    groups = build.op("Unsqueeze", value, build.const([2], np.int64), name="group")
    groups = build.op("Expand", groups, build.const([1, 1, times, 1, 1], np.int64), name="group_each")
    sizes = (build.size(value, 0), build.const([query_heads], np.int64), build.size(value, 2), build.size(value, 3))
    shape = build.op("Concat", *sizes, name="group_shape", axis=0)
    return build.op("Reshape", groups, shape, name="heads")


def head_dims(attention: Attention) -> tuple[int | None, int | None]:
    """The head dim of q and k, and that of v; None if the graph does not fix it."""
    depths = []
    for value in (attention.q, attention.v):
        dim = value.shape[-1] if value.shape is not None else None
        depths.append(dim if isinstance(dim, int) else None)
    return depths[0], depths[1]


def widened(build: Builder, attention: Attention, depth: int) -> Attention:
    """The attention with q, k and v padded to `depth` columns and the same scale; the head dims must be known."""
    key_depth, value_depth = head_dims(attention)
    assert key_depth is not None
    assert value_depth is not None
    q, k, v = attention.q, key_of(build, attention), attention.v
    if key_depth < depth:
        q, k = _padded(build, q, key_depth, depth), _padded(build, k, key_depth, depth)
    return replace(attention, q=q, k=k, k_transposed=None, v=_padded(build, v, value_depth, depth))


def narrowed(build: Builder, output: ir.Value, depth: int) -> ir.Value:
    """The first `depth` columns of an output."""
    start, end, axis = (build.const([number], np.int64) for number in (0, depth, -1))
    return build.op("Slice", output, start, end, axis, name="narrow")


def _padded(build: Builder, value: ir.Value, columns: int, depth: int) -> ir.Value:
    if columns == depth:
        return value
    dims = dims_of(value) or [None] * 4
    ends = build.const([0] * 7 + [depth - columns], np.int64)
    return build.op("Pad", value, ends, name="wide", shape=[*dims[:-1], depth])


ForEachHead = Callable[[Builder, Attention, "ir.Value"], "ir.Value"]
"""Gives keys or values for every query head."""


def operands(
    build: Builder, attention: Attention, compute: ir.DataType, factor: float, for_each_head: ForEachHead
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The operands of a form's products: q times a factor, k transposed, and v, each cast to `compute`."""
    q = build.cast(scaled(build, attention.q, factor), compute, "q_cast")
    k_transposed = build.cast(for_each_head(build, attention, transposed_key_of(build, attention)), compute, "k_cast")
    v = build.cast(for_each_head(build, attention, attention.v), compute, "v_cast")
    return q, k_transposed, v


def scaled(build: Builder, q: ir.Value, factor: float) -> ir.Value:
    """q times a factor in the dtype of q, before a cast to half precision, so that the factor is not rounded."""
    return q if factor == 1.0 else build.op("Mul", q, build.like(factor, q), name="scale_q")


def key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., T, D]`; if the graph only has it transposed, the transposition is undone."""
    if attention.k is not None:
        return attention.k
    transposed = attention.k_transposed
    assert transposed is not None
    node = made_by(transposed, "Transpose")
    if node is not None and node.inputs[0] is not None:
        perm = perm_of(node, 4)
        perm[-1], perm[-2] = perm[-2], perm[-1]
        if perm == sorted(perm):
            return node.inputs[0]
        return build.op("Transpose", node.inputs[0], name="k", perm=perm)
    return build.op("Transpose", transposed, name="k", perm=[0, 1, 3, 2])


def transposed_key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., D, T]`; if k is itself the result of a transposition, the two become one."""
    if attention.k_transposed is not None:
        return attention.k_transposed
    assert attention.k is not None
    perm = [0, 1, 3, 2]
    node = made_by(attention.k, "Transpose")
    if node is not None and node.inputs[0] is not None:
        before = perm_of(node, 4)
        return build.op("Transpose", node.inputs[0], name="k_transposed", perm=[before[at] for at in perm])
    return build.op("Transpose", attention.k, name="k_transposed", perm=perm)
