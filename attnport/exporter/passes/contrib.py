"""Writes out ONNX Runtime's own operators in ONNX's, so that every runtime has them and recognition reads attention.

What cannot be written out is left as it is. Source: ONNX Runtime's documentation of contrib operators. What it does not
say was measured on the CPU kernels of 1.31.1:

- `unidirectional` lets the last query see every key, so that it is causal only where each query has a key.
- A window of `GroupQueryAttention` is of as many keys as `local_window_size` says, the query's own among them. Older
  releases had one more.

In `GroupQueryAttention`, a row of the batch has keys up to `seqlens_k`, and its new tokens are the last of them: they
are written there, over what the cache holds, and behind them the longer cache has zeros. A pass with as many new tokens
as `total_sequence_length` is a prompt, which begins at place 0 whatever the cache holds. Where the sizes show that
every row is as long as cache and new tokens together, keys and values are put behind the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.comparisons import ONE, linear, plus, size_sum
from attnport.exporter.fusion.elements import element
from attnport.exporter.fusion.formula import Axis
from attnport.exporter.fusion.moves import known_size
from attnport.exporter.passes.sizes import settle_sizes

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


Array = np.ndarray[Any, Any]


def fused_matmul(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """A product of two tensors, of which each may be transposed, or have its first axis behind those of the batch."""
    factors = []
    for value, side in zip(node.inputs[:2], "AB", strict=True):
        assert value is not None
        axes = rank(value)
        turns, moves = attribute(node, f"trans{side}", 0), attribute(node, f"transBatch{side}", 0)
        if (turns or moves) and axes is None:
            return None
        order = list(range(axes or 0))
        order = [*order[1:-1], order[0], order[-1]] if moves else order
        order = [*order[:-2], order[-1], order[-2]] if turns else order
        factors.append(build.op("Transpose", value, name="turned", perm=order) if turns or moves else value)
    found = build.op("MatMul", *factors, name="product")
    alpha = attribute(node, "alpha", 1.0)
    return [found if alpha == 1.0 else build.op("Mul", found, build.like(alpha, found), name="scaled")]


def matmul_n_bits(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """A product by a weight of a few bits, which becomes one of float32; not with blocks in an order of their own."""
    x, weight, scales, zeros, order, bias = (given(node, at) for at in range(6))
    arrays = [None if value is None or value.const_value is None else value.const_value.numpy()
              for value in (weight, scales, zeros)]  # fmt: skip
    if order is not None or arrays[0] is None or arrays[1] is None or (zeros is not None and arrays[2] is None):
        return None
    bits, width = attribute(node, "bits", 4), attribute(node, "K", 0)
    wide = _widened(arrays[0], arrays[1], arrays[2], bits)[:, :width]
    assert weight is not None
    key = "wide", weight, scales, zeros, bits, width
    stored = build.once(key, lambda: build.stored(f"{weight.name}/wide", np.ascontiguousarray(wide.T)))
    return [summed(build, build.op("MatMul", x, stored, name="product"), bias)]


def _widened(weight: Array, scales: Array, zeros: Array | None, bits: int) -> Array:
    """A weight as float32 `[N, blocks * width of one]`, of whole numbers that are packed in bytes."""
    count, blocks = weight.shape[:2]
    middle: Array | float = 2.0 ** (bits - 1)
    if zeros is not None:
        whole = zeros if zeros.dtype.kind == "f" else _whole(zeros.reshape(count, -1), bits)
        middle = whole.reshape(count, -1)[:, :blocks, None].astype(np.float32)
    wide = (_whole(weight, bits).astype(np.float32) - middle) * scales.reshape(count, blocks, 1)
    return wide.reshape(count, -1).astype(np.float32)


def _whole(packed: Array, bits: int) -> Array:
    """Numbers along the last axis, the first of a byte in its lowest bits."""
    parts = [(packed >> low) & (2**bits - 1) for low in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


_NO_MASK_VALUE = -10000.0


def multi_head(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """`MultiHeadAttention`, whichever way its queries, keys and values come; not with a shared buffer, nor of beams."""
    q, mask, added, past_k, past_v = (given(node, at) for at in (0, 4, 5, 6, 7))
    if q is None or any(value is not None for value in node.inputs[8:]):
        return None
    parts = _by_head(build, node, q)
    if parts is None:
        return None
    if past_k is None or past_v is None:
        return _attended(build, node, parts, mask, added)
    q, k, v = parts
    k, v = (build.op("Concat", past, new, name="kept", axis=2) for past, new in ((past_k, k), (past_v, v)))
    return _attended(build, node, (q, k, v), mask, added, past_k)


def packed(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """`Attention`, which computes queries, keys and values by one product of its input."""
    x, weight, bias, mask, past, added = (given(node, at) for at in range(6))
    refused = any(value is not None for value in node.inputs[6:]) or attribute(node, "do_rotary", 0)
    width = None if weight is None else known_size(weight, 1)
    if refused or x is None or not isinstance(width, int):
        return None
    product = summed(build, build.op("MatMul", x, weight, name="product"), bias)
    sizes = list(attribute(node, "qkv_hidden_sizes", ())) or [width // 3] * 3
    heads = attribute(node, "num_heads", 0)
    q, k, v = (split_heads(build, part, heads) for part in parted(build, product, sizes, 2))
    if past is None:
        made = _attended(build, node, (q, k, v), mask, added)
    else:
        pasts = [build.op("Gather", past, build.const(at, np.int64), name="past", axis=0) for at in (0, 1)]
        k, v = (build.op("Concat", old, new, name="kept", axis=2) for old, new in zip(pasts, (k, v), strict=True))
        made = _attended(build, node, (q, k, v), mask, added, pasts[0])
    if made is None or sizes[1] != sizes[2]:
        return made and made[:1]
    both = [unsqueezed(build, value, 0) for value in (k, v)]
    return [made[0], build.op("Concat", *both, name="present", axis=0)]


def _by_head(build: Builder, node: ir.Node, q: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Queries, keys and values with their biases, `[B,H,T,D]`; None where they come in a way that is not known."""
    k, v, bias = (given(node, at) for at in (1, 2, 3))
    heads, axes = attribute(node, "num_heads", 0), [None if value is None else rank(value) for value in (q, k, v)]
    if axes == [5, None, None]:  # [B,T,H,3,D]
        biases = None if bias is None else build.op("Reshape", bias, build.const([3, heads, -1], np.int64), name="bias")
        q, k, v = (_unpacked(build, q, at, biases) for at in range(3))
        return q, k, v
    if axes == [3, 5, None] and k is not None and bias is None:  # [B,S,H,2,D]
        return split_heads(build, q, heads), _unpacked(build, k, 0), _unpacked(build, k, 1)
    if axes not in ([3, 3, 3], [3, 4, 4]) or k is None or v is None:
        return None
    by_head = axes[1] == 4
    flat = [q] if by_head else [q, k, v]
    if bias is not None:
        widths = [known_size(value, 2) for value in flat]
        sizes = [width for width in widths if isinstance(width, int)]
        if len(sizes) < len(widths):
            return None
        biases_of = parted(build, bias, sizes, 0)
        flat = [build.op("Add", value, own, name="biased") for value, own in zip(flat, biases_of, strict=True)]
    apart = [split_heads(build, value, heads) for value in flat]
    return (apart[0], k, v) if by_head else (apart[0], apart[1], apart[2])


