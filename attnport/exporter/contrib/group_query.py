"""`GroupQueryAttention`: causal attention with fewer heads of keys than of queries, and with a cache.

It is written without a cache, for a causal mask with or without lengths of texts. It is expanded with a cache too:
where the sizes show that every row is as long as cache and new tokens together, keys and values are put behind the
cache, and else they are written to the place of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.contrib.parts import (
    Expanded,
    Operator,
    causal,
    counted,
    guarded,
    heads_first,
    hidden,
    length_factor,
    merge_heads,
    name_or_value,
    parted,
    places,
    rows_of,
    same_lengths,
    seen,
    split_heads,
    unsqueezed,
    write,
)
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.fusion.elements import element
from attnport.exporter.fusion.formula import CAUSAL, ONE, Axis, linear, plus, size_sum
from attnport.exporter.fusion.mask import Factor
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.graph.size_rules import KnownSizes, Sizes
from attnport.onnx_graph import ir, known_size, rank_of


def why_not_group_query(attention: Attention) -> str:
    """Why `GroupQueryAttention` cannot compute an attention with exactly its mask; "" if it can."""
    heads, key_heads = attention.head_counts()
    if heads is None or key_heads is None or heads % key_heads:
        return f"GroupQueryAttention needs fixed head counts; got {heads} query and {key_heads} key/value heads"
    keeps = [factor.keep for factor in attention.mask.factors if factor is not length_factor(attention.mask)]
    if attention.mask.biases or keeps != [CAUSAL]:
        return f"GroupQueryAttention takes only a causal mask, with or without lengths; got {attention.mask.spec}"
    if not same_lengths(attention):
        return "GroupQueryAttention without a cache needs as many queries as keys"
    depth, value_depth = (known_size(value, 3) for value in (attention.q, attention.v))
    if not isinstance(depth, int) or depth % 8 or depth != value_depth:
        return f"GroupQueryAttention needs one head dim, a multiple of 8; got {depth}, and {value_depth} for values"
    if attention.sink is not None:
        return "attnport writes no GroupQueryAttention with a sink"
    return "" if attention.scale else "GroupQueryAttention replaces a scale of zero by its default"


def group_query_attention(build: Builder, masks: MaskWriter, attention: Attention) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `GroupQueryAttention(q, k, v)` for an attention for which `why_not_group_query` returned "".

    Returns:
        The output, `[B,H,S,D]`, and the operator's node name.
    """
    heads, key_heads = attention.head_counts()
    assert heads is not None
    q, k, v = rows_of(build, attention, 1)
    by_length = length_factor(attention.mask)
    total = build.once(
        ("keys", name_or_value(attention.v, 2)),
        lambda: build.cast(build.size(attention.v, 2), ir.DataType.INT32, "mask/keys"),
    )
    last = _last_keys(build, attention, total, by_length)
    output = write(
        build, "GroupQueryAttention", q=q, k=k, v=v, last=last, total=total,
        num_heads=heads, kv_num_heads=key_heads, scale=attention.scale, softcap=attention.softcap,
    )  # fmt: skip
    _add_cache_outputs(output)
    anchor = node_name(output)
    if by_length is not None:
        # The causal mask allows key 0 to every query, so a row has no key only if its length is zero.
        only = replace(attention, mask=replace(attention.mask, factors=(by_length,)))
        output = guarded(build, masks, only, output, rows=True)
    return heads_first(build, attention, output), (anchor,)


def _last_keys(build: Builder, attention: Attention, total: ir.Value, by_length: Factor | None) -> ir.Value:
    """The index of each item's last key, int32[B]; 0 for an item without keys."""
    one, zero = (build.const([number], np.int32) for number in (1, 0))
    if by_length is None:
        return build.once(
            ("last keys", total, name_or_value(attention.q, 0)),
            lambda: build.op("Expand", build.op("Sub", total, one), build.size(attention.q, 0), name="mask/last_key"),
        )
    lengths = counted(build, attention, by_length)
    return build.once(
        ("last keys", lengths), lambda: build.op("Max", build.op("Sub", lengths, one), zero, name="mask/last_key")
    )


def _add_cache_outputs(output: ir.Value) -> None:
    """Adds the outputs for the cache: they are optional only in the newest releases, and older kernels write to all."""
    node = output.producer()
    assert node is not None
    node.resize_outputs(3)
    for cache, name in zip(node.outputs[1:], ("present_key", "present_value"), strict=True):
        cache.name = f"{node.name}/{name}"
        if output.dtype is not None:
            cache.dtype = output.dtype


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


def _expand(build: Builder, o: SimpleNamespace) -> Expanded:
    refused = max(o.smooth_softmax, o.sliding_window_cache, o.qk_output) > 0 or o.causal != 1
    if refused or o.sink is not None:
        raise NotImplementedError("GroupQueryAttention with a sink, or with a cache that forgets")
    q, k, v = _parts(build, o)
    lengths = None if o.past_k is None or o.past_v is None else _lengths(build, o)
    if o.do_rotary:
        q, k = _turned(build, o, (q, k), lengths)
    if lengths is None:
        return [_attended(build, o, (q, k, v), None), k, v]
    k, v = (_kept(build, past, new, lengths) for past, new in ((o.past_k, k), (o.past_v, v)))
    keys, values = (_used(build, whole, lengths) for whole in (k, v))
    return [_attended(build, o, (q, keys, values), lengths), k, v]


