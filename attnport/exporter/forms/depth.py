"""Pads head dims to those that a target's kernels take: zero columns change neither scores nor results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import key_of
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


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
