"""Lays out grouped heads without repeating keys and values: the R heads of a group become R S rows of one head.

Their masks are read over the new indices, as are those of keys with one more in front.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.masks import AXES, MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.comparisons import I
from attnport.exporter.fusion.formula import Axis, Const, Expr, Op, Read, Size, axes_of, op
from attnport.exporter.fusion.mask import SCORES, Factor
from attnport.onnx_graph import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Change:
    """A new meaning of one index variable.

    Attributes:
        axis: The variable.
        old: The old index, as a formula over the new one.
        lay: Changes a tensor over the old index, along one of its axes, into a tensor over the new index.
    """

    axis: Axis
    old: Expr
    lay: Callable[[ir.Value, int], ir.Value]


def reindexed(masks: MaskWriter, attention: Attention, factor: Factor, change: Change) -> Expr:
    """A factor's condition over the new index.

    A formula of indices, and of inputs read at them, stays a formula, so that a kernel can compute it. Any other is
    written as a tensor over the old index, which is then changed to the new index.
    """
    if change.axis.name not in axes_of(factor.keep):
        return factor.keep
    sizes = {str(getattr(dim, "value", dim)) for value in masks.build.model.graph.inputs for dim in value.shape or ()}
    if _is_plain(factor.keep, sizes):
        return _substituted(masks, factor.keep, change)
    return Read(change.lay(masks.factor(factor, attention), AXES.index(change.axis.name)), SCORES)


def _is_plain(expr: Expr, sizes: Collection[str]) -> bool:
    """Whether a formula consists of indices, inputs read at them, and the inputs' own sizes."""
    if isinstance(expr, Read):
        dims = expr.value.shape
        return dims is not None and len(dims) == len(expr.index) and all(isinstance(at, Axis) for at in expr.index)
    if isinstance(expr, Op):
        known = ("And", "Or", "Not", "Equal", "Ne", "Less", "LessOrEqual", "Add", "Sub")
        return expr.name in known and all(_is_plain(arg, sizes) for arg in expr.args)
    if isinstance(expr, Size):
        return expr.dim in sizes
    return isinstance(expr, Axis | Const)


def _substituted(masks: MaskWriter, expr: Expr, change: Change) -> Expr:
    if expr == change.axis:
        return change.old
    if isinstance(expr, Read) and change.axis in expr.index:
        at = expr.index.index(change.axis)
        value = expr.value
        return Read(masks.build.once(("laid", value, at, change.old), lambda: change.lay(value, at)), expr.index)
    if isinstance(expr, Op):
        return op(expr.name, *(_substituted(masks, arg, change) for arg in expr.args))
    return expr


def can_fold(attention: Attention) -> bool:
    """Whether every group has the same number of query heads, and no mask or bias differs between heads."""
    heads, groups = attention.head_counts()
    mask = attention.mask
    grouped = heads is not None and groups is not None and heads != groups and heads % groups == 0
    return grouped and not mask.biases and not any("h" in axes_of(factor.keep) for factor in mask.factors)


def folded(build: Builder, masks: MaskWriter, attention: Attention) -> Attention:
    """The attention with queries `[B,H,S,D]` as `[B,G,R S,D]`: row r S + s is query s of the group's head r."""
    heads, groups = attention.head_counts()
    assert heads is not None
    assert groups is not None
    times, size = heads // groups, masks.length(attention, "i")

    def lay(value: ir.Value, axis: int) -> ir.Value:
        dims = dims_of(value) or [None] * 4  # a factor that was just written has the scores' axes, but no shape yet
        repeats = [times if at == axis else 1 for at in range(len(dims))]
        dims[axis] = _times(times, dims[axis])
        return build.op("Tile", value, build.const(repeats, np.int64), name="mask/each_head", shape=dims)

    change = Change(I, Op("Mod", (I, Read(size, ()))), lay)
    factors = tuple(Factor(reindexed(masks, attention, factor, change), None) for factor in attention.mask.factors)
    q = _rows(build, attention, attention.q, groups, times)
    sink = attention.sink
    if sink is not None and sink.shape is not None and sink.shape[1] != 1:
        if sink.shape[2] == 1:
            shape = build.op("Concat", build.const([1, heads], np.int64), build.size(attention.q, 2),
                           build.const([1], np.int64), name="sink_shape", axis=0)  # fmt: skip
            sink = build.op("Expand", sink, shape, name="sink_each_query")
        sink = _rows(build, attention, sink, groups, times)
    return replace(attention, q=q, sink=sink, mask=replace(attention.mask, factors=factors))


def unfolded(build: Builder, attention: Attention, output: ir.Value) -> ir.Value:
    """The output of the folded attention, `[B,G,R S,Dv]`, as the `[B,H,S,Dv]` of `attention`."""
    heads, _ = attention.head_counts()
    shape = build.op(
        "Concat", build.const([0, heads], np.int64), build.size(attention.q, 2), build.const([-1], np.int64),
        name="heads_shape", axis=0,
    )  # fmt: skip
    return build.op("Reshape", output, shape, name="heads")


def _rows(build: Builder, attention: Attention, value: ir.Value, groups: int, times: int) -> ir.Value:
    """`[B,H,S,X]` as `[B,G,R S,X]`."""
    dims = dims_of(value)
    assert dims is not None
    last = build.size(value, 3)
    shape = build.op("Concat", build.const([0, groups, -1], np.int64), last, name="rows_shape", axis=0)
    return build.op("Reshape", value, shape, name="rows", shape=[dims[0], groups, _times(times, dims[2]), dims[3]])


def _times(times: int, dim: int | str | None) -> int | str | None:
    if dim is None:
        return None
    return times * dim if isinstance(dim, int) else f"{times}*({dim})"
