"""Writes out ONNX Runtime's own operators in ONNX's, so that every runtime has them and recognition reads attention.

What cannot be written out is left as it is. Source: ONNX Runtime's documentation of contrib operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder

if TYPE_CHECKING:
    import onnx_ir as ir

DOMAIN = "com.microsoft"
Writer = Callable[[Builder, "ir.Node"], "list[ir.Value | None] | None"]
"""Builds what replaces a node's outputs; None in place of one that nobody reads, or of them all: it cannot."""


def write_out_contrib(model: ir.Model) -> int:
    """Replaces the operators that have a form in ONNX's own; returns how many.

    Args:
        model: At the opset of exports, without functions of its own.
    """
    import onnx_ir as ir
    import onnx_ir.passes.common as passes

    if not any(node.domain == DOMAIN for node in model.graph):
        return 0
    passes.ShapeInferencePass(data_prop=False)(model)
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


def _input(node: ir.Node, at: int) -> ir.Value | None:
    return node.inputs[at] if at < len(node.inputs) else None


def _get(node: ir.Node, name: str, default: Any) -> Any:
    return node.attributes[name].value if name in node.attributes else default


def _added(build: Builder, first: ir.Value | None, *rest: ir.Value | None) -> ir.Value:
    assert first is not None
    for one in rest:
        first = first if one is None else build.op("Add", first, one, name="sum")
    return first


def _skip_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = _added(build, node.inputs[0], node.inputs[1], _input(node, 4))
    norm = build.op("LayerNormalization", total, node.inputs[2], _input(node, 3), name="norm", axis=-1,
                    epsilon=_get(node, "epsilon", 1e-12))  # fmt: skip
    return [norm, None, None, total]


def _skip_rms_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = _added(build, node.inputs[0], node.inputs[1], _input(node, 3))
    epsilon = _get(node, "epsilon", 1e-12)
    return [build.op("RMSNormalization", total, node.inputs[2], name="norm", axis=-1, epsilon=epsilon), None, None,
            total]  # fmt: skip


def _rms_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    return [build.op("RMSNormalization", *node.inputs[:2], name="norm", axis=_get(node, "axis", -1),
                     epsilon=_get(node, "epsilon", 1e-5))]  # fmt: skip


