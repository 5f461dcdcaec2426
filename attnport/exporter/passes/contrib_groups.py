"""ONNX Runtime's `GroupQueryAttention` in ONNX's operators.

A row of the batch has keys up to `seqlens_k`, and its new tokens are the last of them: they are written there, over
what the cache holds, and behind them the longer cache has zeros. A pass with as many new tokens as
`total_sequence_length` is a prompt, which begins at place 0 whatever the cache holds. Where the sizes show that every
row is as long as cache and new tokens together, keys and values are put behind the cache.

Source: ONNX Runtime's documentation of contrib operators. What it does not say was measured on the CPU kernel of
1.31.1: a window is of as many keys as `local_window_size` says, the query's own among
them. Older releases had one more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.comparisons import ONE, linear, plus
from attnport.exporter.fusion.elements import element
from attnport.exporter.fusion.formula import Axis
from attnport.exporter.fusion.moves import known_size
from attnport.exporter.fusion.sizes import size_sum
from attnport.exporter.passes.contrib_parts import (
    attribute,
    causal,
    given,
    hidden,
    merge_heads,
    parted,
    places,
    rank,
    seen,
    split_heads,
    unsqueezed,
)

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class _Lengths:
    """Where new tokens and keys are.

    Attributes:
        new, past: How many tokens are new, and how many places the cache has, int64[1].
        start: The place of each row's first new token, int64[B,1]; None where that is the size of the cache.
        total: How many keys there are at most, int64[1].
    """

    new: ir.Value
    past: ir.Value
    start: ir.Value | None
    total: ir.Value


def grouped(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """`GroupQueryAttention` with a cache or without one.

    Not with a sink, with norms of queries and keys, or with a cache that forgets or is rounded.
    """
    x, past_k, past_v, added = (given(node, at) for at in (0, 3, 4, 10))
    attributes = {"smooth_softmax": 0, "sliding_window_cache": 0, "qk_output": 0}
    refused = any(attribute(node, name, value) > value for name, value in attributes.items())
    refused = refused or any(value is not None for value in node.inputs[11:]) or attribute(node, "causal", 1) != 1
    parts = None if refused or x is None else _parts(build, node, x)
    if parts is None or x is None:
        return None
    q, k, v = parts
    lengths = None if past_k is None or past_v is None else _lengths(build, node, x, past_k)
    if attribute(node, "do_rotary", 0):
        turned = _turned(build, node, x, (q, k), lengths)
        if turned is None:
            return None
        q, k = turned
    if lengths is None or past_k is None or past_v is None:
        return [_attended(build, node, (q, k, v), added, None), k, v]
    k, v = (_kept(build, past, new, lengths) for past, new in ((past_k, k), (past_v, v)))
    keys, values = (_used(build, whole, lengths) for whole in (k, v))
    return [_attended(build, node, (q, keys, values), added, lengths), k, v]


def _parts(build: Builder, node: ir.Node, x: ir.Value) -> list[ir.Value] | None:
    """Queries, keys and values, `[B,H,S,D]` and `[B,G,S,D]`; None where their sizes are not known."""
    k, v = given(node, 1), given(node, 2)
    counts = [attribute(node, name, 0) for name in ("num_heads", "kv_num_heads", "kv_num_heads")]
    if k is None and v is None:
        width = known_size(x, 2)
        if not isinstance(width, int):
            return None
        depth = width // sum(counts)
        flat = parted(build, x, [count * depth for count in counts], 2)
    elif k is not None and v is not None and rank(x) == rank(k) == rank(v) == 3:
        flat = [x, k, v]
    else:
        return None
    return [split_heads(build, part, count) for part, count in zip(flat, counts, strict=True)]


def _lengths(build: Builder, node: ir.Node, x: ir.Value, past_k: ir.Value) -> _Lengths:
    import onnx_ir as ir

    new, past = build.size(x, 1), build.size(past_k, 2)
    last, most = given(node, 5), given(node, 6)
    assert last is not None
    assert most is not None
    if _is_behind_all(x, past_k, last, most):
        return _Lengths(new, past, None, build.op("Add", past, new, name="keys"))
    total = build.op("Reshape", build.cast(most, ir.DataType.INT64), build.const([1], np.int64), name="keys")
    lasts = build.op("Reshape", build.cast(last, ir.DataType.INT64), build.const([-1, 1], np.int64), name="last")
    before = build.op("Sub", build.const(1, np.int64), new, name="others")
    first = build.op("Add", lasts, before, name="first")
    is_prompt = build.op("Equal", new, total, name="is_prompt", dtype=ir.DataType.BOOL)
    start = build.op("Where", is_prompt, build.const(0, np.int64), first, name="start", dtype=ir.DataType.INT64)
    return _Lengths(new, past, start, total)


def _is_behind_all(x: ir.Value, past_k: ir.Value, last: ir.Value, most: ir.Value) -> bool:
    """Whether the sizes show that every row has as many keys as cache and new tokens have places."""
    new, past = size_sum(x, 1), size_sum(past_k, 2)
    axes = rank(last), rank(most)
    if new is None or past is None or axes[0] is None or axes[1] is None:
        return False
    ends = element(last, tuple(map(Axis, "bc"[: axes[0]]))), element(most, tuple(map(Axis, "bc"[: axes[1]])))
    sums = [found for each in (*ends, new, past) if (found := linear(each)) is not None]
    if len(sums) < 4:
        return False
    whole = plus(sums[2], sums[3])
    return plus(sums[0], whole, -1) == {ONE: -1} and plus(sums[1], whole, -1) == {}


def _turned(
    build: Builder, node: ir.Node, x: ir.Value, parts: tuple[ir.Value, ir.Value], lengths: _Lengths | None
) -> list[ir.Value] | None:
    """Queries and keys turned by the angles of their places; None where the table is missing or its size unknown."""
    cos, sin, own = (given(node, at) for at in (7, 8, 9))
    width = None if cos is None else known_size(cos, 1)
    if cos is None or sin is None or not isinstance(width, int):
        return None
    at = _positions(build, x, own, lengths)
    angles = [build.op("Gather", table, at, name="angles", dtype=table.dtype, axis=0) for table in (cos, sin)]
    attributes = {"interleaved": attribute(node, "rotary_interleaved", 0), "rotary_embedding_dim": 2 * width}
    return [build.op("RotaryEmbedding", part, *angles, name="rotated", **attributes) for part in parts]


def _positions(build: Builder, x: ir.Value, own: ir.Value | None, lengths: _Lengths | None) -> ir.Value:
    """The positions of new tokens, int64[B|1,S]. A prompt counts on from the first of those that are given."""
    import onnx_ir as ir

    new = build.size(x, 1) if lengths is None else lengths.new
    if own is None:
        if lengths is None or lengths.start is None:
            past = None if lengths is None else lengths.past
            return unsqueezed(build, places(build, new, past), 0, name="of_all_rows")
        return build.op("Add", lengths.start, places(build, new), name="of_each_row")
    zero = build.const([0, 0], np.int64)
    first = build.op("Slice", own, zero, build.const([1, 1], np.int64), build.const([0, 1], np.int64), name="first")
    of_prompt = build.op("Add", first, places(build, new), name="of_prompt")
    if lengths is None:
        return of_prompt
    is_prompt = build.op("Equal", new, lengths.total, name="is_prompt", dtype=ir.DataType.BOOL)
    return build.op("Where", is_prompt, of_prompt, own, name="positions", dtype=ir.DataType.INT64)


def _kept(build: Builder, past: ir.Value, new: ir.Value, lengths: _Lengths) -> ir.Value:
    """The longer cache, `[B,G,T,D]`."""
    import onnx_ir as ir

    both = build.op("Concat", past, new, name="kept", axis=2)
    if lengths.start is None:
        return both
    every = places(build, build.op("Max", lengths.past, lengths.total, name="places"))
    behind = build.op("Sub", every, lengths.start, name="behind")
    is_new = build.op("GreaterOrEqual", every, lengths.start, name="is_new", dtype=ir.DataType.BOOL)
    of_new = build.op("Add", behind, lengths.past, name="of_new")
    most = build.op("Sub", build.op("Add", lengths.past, lengths.new), build.const([1], np.int64), name="most")
    chosen = build.op("Where", is_new, build.op("Min", of_new, most), every, name="chosen", dtype=ir.DataType.INT64)
    chosen = unsqueezed(build, chosen, 1, 3, name="of_all_heads")
    one = build.const([1], np.int64)
    sizes = [build.size(new, 0), build.size(new, 1), one, build.size(new, 3)]
    shape = build.op("Concat", *sizes, name="shape", dtype=ir.DataType.INT64, axis=0)
    found = build.op("GatherElements", both, build.op("Expand", chosen, shape), name="in_place", axis=2)
    is_there = build.op("Less", behind, lengths.new, name="is_there", dtype=ir.DataType.BOOL)
    is_there = unsqueezed(build, is_there, 1, 3, name="is_there_of_all_heads")
    return build.op("Where", is_there, found, build.like(0.0, new), name="longer", dtype=new.dtype)


def _used(build: Builder, whole: ir.Value, lengths: _Lengths) -> ir.Value:
    """The keys of a cache that may have more places than there are keys."""
    if lengths.start is None:
        return whole
    return build.op("Slice", whole, build.const([0], np.int64), lengths.total, build.const([2], np.int64), name="used")


def _attended(
    build: Builder, node: ir.Node, parts: tuple[ir.Value, ...], added: ir.Value | None, lengths: _Lengths | None
) -> ir.Value:
    """ONNX's operator, merged to `[B,S,H*D]`."""
    q, k, v = parts
    window = attribute(node, "local_window_size", -1)
    attributes: dict[str, Any] = {"softcap": float(attribute(node, "softcap", 0.0))}
    if scale := attribute(node, "scale", 0.0):
        attributes["scale"] = scale
    bias = added
    if lengths is None and window <= 0:
        attributes["is_causal"] = 1
    else:
        visible = _visible(build, q, lengths, window)
        bias = visible if added is None else hidden(build, added, visible)
    return merge_heads(build, build.op("Attention", q, k, v, bias, name="attention", **attributes))


def _visible(build: Builder, q: ir.Value, lengths: _Lengths | None, window: int) -> ir.Value:
    """Which keys each query sees, `[S,T]` or, where rows differ, `[B,1,S,T]`."""
    if lengths is None:
        size = build.size(q, 2)
        return causal(build, size, size, build.const([0], np.int64), window)
    if lengths.start is None:
        return causal(build, lengths.new, lengths.total, lengths.past, window)
    own = build.op("Add", lengths.start, places(build, lengths.new), name="own_places")
    return seen(build, unsqueezed(build, own, 1, 3, name="own_keys"), places(build, lengths.total), window)