def _unpacked(build: Builder, together: ir.Value, at: int, biases: ir.Value | None = None) -> ir.Value:
    """One of the values in `[B,S,H,N,D]`, as `[B,H,S,D]`, with its bias of `[N,H,D]`."""
    number = build.const(at, np.int64)
    value = build.op("Gather", together, number, name="part", axis=3)
    if biases is not None:
        value = build.op("Add", value, build.op("Gather", biases, number, name="own_bias", axis=0), name="biased")
    return build.op("Transpose", value, name="by_head", perm=[0, 2, 1, 3])


def _attended(
    build: Builder,
    node: ir.Node,
    parts: tuple[ir.Value, ir.Value, ir.Value],
    mask: ir.Value | None,
    added: ir.Value | None,
    past: ir.Value | None = None,
) -> list[ir.Value | None] | None:
    """ONNX's operator on `[B,H,T,D]`, merged to `[B,T,E]`, and keys and values; None where a mask cannot be read.

    Args:
        past: Of keys, where `parts` begin with a cache.
    """
    q, k, v = parts
    x = given(node, 0)
    if x is None or not _is_readable(mask, x):
        return None
    of_keys = _mask_bias(build, node, mask, q, k)
    bias = added if of_keys is None else summed(build, of_keys, added)
    attributes: dict[str, Any] = {"scale": scale} if (scale := attribute(node, "scale", 0.0)) else {}
    if attribute(node, "unidirectional", 0):
        new = given(node, 1) or x
        lengths = known_size(x, 1), known_size(new, 2 if rank(new) == 4 else 1)
        if node.op_type == "MultiHeadAttention" and (None in lengths or lengths[0] != lengths[1]):
            return None
        if past is None:
            attributes["is_causal"] = 1
        else:
            visible = causal(build, build.size(q, 2), build.size(k, 2), build.size(past, 2))
            bias = visible if bias is None else hidden(build, bias, visible)
    y = build.op("Attention", q, k, v, bias, name="attention", **attributes)
    return [merge_heads(build, y), k, v]


