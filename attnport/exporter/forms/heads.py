"""Grouped heads for forms that multiply matrices: repeats each key/value head for the query heads that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder, CannotLower
from attnport.exporter.fusion.attention import Attention

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
