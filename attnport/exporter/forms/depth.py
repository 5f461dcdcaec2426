"""Head dims below what a target's kernels take: zero columns on q, k and v change neither scores nor results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import key_of
from attnport.exporter.fusion.attention import Attention

if TYPE_CHECKING:
    import onnx_ir as ir


def head_dims(attention: Attention) -> tuple[int | None, int | None]:
    """The head dim D of q and k, and that of v; None where the graph does not fix it."""
    found = []
    for value in (attention.q, attention.v):
        dim = value.shape[-1] if value.shape is not None else None
        found.append(dim if isinstance(dim, int) else None)
    return found[0], found[1]


def widened(build: Builder, attention: Attention, depth: int) -> Attention:
    """The attention with q, k and v of a known head dim padded to `depth` columns; its scale stays the old one."""
    own, _ = head_dims(attention)
    assert own is not None
    ends = build.const([0] * 7 + [depth - own], np.int64)
    q, k, v = (
        build.op("Pad", value, ends, name=f"{name}_wide", shape=_shape(value, depth))
        for name, value in (("q", attention.q), ("k", key_of(build, attention)), ("v", attention.v))
    )
    return replace(attention, q=q, k=k, k_transposed=None, v=v)


def narrowed(build: Builder, output: ir.Value, depth: int) -> ir.Value:
    """The first `depth` columns of an output."""
    start, end, axis = (build.const([number], np.int64) for number in (0, depth, -1))
    return build.op("Slice", output, start, end, axis, name="narrow")


def _shape(value: ir.Value, depth: int) -> list[int | str | None]:
    if value.shape is None:
        return [None, None, None, depth]
    return [*(dim if isinstance(dim, int) else dim.value for dim in value.shape[:-1]), depth]