def _is_readable(mask: ir.Value | None, x: ir.Value) -> bool:
    """Whether a mask is one of 0 and 1, or of one axis the numbers of keys.

    Others with one axis, `[2*B]` and `[3*B+2]`, have places where texts begin and end.
    """
    if mask is None or rank(mask) in (2, 3):
        return True
    size = known_size(mask, 0)
    return _is_counted(mask) or (rank(mask) == 1 and size is not None and size == known_size(x, 0))


def _is_counted(mask: ir.Value) -> bool:
    """Whether these are the numbers of keys that `EmbedLayerNormalization` counted."""
    node = mask.producer()
    return node is not None and node.op_type == "ReduceSum"


def _mask_bias(build: Builder, node: ir.Node, mask: ir.Value | None, q: ir.Value, k: ir.Value) -> ir.Value | None:
    """What a mask of 0 and 1, [B,S] or [B,T,S], or numbers of keys, [B], add to the scores of queries [B,H,T,D]."""
    import onnx_ir as ir

    if mask is None:
        return None
    assert q.dtype is not None
    if rank(mask) not in (2, 3):
        lengths = unsqueezed(build, mask, 1, name="lengths")
        every = build.cast(places(build, build.size(k, 2)), mask.dtype or ir.DataType.INT32)
        mask = build.op("Less", every, lengths, name="kept", dtype=ir.DataType.BOOL, shape=[None, None])
    kept = build.cast(mask, q.dtype)
    out = build.op("Sub", build.like(1.0, q), kept, name="excluded")
    low = build.like(attribute(node, "mask_filter_value", _NO_MASK_VALUE), q)
    excluded = build.op("Mul", out, low, name="bias")
    if rank(mask) == 3:
        return unsqueezed(build, excluded, 1, name="bias_of_keys")
    of_keys = unsqueezed(build, excluded, 1, 2, name="bias_of_keys")
    one = build.const([1], np.int64)
    rows = build.op("Concat", one, one, build.size(q, 2), one, name="rows", dtype=ir.DataType.INT64, axis=0)
    return build.op("Expand", of_keys, rows, name="bias_of_rows")  # ONNX Runtime takes no mask of one row


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
        return [_attended_with_cache(build, node, (q, k, v), added, None), k, v]
    k, v = (_kept(build, past, new, lengths) for past, new in ((past_k, k), (past_v, v)))
    keys, values = (_used(build, whole, lengths) for whole in (k, v))
    return [_attended_with_cache(build, node, (q, keys, values), added, lengths), k, v]


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


