"""ONNX Runtime's `MultiHeadAttention` and `Attention` in ONNX's operators.

Source: ONNX Runtime's documentation of contrib operators. What it does not say was measured on the CPU kernels of
1.31.1: `unidirectional` lets the last query see every key, so that it is causal only where each query has a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.moves import known_size
from attnport.exporter.passes.contrib_parts import (
    attribute,
    causal,
    given,
    hidden,
    merge_heads,
    parted,
    places,
    rank,
    split_heads,
    summed,
    unsqueezed,
)

if TYPE_CHECKING:
    import onnx_ir as ir

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
