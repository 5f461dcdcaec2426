"""Grouped heads for the forms that multiply matrices: each key/value head repeated for the query heads it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.attention import Attention

if TYPE_CHECKING:
    import onnx_ir as ir


class CannotRepeat(Exception):
    """Query and key/value heads differ and one of the two counts is not fixed, or they do not divide."""


def repeated(build: Builder, attention: Attention, value: ir.Value) -> ir.Value:
    """`[B,G,X,Y]` as `[B,H,X,Y]`, head g repeated H/G times in place, as the standard's grouped attention does.

    Raises:
        CannotRepeat: the head counts do not say how often.
    """
    query_heads, key_heads = attention.head_counts()
    if key_heads == 1 or (query_heads is not None and query_heads == key_heads):
        return value  # one key/value head for all is what a product broadcasts
    if query_heads is None or key_heads is None or query_heads % key_heads:
        q_dim, v_dim = (each.shape[1] if each.shape is not None else None for each in (attention.q, attention.v))
        if query_heads is None and key_heads is None and q_dim is not None and q_dim == v_dim:
            return value
        raise CannotRepeat(f"query heads {q_dim} and key/value heads {v_dim} do not say how often a head is repeated")
    times = query_heads // key_heads
    each = build.op("Unsqueeze", value, build.const([2], np.int64), name="group")
    each = build.op("Expand", each, build.const([1, 1, times, 1, 1], np.int64), name="group_each")
    sizes = (build.size(value, 0), build.const([query_heads], np.int64), build.size(value, 2), build.size(value, 3))
    shape = build.op("Concat", *sizes, name="group_shape", axis=0)
    return build.op("Reshape", each, shape, name="heads")