def _parts(build: Builder, o: SimpleNamespace) -> list[ir.Value]:
    """Queries, keys and values, `[B,H,S,D]` and `[B,G,S,D]`."""
    counts = [o.num_heads, o.kv_num_heads, o.kv_num_heads]
    if o.k is None and o.v is None:
        width = known_size(o.q, 2)
        if not isinstance(width, int):
            raise NotImplementedError("packed queries, keys and values of unknown size")
        depth = width // sum(counts)
        flat = parted(build, o.q, [count * depth for count in counts], 2)
    elif rank_of(o.q) == rank_of(o.k) == rank_of(o.v) == 3:
        flat = [o.q, o.k, o.v]
    else:
        raise NotImplementedError("queries, keys and values that are not [B,S,E]")
    return [split_heads(build, part, count) for part, count in zip(flat, counts, strict=True)]


def _lengths(build: Builder, o: SimpleNamespace) -> _Lengths:
    new, past = build.size(o.q, 1), build.size(o.past_k, 2)
    if _is_behind_all(o.q, o.past_k, o.last, o.total):
        return _Lengths(new, past, None, build.op("Add", past, new, name="keys"))
    total = build.op("Reshape", build.cast(o.total, ir.DataType.INT64), build.const([1], np.int64), name="keys")
    lasts = build.op("Reshape", build.cast(o.last, ir.DataType.INT64), build.const([-1, 1], np.int64), name="last")
    before = build.op("Sub", build.const(1, np.int64), new, name="others")
    first = build.op("Add", lasts, before, name="first")
    is_prompt = build.op("Equal", new, total, name="is_prompt", dtype=ir.DataType.BOOL)
    start = build.op("Where", is_prompt, build.const(0, np.int64), first, name="start", dtype=ir.DataType.INT64)
    return _Lengths(new, past, start, total)


def _is_behind_all(q: ir.Value, past_k: ir.Value, last: ir.Value, total: ir.Value) -> bool:
    """Whether the sizes show that every row has as many keys as cache and new tokens have places."""
    new, past = size_sum(q, 1), size_sum(past_k, 2)
    axes = rank_of(last), rank_of(total)
    if new is None or past is None or axes[0] is None or axes[1] is None:
        return False
    ends = element(last, tuple(map(Axis, "bc"[: axes[0]]))), element(total, tuple(map(Axis, "bc"[: axes[1]])))
    sums = [found for each in (*ends, new, past) if (found := linear(each)) is not None]
    if len(sums) < 4:
        return False
    whole = plus(sums[2], sums[3])
    return plus(sums[0], whole, -1) == {ONE: -1} and plus(sums[1], whole, -1) == {}


def _turned(
    build: Builder, o: SimpleNamespace, parts: tuple[ir.Value, ir.Value], lengths: _Lengths | None
) -> list[ir.Value]:
    """Queries and keys turned by the angles of their places."""
    width = None if o.cos is None else known_size(o.cos, 1)
    if o.sin is None or not isinstance(width, int):
        raise NotImplementedError("a rotation whose table is missing, or of unknown size")
    at = _positions(build, o.q, o.positions, lengths)
    angles = [build.op("Gather", table, at, name="angles", dtype=table.dtype, axis=0) for table in (o.cos, o.sin)]
    attributes = {"interleaved": o.rotary_interleaved, "rotary_embedding_dim": 2 * width}
    return [build.op("RotaryEmbedding", part, *angles, name="rotated", **attributes) for part in parts]


def _positions(build: Builder, q: ir.Value, own: ir.Value | None, lengths: _Lengths | None) -> ir.Value:
    """The positions of new tokens, int64[B|1,S]. A prompt counts on from the first of those that are an input."""
    new = build.size(q, 1) if lengths is None else lengths.new
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


def _attended(build: Builder, o: SimpleNamespace, parts: tuple[ir.Value, ...], lengths: _Lengths | None) -> ir.Value:
    """ONNX's operator, merged to `[B,S,H*D]`."""
    q, k, v = parts
    attributes: dict[str, Any] = {"softcap": float(o.softcap)}
    if o.scale:
        attributes["scale"] = o.scale
    bias = o.added
    if lengths is None and o.local_window_size <= 0:
        attributes["is_causal"] = 1
    else:
        visible = _visible(build, q, lengths, o.local_window_size)
        bias = visible if bias is None else hidden(build, bias, visible)
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


def _shape(run: KnownSizes, o: SimpleNamespace, node: ir.Node) -> Sequence[Sizes | None]:
    if len(o.q) != 3:
        return [None]
    is_packed = node.inputs[1] is None
    return [(*o.q[:2], o.q[2] * o.num_heads / (o.num_heads + 2 * o.kv_num_heads) if is_packed else o.q[2])]


OPERATORS = {"GroupQueryAttention": Operator(_expand, _shape)}
