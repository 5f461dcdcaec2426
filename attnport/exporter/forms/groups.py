"""Lays out grouped heads without repeating keys and values: the R heads of a group become R S rows of one head."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.reindexed import Change, reindexed
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.comparisons import I
from attnport.exporter.fusion.formula import Op, Read, axes_of
from attnport.exporter.fusion.mask import Factor
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


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
