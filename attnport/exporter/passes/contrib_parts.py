"""What the writers of `passes.contrib` share: inputs and attributes of a node, and heads apart and together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder

if TYPE_CHECKING:
    import onnx_ir as ir


def given(node: ir.Node, at: int) -> ir.Value | None:
    """An input; None where it is left out."""
    return node.inputs[at] if at < len(node.inputs) else None


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute's value, or its default."""
    return node.attributes[name].value if name in node.attributes else default


def summed(build: Builder, first: ir.Value | None, *rest: ir.Value | None) -> ir.Value:
    """The sum of values; those that are None are left out."""
    assert first is not None
    for one in rest:
        first = first if one is None else build.op("Add", first, one, name="sum")
    return first


def places(build: Builder, count: ir.Value, start: ir.Value | None = None) -> ir.Value:
    """`start`, `start` + 1, ..., as int64[count]; sizes are int64[1].

    Args:
        start: 0 by default.
    """
    import onnx_ir as ir

    axis, first = build.const([0], np.int64), build.const(0, np.int64)
    end = count
    if start is not None:
        first, end = build.op("Squeeze", start, axis, name="first"), build.op("Add", start, count, name="end")
    last = build.op("Squeeze", end, axis, name="length")
    return build.op("Range", first, last, build.const(1, np.int64), name="positions", dtype=ir.DataType.INT64)


def unsqueezed(build: Builder, value: ir.Value, *axes: int, name: str = "apart") -> ir.Value:
    """A value with new axes of size 1."""
    return build.op("Unsqueeze", value, build.const(list(axes), np.int64), name=name)


def split_heads(build: Builder, x_BTE: ir.Value, heads: int) -> ir.Value:
    """`[B,T,E]` as `[B,H,T,D]`."""
    apart = build.op("Reshape", x_BTE, build.const([0, 0, heads, -1], np.int64), name="heads")
    return build.op("Transpose", apart, name="by_head", perm=[0, 2, 1, 3])


def merge_heads(build: Builder, y_BHTD: ir.Value) -> ir.Value:
    """`[B,H,T,D]` as `[B,T,E]`."""
    by_token = build.op("Transpose", y_BHTD, name="by_token", perm=[0, 2, 1, 3])
    return build.op("Reshape", by_token, build.const([0, 0, -1], np.int64), name="merged")


def parted(build: Builder, value: ir.Value, sizes: list[int], axis: int) -> list[ir.Value]:
    """A value cut along an axis into parts of these sizes."""
    found, at = [], 0
    for size in sizes:
        ends = (build.const([number], np.int64) for number in (at, at + size, axis))
        found.append(build.op("Slice", value, *ends, name="part"))
        at += size
    return found


def rank(value: ir.Value) -> int | None:
    """How many axes a value has; None if it is not known."""
    return None if value.shape is None else len(value.shape)


def causal(build: Builder, queries: ir.Value, keys: ir.Value, past: ir.Value, window: int = -1) -> ir.Value:
    """Which keys a query sees of those up to its own, bool[T,S].

    Args:
        queries, keys, past: How many queries, keys, and keys before the first query's own, as int64[1].
        window: How many of the last keys a query sees, its own among them; from 0 down, all.
    """
    of_queries = unsqueezed(build, places(build, queries, past), 1, name="own_keys")
    return seen(build, of_queries, places(build, keys), window)


def seen(build: Builder, own: ir.Value, keys: ir.Value, window: int) -> ir.Value:
    """As `causal`, by the place of each query's own key and that of every key, which broadcast."""
    import onnx_ir as ir

    before = build.op("LessOrEqual", keys, own, name="causal", dtype=ir.DataType.BOOL)
    if window <= 0:
        return before
    out_of_sight = build.op("Sub", own, build.const(window, np.int64), name="out_of_sight")
    near = build.op("Greater", keys, out_of_sight, name="near", dtype=ir.DataType.BOOL)
    return build.op("And", before, near, name="visible")


def hidden(build: Builder, bias: ir.Value, visible: ir.Value) -> ir.Value:
    """A bias, -inf where a key is not visible."""
    return build.op("Where", visible, bias, build.like(-math.inf, bias), name="bias_of_visible", dtype=bias.dtype)
