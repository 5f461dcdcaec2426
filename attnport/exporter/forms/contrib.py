"""ONNX Runtime's own attention operators: `MultiHeadAttention` and `GroupQueryAttention` of the domain com.microsoft.

They take q, k and v as `[B,S,H*D]`, which makes the transpositions around an attention unnecessary. Their schema
(ContribOperators.md of ONNX Runtime) does not say the following, which was measured on the CPU kernels of 1.31.1:

- An attention row with no allowed key gives the mean of v, or NaN if its bias is -inf, so it is set to zero afterwards.
  Kernels on CUDA do one or the other, whatever hides the keys.
- `unidirectional` is the standard's causal mask only if S and T are equal.
- `attention_bias` is `[B|1,H|1,S,T]`; S and T are not broadcast.
- `GroupQueryAttention` without a cache needs S = T, D a multiple of 8, v with the same D as k, and no length of zero.
  It is causal. Its window counts differently from release to release and is not used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.forms.bias_and_rows import attention_bias, guarded, heads_first
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.comparisons import CAUSAL, J
from attnport.exporter.fusion.conditions import BATCH, length_of
from attnport.exporter.fusion.formula import axes_of, reads_of
from attnport.exporter.fusion.mask import Factor, Mask
from attnport.exporter.fusion.moves import known_size

if TYPE_CHECKING:
    import onnx_ir as ir

DOMAIN = "com.microsoft"
LOWEST = float(np.finfo(np.float32).min)
HIDING = -1e30
"""Added to a score before it is scaled, hides the key exactly: the sum is this number, and its exponential is zero."""
SEQUENCE_FIRST, KEYS_LAST = (0, 2, 1, 3), (0, 3, 1, 2)
"""Permutations that bring `[B,H,S,D]` and `[B,H,D,S]` to `[B,S,H,D]`."""


def why_not_multi_head(attention: Attention) -> str:
    """Why `MultiHeadAttention` cannot compute an attention; "" if it can."""
    heads, key_heads = attention.head_counts()
    if heads is None or key_heads is None or heads % key_heads:
        return f"MultiHeadAttention needs fixed head counts; got {heads} query and {key_heads} key/value heads"
    if attention.softcap or attention.sink is not None:
        return "MultiHeadAttention has no soft-cap and no sink"
    return "" if attention.scale else "MultiHeadAttention replaces a scale of zero by its default"


def why_not_group_query(attention: Attention) -> str:
    """Why `GroupQueryAttention` cannot compute an attention with exactly its mask; "" if it can."""
    heads, key_heads = attention.head_counts()
    if heads is None or key_heads is None or heads % key_heads:
        return f"GroupQueryAttention needs fixed head counts; got {heads} query and {key_heads} key/value heads"
    keeps = [factor.keep for factor in attention.mask.factors if factor is not length_factor(attention.mask)]
    if attention.mask.biases or keeps != [CAUSAL]:
        return f"GroupQueryAttention takes only a causal mask, with or without lengths; got {attention.mask.spec}"
    if not _same_lengths(attention):
        return "GroupQueryAttention without a cache needs as many queries as keys"
    depth, value_depth = (known_size(value, 3) for value in (attention.q, attention.v))
    if not isinstance(depth, int) or depth % 8 or depth != value_depth:
        return f"GroupQueryAttention needs one head dim, a multiple of 8; got {depth}, and {value_depth} for values"
    if attention.sink is not None:
        return "attnport writes no GroupQueryAttention with a sink"
    return "" if attention.scale else "GroupQueryAttention replaces a scale of zero by its default"


def length_factor(mask: Mask) -> Factor | None:
    """The factor `j < lengths[b]` of a mask: right padding by contract; None where there is none, or several."""
    by_length = [factor for factor in mask.factors if _lengths(factor) is not None]
    return by_length[0] if len(by_length) == 1 else None


def multi_head_attention(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    *,
    key_column: bool,
    packed: tuple[ir.Value, ir.Value | None] | None = None,
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `MultiHeadAttention(q, k, v)` for an attention for which `why_not_multi_head` returned "".

    A causal mask becomes an attribute if S and T are the same dim; every other mask is an attention bias,
    `[B|1,H|1,S,T]`, unless the keys that it hides are written as below. Grouped heads are repeated.

    Args:
        key_column: For the kernels on CPU: whether a mask of keys alone becomes one more column of q and k, of ones and
            of numbers that hide, or key padding where it is one of lengths and there can be no column. The flash kernel
            on CPU, whose memory is linear in T, takes no mask. On CUDA, key padding is computed by several kernels, and
            a bias by cuDNN's flash attention (measured on an H200 with 1.31.1, half precision).
        packed: For the kernels on CUDA: q, k and v as `[B,S,H,3,D]`, and what is added to them, `[3*H*D]` or None.

    Returns:
        The output, `[B,H,S,Dv]`, and the operator's node name.
    """
    import onnx_ir as ir

    heads, key_heads = attention.head_counts()
    assert heads is not None
    assert key_heads is not None
    columns = None
    if (
        key_column
        and isinstance(known_size(attention.v, 3), int)
        and _is_of_keys(attention.mask)
        and attention.scale > 0
    ):
        columns = _columns(build, masks, attention, heads, key_heads)
    if packed is not None:
        inputs: tuple[ir.Value | None, ...] = (packed[0], None, None, packed[1])
    else:
        inputs = (*_rows_of(build, attention, heads // key_heads, columns), None)
    causal = attention.mask.is_causal_only and _same_lengths(attention)
    padding, bias = None, None
    options: dict[str, Any] = {"unidirectional": 1} if causal else {}
    by_length = length_factor(attention.mask)
    if columns is not None:
        pass
    elif key_column and by_length is not None and len(attention.mask.factors) == 1 and not attention.mask.biases:
        padding, options["mask_filter_value"] = _counted(build, by_length), LOWEST
    elif not causal:
        bias = attention_bias(build, masks, attention)
    output = contrib(
        build, "MultiHeadAttention", *inputs, padding, bias, num_heads=heads, scale=attention.scale, **options
    )
    depth = known_size(attention.v, 3)
    width = heads * depth if isinstance(depth, int) else None  # ONNX Runtime may infer that of q, with its column
    output.shape = ir.Shape([known_size(attention.q, 0), known_size(attention.q, 2), width])
    anchor = node_name(output)
    output = guarded(build, masks, attention, output, by_nan=key_column, rows=True)
    return heads_first(build, attention, output), (anchor,)


def group_query_attention(build: Builder, masks: MaskWriter, attention: Attention) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `GroupQueryAttention(q, k, v)` for an attention for which `why_not_group_query` returned "".

    Returns:
        The output, `[B,H,S,D]`, and the operator's node name.
    """
    heads, key_heads = attention.head_counts()
    assert heads is not None
    q, k, v = _rows_of(build, attention, 1)
    by_length = length_factor(attention.mask)
    total = build.once(("keys", _name_or_value(attention.v, 2)), lambda: _key_count(build, attention.v))
    last = _last_keys(build, attention, total, by_length)
    output = contrib(
        build, "GroupQueryAttention", q, k, v, None, None, last, total,
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
            ("last keys", total, _name_or_value(attention.q, 0)),
            lambda: build.op("Expand", build.op("Sub", total, one), build.size(attention.q, 0), name="mask/last_key"),
        )
    lengths = _counted(build, by_length)
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


def contrib(build: Builder, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
    """Writes an operator of com.microsoft; inputs that are None at the end are left out."""
    build.model.graph.opset_imports.setdefault(DOMAIN, 1)
    operands = list(inputs)
    while operands[-1] is None:
        operands.pop()
    return build.op(op_type, *operands, name=op_type, domain=DOMAIN, **attributes)


def _rows_of(
    build: Builder, attention: Attention, times: int, columns: tuple[ir.Value, ir.Value] | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q, k and v as `[B,S,H*D]`, the heads of k and v repeated `times`.

    Args:
        columns: One more column of each head of q and of k, `[B,S,H,1]` and `[B,T,G,1]`.
    """
    of_q, of_k = columns or (None, None)
    q = _rows(build, attention.q, SEQUENCE_FIRST, 1, "q", of_q)
    if attention.k is not None:
        k = _rows(build, attention.k, SEQUENCE_FIRST, times, "k", of_k)
    else:
        assert attention.k_transposed is not None
        k = _rows(build, attention.k_transposed, KEYS_LAST, times, "k", of_k)
    return q, k, _rows(build, attention.v, SEQUENCE_FIRST, times, "v")


def _rows(
    build: Builder, value: ir.Value, order: Sequence[int], times: int, name: str, column: ir.Value | None = None
) -> ir.Value:
    """A value as `[B,S,H*D]`; a transposition that computes it is combined with `order`."""
    depth, heads = known_size(value, order[3]), known_size(value, 1)
    source, perm = value, list(order)
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None and "perm" in node.attributes:
        perm_before = node.attributes["perm"].as_ints()
        source, perm = node.inputs[0], [perm_before[at] for at in order]
    if perm != sorted(perm):
        source = build.op("Transpose", source, name=f"{name}_BSHD", perm=perm)
    if column is not None:
        source = build.op("Concat", source, column, name=f"{name}_column", axis=3)
        depth = depth + 1 if isinstance(depth, int) else None
    if times > 1:
        source = build.op("Unsqueeze", source, build.const([3], np.int64), name=f"{name}_group")
        source = build.op("Expand", source, build.const([1, 1, 1, times, 1], np.int64), name=f"{name}_group_each")
    width = heads * times * depth if isinstance(heads, int) and isinstance(depth, int) else -1
    return build.op("Reshape", source, build.const([0, 0, width], np.int64), name=f"{name}_rows")


def hides_keys_alone(attention: Attention) -> bool:
    """Whether an attention has no mask, or one that only hides keys and can become a column of q and k."""
    mask = attention.mask
    return not (mask.factors or mask.biases) or (_is_of_keys(mask) and attention.scale > 0)


def _is_of_keys(mask: Mask) -> bool:
    """Whether a mask only hides keys, the same ones from every query and head."""
    return bool(mask.factors) and not mask.biases and all(axes_of(factor.keep) <= {"b", "j"} for factor in mask.factors)


def _columns(
    build: Builder, masks: MaskWriter, attention: Attention, heads: int, key_heads: int
) -> tuple[ir.Value, ir.Value]:
    """One more column of q and of k, `[B,S,H,1]` and `[B,T,G,1]`, whose product hides what the mask hides."""
    assert attention.q.dtype is not None
    keep, dtype = masks.keep(attention), attention.q.dtype
    assert keep is not None

    def hiding() -> ir.Value:
        zeros, ones, axes = (build.const(numbers, np.int64) for numbers in ([0, 0], [1, 1], [1, 2]))
        # A mask from the graph itself may have equal rows for all queries; one row is enough.
        row = build.op("Slice", keep, zeros, ones, axes, name="mask/keys_row")
        row = build.op("Transpose", row, name="mask/keys_column", perm=[0, 3, 1, 2])
        shown, hidden = build.const(0.0, dtype.numpy()), build.const(HIDING, dtype.numpy())
        return build.op("Where", row, shown, hidden, name="mask/column", dtype=dtype)

    def column(of: ir.Value, number: ir.Value, count: int, name: str) -> ir.Value:
        def write() -> ir.Value:
            sizes = (build.size(of, 0), build.size(of, 2), build.const([count, 1], np.int64))
            shape = build.op("Concat", *sizes, name="mask/column_shape", axis=0)
            return build.op("Expand", number, shape, name=name)

        return build.once(("column", number, count, *(_name_or_value(of, axis) for axis in (0, 2))), write)

    of_q = column(attention.q, build.const(1.0, dtype.numpy()), heads, "mask/q_column")
    of_k = build.once(("hiding", keep, dtype), hiding)
    return of_q, column(attention.v, of_k, key_heads, "mask/k_column")


def _name_or_value(value: ir.Value, axis: int) -> int | str | ir.Value:
    """A key for the size of an axis: equal keys mean equal sizes."""
    dim = known_size(value, axis)
    return value if dim is None else dim


def _lengths(factor: Factor) -> ir.Value | None:
    """The integer input whose element b is the number of leading keys that the factor allows; None if there is none."""
    if length_of(factor.keep, J, None) is None:
        return None
    (read,) = reads_of(factor.keep)
    integers = read.value.dtype is not None and read.value.dtype.is_integer()
    return read.value if integers and read.index == (BATCH,) else None


def _counted(build: Builder, factor: Factor) -> ir.Value:
    """The lengths of a factor as int32[B]."""
    import onnx_ir as ir

    lengths = _lengths(factor)
    assert lengths is not None
    return build.once(("lengths", lengths), lambda: build.cast(lengths, ir.DataType.INT32, "mask/lengths"))


def _key_count(build: Builder, v: ir.Value) -> ir.Value:
    import onnx_ir as ir

    return build.cast(build.size(v, 2), ir.DataType.INT32, "mask/keys")


def _same_lengths(attention: Attention) -> bool:
    """Whether the graph says that there are as many queries as keys."""
    length = known_size(attention.q, 2)
    return length is not None and length == known_size(attention.v, 2)