def _embed_norm(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    ids, segments, words, places, kinds, scale, bias = node.inputs[:7]
    assert ids is not None
    assert words is not None
    positions = _input(node, 8)
    if positions is None:
        positions = _range(build, ids, 1)
    rows = [build.op("Gather", table, at, name="rows", dtype=words.dtype, axis=0)
            for table, at in ((words, ids), (places, positions), (kinds, segments)) if at is not None]  # fmt: skip
    total = _added(build, rows[0], *rows[1:])
    norm = build.op("LayerNormalization", total, scale, bias, name="norm", axis=-1,
                    epsilon=_get(node, "epsilon", 1e-12))  # fmt: skip
    mask = _input(node, 7)
    if mask is None:
        return [norm, None, total]
    count = build.op("ReduceSum", mask, build.const([1], np.int64), name="lengths", keepdims=0)
    return [norm, count, total]


def _range(build: Builder, like: ir.Value, axis: int) -> ir.Value:
    """0, 1, 2, ... along an axis, as int64[size]."""
    import onnx_ir as ir

    size = build.op("Squeeze", build.size(like, axis), build.const([0], np.int64), name="length")
    zero, one = build.const(0, np.int64), build.const(1, np.int64)
    return build.op("Range", zero, size, one, name="positions", dtype=ir.DataType.INT64)


def _gelu(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    total = _added(build, node.inputs[0], _input(node, 1))
    approximate = "tanh" if node.op_type == "FastGelu" else "none"
    return [build.op("Gelu", total, name="gelu", approximate=approximate)]


def _quick_gelu(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x = node.inputs[0]
    assert x is not None
    scaled = build.op("Mul", x, build.like(_get(node, "alpha", 1.702), x), name="scaled")
    return [build.op("Mul", x, build.op("Sigmoid", scaled, name="gate"), name="gelu")]


def _fused_matmul(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    if _get(node, "transBatchA", 0) or _get(node, "transBatchB", 0):
        return None
    factors = []
    for value, turned in zip(node.inputs[:2], ("transA", "transB"), strict=True):
        assert value is not None
        if _get(node, turned, 0):
            rank = _rank(value)
            if rank is None:
                return None
            order = [*range(rank - 2), rank - 1, rank - 2]
            value = build.op("Transpose", value, name="turned", perm=order)
        factors.append(value)
    found = build.op("MatMul", *factors, name="product")
    alpha = _get(node, "alpha", 1.0)
    return [found if alpha == 1.0 else build.op("Mul", found, build.like(alpha, found), name="scaled")]


def _rotary(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x, positions, cos, sin = node.inputs[:4]
    if positions is None or positions.shape is None or len(positions.shape) != 2 or _get(node, "is_packed_batching", 0):
        return None
    attributes = {name: _get(node, name, 0) for name in ("interleaved", "num_heads", "rotary_embedding_dim")}
    return [build.op("RotaryEmbedding", x, cos, sin, positions, name="rotated", **attributes)]


def _split_heads(build: Builder, x_BTE: ir.Value, heads: int) -> ir.Value:
    apart = build.op("Reshape", x_BTE, build.const([0, 0, heads, -1], np.int64), name="heads")
    return build.op("Transpose", apart, name="by_head", perm=[0, 2, 1, 3])


def _merge_heads(build: Builder, y_BHTD: ir.Value) -> ir.Value:
    by_token = build.op("Transpose", y_BHTD, name="by_token", perm=[0, 2, 1, 3])
    return build.op("Reshape", by_token, build.const([0, 0, -1], np.int64), name="merged")


def _mask_bias(build: Builder, node: ir.Node, mask: ir.Value | None, like: ir.Value) -> ir.Value | None:
    """What a mask of 0 and 1, [B,S] or [B,T,S], or numbers of keys, [B], add to the scores of queries [B,H,T,D]."""
    import onnx_ir as ir

    if mask is None:
        return None
    assert like.dtype is not None
    if _is_counted(mask):
        lengths = build.op("Unsqueeze", mask, build.const([1], np.int64), name="lengths")
        places = build.cast(_range(build, like, 2), mask.dtype or ir.DataType.INT32)
        mask = build.op("Less", places, lengths, name="kept", dtype=ir.DataType.BOOL, shape=[None, None])
    assert mask.shape is not None
    kept = build.cast(mask, like.dtype)
    out = build.op("Sub", build.like(1.0, like), kept, name="excluded")
    excluded = build.op("Mul", out, build.like(_get(node, "mask_filter_value", -10000.0), like), name="bias")
    if len(mask.shape) == 3:
        return build.op("Unsqueeze", excluded, build.const([1], np.int64), name="bias_of_keys")
    of_keys = build.op("Unsqueeze", excluded, build.const([1, 2], np.int64), name="bias_of_keys")
    one = build.const([1], np.int64)
    rows = build.op("Concat", one, one, build.size(like, 2), one, name="rows", dtype=ir.DataType.INT64, axis=0)
    return build.op("Expand", of_keys, rows, name="bias_of_rows")  # ONNX Runtime takes no mask of one row


def _is_readable(mask: ir.Value | None) -> bool:
    """Whether a mask is one of 0 and 1, or the numbers of keys that `EmbedLayerNormalization` counted.

    Others with one axis have the first and the last places, which their size alone tells from numbers of keys.
    """
    return mask is None or _is_counted(mask) or (mask.shape is not None and len(mask.shape) in (2, 3))


def _is_counted(mask: ir.Value) -> bool:
    node = mask.producer()
    return node is not None and node.op_type == "ReduceSum"


def _attend(
    build: Builder, node: ir.Node, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value | None, bias: ir.Value | None
) -> ir.Value:
    """ONNX's operator on [B,H,T,D], merged to [B,T,E]."""
    of_keys = _mask_bias(build, node, mask, q)
    both = bias if of_keys is None else of_keys if bias is None else _added(build, of_keys, bias)
    attributes: dict[str, Any] = {"scale": scale} if (scale := _get(node, "scale", 0.0)) else {}
    if _get(node, "unidirectional", 0):
        attributes["is_causal"] = 1
    y = build.op("Attention", q, k, v, both, name="attention", **attributes)
    return _merge_heads(build, y)


def _multi_head(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    q, k, v, bias, mask, added = (_input(node, at) for at in range(6))
    rest = [value for value in node.inputs[6:] if value is not None]
    if rest or q is None or k is None or v is None or not _is_readable(mask):
        return None
    heads = _get(node, "num_heads", 0)
    by_head = _rank(k) == 4
    if _rank(q) not in (3, None) or _rank(k) not in (3, 4, None) or (by_head and bias is not None):
        return None
    if bias is not None and (bias.shape is None or not isinstance(bias.shape[0], int)):
        return None
    if bias is not None:
        q, k, v = _biased(build, bias, (q, k, v))
    q = _split_heads(build, q, heads)
    if not by_head:
        k, v = _split_heads(build, k, heads), _split_heads(build, v, heads)
    return [_attend(build, node, q, k, v, mask, added), k, v]


def _biased(build: Builder, bias: ir.Value, parts: tuple[ir.Value, ...]) -> list[ir.Value]:
    """Queries, keys and values with their parts of one vector."""
    widths = [part.shape[2] if part.shape is not None else None for part in parts]
    if not all(isinstance(width, int) for width in widths):
        size = bias.shape[0] if bias.shape is not None else 0
        widths = [int(str(size)) // 3] * 3
    found, at = [], 0
    for part, width in zip(parts, widths, strict=True):
        end = at + int(str(width))
        own = build.op("Slice", bias, *(build.const([n], np.int64) for n in (at, end, 0)), name="own_bias")
        found.append(build.op("Add", part, own, name="biased"))
        at = end
    return found


def _packed(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    x, weight, bias, mask, past, added = (_input(node, at) for at in range(6))
    rest = [value for value in node.inputs[6:] if value is not None]
    refused = past is not None or rest or _get(node, "do_rotary", 0) or not _is_readable(mask)
    if refused or x is None or weight is None or weight.shape is None or not isinstance(weight.shape[1], int):
        return None
    product = _added(build, build.op("MatMul", x, weight, name="product"), bias)
    sizes = list(_get(node, "qkv_hidden_sizes", ())) or [weight.shape[1] // 3] * 3
    parts, at = [], 0
    for size in sizes:
        ends = (build.const([n], np.int64) for n in (at, at + size, 2))
        parts.append(_split_heads(build, build.op("Slice", product, *ends, name="part"), _get(node, "num_heads", 0)))
        at += size
    return [_attend(build, node, parts[0], parts[1], parts[2], mask, added)]


def _grouped(build: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    """A prompt without a cache; with one, where keys are written depends on values of other inputs."""
    q, k, v, past_k, past_v, _, _, cos, sin, positions, added = (_input(node, at) for at in range(11))
    rest = [value for value in node.inputs[11:] if value is not None]
    window = _get(node, "local_window_size", -1)
    refused = past_k is not None or past_v is not None or rest or window > 0 or _get(node, "smooth_softmax", 0) == 1
    if refused or q is None or k is None or v is None or positions is not None or added is not None:
        return None
    heads, grouped = _get(node, "num_heads", 0), _get(node, "kv_num_heads", 0)
    q, k, v = (_split_heads(build, one, count) for one, count in ((q, heads), (k, grouped), (v, grouped)))
    if _get(node, "do_rotary", 0):
        if cos is None or sin is None:
            return None
        at = build.op("Unsqueeze", _range(build, q, 2), build.const([0], np.int64), name="of_all_rows")
        caches = [build.op("Gather", table, at, name="angles", dtype=table.dtype, axis=0) for table in (cos, sin)]
        interleaved = _get(node, "rotary_interleaved", 0)
        q, k = (build.op("RotaryEmbedding", one, *caches, name="rotated", interleaved=interleaved) for one in (q, k))
    attributes: dict[str, Any] = {"is_causal": 1, "softcap": float(_get(node, "softcap", 0.0))}
    if scale := _get(node, "scale", 0.0):
        attributes["scale"] = scale
    y = build.op("Attention", q, k, v, name="attention", **attributes)
    return [_merge_heads(build, y), k, v]


def _rank(value: ir.Value) -> int | None:
    """How many axes a value has, also where the file does not write its shape; None = unknown."""
    node = value.producer()
    if value.shape is not None or node is None:
        return len(value.shape) if value.shape is not None else None
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "Transpose" and "perm" in node.attributes:
        return len(node.attributes["perm"].as_ints())
    if node.op_type == "Reshape" and node.inputs[1] is not None and node.inputs[1].const_value is not None:
        return int(node.inputs[1].const_value.size)
    if node.op_type in ("MultiHeadAttention", "GroupQueryAttention"):
        return 3
    same = node.op_type in (*_WRITERS, "Mul", "Div", "Add", "Sub", "MatMul", "Cast", "LayerNormalization", "Identity")
    return _rank(first) if same and first is not None else None


_WRITERS: dict[str, Writer] = {
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "EmbedLayerNormalization": _embed_norm,
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
    "RotaryEmbedding": _rotary,
    "MultiHeadAttention": _multi_head,
    "Attention": _packed,
    "GroupQueryAttention": _grouped,
}