def _attended_with_cache(
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


DOMAIN = "com.microsoft"
Writer = Callable[[Builder, "ir.Node"], "list[ir.Value | None] | None"]
"""Builds what replaces a node's outputs; None in place of one that nobody reads, or of them all: it cannot."""


def write_out_contrib(model: ir.Model) -> int:
    """Replaces the operators that have a form in ONNX's own; returns how many.

    Args:
        model: At the opset of exports, without functions of its own.
    """
    import onnx_ir as ir

    if not any(node.domain == DOMAIN for node in model.graph):
        return 0
    settle_sizes(model)
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        writer = _WRITERS.get(node.op_type) if node.domain == DOMAIN else None
        if writer is None:
            continue
        build.before, build.scope = node, node.name or node.op_type
        for value in node.inputs:
            if value is not None and value.dtype is None:
                value.dtype = ir.DataType.FLOAT  # inference stops at operators that are not ONNX's
        made = writer(build, node)
        if made is None or any(out.uses() or out.is_graph_output() for out, new in _pairs(node, made) if new is None):
            continue
        for out, new in _pairs(node, made):
            if new is not None:
                build.replace(out, new)
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _pairs(node: ir.Node, made: list[ir.Value | None]) -> list[tuple[ir.Value, ir.Value | None]]:
    return list(zip(node.outputs, [*made, *[None] * len(node.outputs)], strict=False))


def _skip_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = summed(build, node.inputs[0], node.inputs[1], given(node, 4))
    norm = build.op("LayerNormalization", total, node.inputs[2], given(node, 3), name="norm", axis=-1,
                    epsilon=attribute(node, "epsilon", 1e-12))  # fmt: skip
    return [norm, None, None, total]


def _skip_rms_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = summed(build, node.inputs[0], node.inputs[1], given(node, 3))
    epsilon = attribute(node, "epsilon", 1e-12)
    return [build.op("RMSNormalization", total, node.inputs[2], name="norm", axis=-1, epsilon=epsilon), None, None,
            total]  # fmt: skip


def _rms_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    return [build.op("RMSNormalization", *node.inputs[:2], name="norm", axis=attribute(node, "axis", -1),
                     epsilon=attribute(node, "epsilon", 1e-5))]  # fmt: skip


def _embed_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    ids, segments, words, spots, kinds, scale, bias = node.inputs[:7]
    assert ids is not None
    assert words is not None
    positions = given(node, 8)
    if positions is None:
        positions = places(build, build.size(ids, 1))
    rows = [build.op("Gather", table, at, name="rows", dtype=words.dtype, axis=0)
            for table, at in ((words, ids), (spots, positions), (kinds, segments)) if at is not None]  # fmt: skip
    total = summed(build, rows[0], *rows[1:])
    norm = build.op("LayerNormalization", total, scale, bias, name="norm", axis=-1,
                    epsilon=attribute(node, "epsilon", 1e-12))  # fmt: skip
    mask = given(node, 7)
    if mask is None:
        return [norm, None, total]
    count = build.op("ReduceSum", mask, build.const([1], np.int64), name="lengths", keepdims=0)
    return [norm, count, total]


def _gelu(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = summed(build, node.inputs[0], given(node, 1))
    approximate = "tanh" if node.op_type == "FastGelu" else "none"
    return [build.op("Gelu", total, name="gelu", approximate=approximate)]


def _quick_gelu(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x = node.inputs[0]
    assert x is not None
    scaled = build.op("Mul", x, build.like(attribute(node, "alpha", 1.702), x), name="scaled")
    return [build.op("Mul", x, build.op("Sigmoid", scaled, name="gate"), name="gelu")]


def _rotary(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x, positions, cos, sin = node.inputs[:4]
    if x is None or positions is None or cos is None or attribute(node, "is_packed_batching", 0):
        return None
    attributes = {name: attribute(node, name, 0) for name in ("interleaved", "num_heads", "rotary_embedding_dim")}
    axes, width, half = rank(x), known_size(x, 2), known_size(cos, 1)
    if axes == 3 and not attributes["num_heads"]:
        if not isinstance(width, int) or not isinstance(half, int):
            return None
        attributes["num_heads"] = width // (2 * half)
    if rank(positions) == 1 and axes is not None:  # the position of the first token
        every = build.op("Add", positions, places(build, build.size(x, axes - 2)), name="positions")
        rows = build.op("Concat", build.size(x, 0), build.size(x, axes - 2), name="rows", axis=0)
        positions = build.op("Expand", every, rows, name="positions_of_rows", dtype=every.dtype)
    if rank(positions) != 2 and positions.shape is not None:
        return None
    return [build.op("RotaryEmbedding", x, cos, sin, positions, name="rotated", **attributes)]


_WRITERS: dict[str, Writer] = {
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "EmbedLayerNormalization": _embed_norm,
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": fused_matmul,
    "RotaryEmbedding": _rotary,
    "MatMulNBits": matmul_n_bits,
    "MultiHeadAttention": multi_head,
    "Attention": packed,
    "GroupQueryAttention": grouped,
}
