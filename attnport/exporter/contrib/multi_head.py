"""`MultiHeadAttention`, and `Attention`, which computes its queries, keys and values by a product of its own.

`MultiHeadAttention` is written in three ways:

- q, k and v as `[B,S,H*D]`, which makes the transpositions around an attention unnecessary. A row with no allowed key
  is set to zero afterwards, as kernels differ in what they give there.
- With fewer heads of keys than of queries, behind a cache: no key is repeated. The query heads that share a key head
  become further queries of it, `[B,S*R,G*D]`, and keys and values go in as the cache holds them, `[B,G,T,D]`. A step of
  several texts is many times as fast so; a prompt is slower by a third, and is run once (benchmarks/cuda_forms.json).
- q, k and v of a self-attention by one matrix product, packed. Three products and three additions become one product,
  and the operator adds the biases. On an H200, BERT base in fp16 takes 0.82 of the time at 1 x 128 and 0.96 at 8 x 512
  (docs/gpu.md). Its kernels on CPU do not take packed q, k and v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.contrib.parts import (
    Expanded,
    Operator,
    attention_bias,
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
    split_heads,
    summed,
    unsqueezed,
    write,
)
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.fusion.formula import is_of_keys
from attnport.exporter.fusion.mask import Mask
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.graph.size_rules import KnownSizes, Sizes
from attnport.masks import ABSORBS
from attnport.onnx_graph import array_of, dims_of, ir, is_constant, known_size, made_by, perm_of, rank_of

LOWEST = float(np.finfo(np.float32).min)
_GROUPS_LAST = (0, 1, 3, 2, 4)
"""A permutation that swaps groups and the heads of a group in `[B,S,G,R,D]`."""


def why_not_multi_head(attention: Attention) -> str:
    """Why `MultiHeadAttention` cannot compute an attention; "" if it can."""
    heads, key_heads = attention.head_counts()
    if heads is None or key_heads is None or heads % key_heads:
        return f"MultiHeadAttention needs fixed head counts; got {heads} query and {key_heads} key/value heads"
    if attention.softcap or attention.sink is not None:
        return "MultiHeadAttention has no soft-cap and no sink"
    return "" if attention.scale else "MultiHeadAttention replaces a scale of zero by its default"


def multi_head_attention(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    *,
    key_column: bool,
    packed: tuple[ir.Value, ir.Value | None] | None = None,
    by_lengths: bool = False,
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `MultiHeadAttention(q, k, v)` for an attention for which `why_not_multi_head` returned "".

    A causal mask becomes an attribute if S and T are the same dim; every other mask is an attention bias,
    `[B|1,H|1,S,T]`, unless the keys that it hides are written as below. Grouped heads are repeated.

    Args:
        key_column: For the kernels on CPU: whether a mask of keys alone becomes one more column of q and k, of ones and
            of numbers that hide, or key padding where it is one of lengths and there can be no column. The flash kernel
            on CPU, whose memory is linear in T, takes no mask. On CUDA, key padding as `[B,T]` is computed by several
            kernels, and a bias by cuDNN's flash attention (measured on an H200 with 1.31.1, half precision).
        packed: For the kernels on CUDA: q, k and v as `[B,S,H,3,D]`, and what is added to them, `[3*H*D]` or None.
        by_lengths: For the kernels on CUDA: whether a mask that is one of lengths goes in as int32[B], not as a bias
            `[B,1,S,T]`. Of masks, cuDNN's flash attention takes these two (read in ONNX Runtime's source, 1.31.1).

    Returns:
        The output, `[B,H,S,Dv]`, and the operator's node name.
    """
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
        options: dict[str, Any] = {"q": packed[0], "bias": packed[1]}
    else:
        options = dict(zip("qkv", rows_of(build, attention, heads // key_heads, columns), strict=True))
    is_causal = attention.mask.is_causal_only and same_lengths(attention)
    by_length = length_factor(attention.mask)
    if columns is not None:
        pass
    elif (
        (key_column or by_lengths)
        and by_length is not None
        and len(attention.mask.factors) == 1
        and not attention.mask.biases
    ):
        options |= {"mask": counted(build, attention, by_length), "mask_filter_value": LOWEST}
    elif is_causal:
        options["unidirectional"] = 1
    else:
        options["added"] = attention_bias(build, masks, attention)
    output = write(build, "MultiHeadAttention", num_heads=heads, scale=attention.scale, **options)
    depth = known_size(attention.v, 3)
    width = heads * depth if isinstance(depth, int) else None  # ONNX Runtime may infer that of q, with its column
    output.shape = ir.Shape([known_size(attention.q, 0), known_size(attention.q, 2), width])
    anchor = node_name(output)
    output = guarded(build, masks, attention, output, by_nan=key_column, rows=True)
    return heads_first(build, attention, output), (anchor,)


def hides_keys_alone(attention: Attention) -> bool:
    """Whether an attention has no mask, or one that only hides keys and can become a column of q and k."""
    mask = attention.mask
    return not (mask.factors or mask.biases) or (_is_of_keys(mask) and attention.scale > 0)


def _is_of_keys(mask: Mask) -> bool:
    """Whether a mask only hides keys, the same ones from every query and head."""
    return bool(mask.factors) and not mask.biases and all(is_of_keys(factor.keep) for factor in mask.factors)


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
        nothing, low = build.const(0.0, dtype.numpy()), build.const(ABSORBS, dtype.numpy())
        return build.op("Where", row, nothing, low, name="mask/column", dtype=dtype)

    def column(of: ir.Value, number: ir.Value, count: int, name: str) -> ir.Value:
        def expanded() -> ir.Value:
            sizes = (build.size(of, 0), build.size(of, 2), build.const([count, 1], np.int64))
            shape = build.op("Concat", *sizes, name="mask/column_shape", axis=0)
            return build.op("Expand", number, shape, name=name)

        return build.once(("column", number, count, *(name_or_value(of, axis) for axis in (0, 2))), expanded)

    of_q = column(attention.q, build.const(1.0, dtype.numpy()), heads, "mask/q_column")
    of_k = build.once(("hiding", keep, dtype), hiding)
    return of_q, column(attention.v, of_k, key_heads, "mask/k_column")


def can_fold(attention: Attention) -> bool:
    """Whether heads are grouped and keys have another length than queries: with as many, repeated keys are quicker."""
    heads, groups = attention.head_counts()
    if heads is None or groups is None or groups >= heads or attention.k is None:
        return False
    depths = {known_size(value, 3) for value in (attention.q, attention.k, attention.v)}
    lengths = known_size(attention.q, 2), known_size(attention.v, 2)
    return len(depths) == 1 and isinstance(depths.pop(), int) and (None in lengths or lengths[0] != lengths[1])


def folded_attention(build: Builder, masks: MaskWriter, attention: Attention) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes an attention for which `why_not_multi_head` returned "" and `can_fold` is true.

    Returns:
        The output, `[B,H,S,D]`, and the operator's node name.
    """
    heads, groups = attention.head_counts()
    depth = known_size(attention.q, 3)
    assert heads is not None
    assert groups is not None
    assert isinstance(depth, int)
    each = heads // groups
    bias = attention_bias(build, masks, attention)
    if bias is not None:
        bias = _bias_of_rows(build, attention, bias, heads, groups, masks.may_vary_by_head(attention))
    rows = _queries(build, attention.q, groups, each, depth)
    output = write(
        build, "MultiHeadAttention", q=rows, k=attention.k, v=attention.v, added=bias,
        num_heads=groups, scale=attention.scale,
    )  # fmt: skip
    output.shape = ir.Shape([known_size(attention.q, 0), None, groups * depth])
    anchor = node_name(output)
    apart = _reshaped(build, output, [0, -1, each, groups, depth], "out_BSRGD")
    apart = build.op("Transpose", apart, name="out_BSGRD", perm=_GROUPS_LAST)
    rows = guarded(build, masks, attention, _reshaped(build, apart, [0, 0, heads * depth], "out_rows"), rows=True)
    return heads_first(build, attention, rows), (anchor,)


def _queries(build: Builder, q: ir.Value, groups: int, each: int, depth: int) -> ir.Value:
    """`[B,H,S,D]` as `[B,S*R,G*D]`, the R heads of a group one after the other."""
    node = made_by(q, "Transpose")
    if node is not None and perm_of(node, 4) == [0, 2, 1, 3] and node.inputs[0] is not None:
        apart = _reshaped(build, node.inputs[0], [0, 0, groups, each, depth], "q_BSGRD")
        apart = build.op("Transpose", apart, name="q_BSRGD", perm=_GROUPS_LAST)
    else:
        apart = _reshaped(build, q, [0, groups, each, -1, depth], "q_BGRSD")
        apart = build.op("Transpose", apart, name="q_BSRGD", perm=[0, 3, 2, 1, 4])
    return _reshaped(build, apart, [0, -1, groups * depth], "q_rows")


def _bias_of_rows(
    build: Builder, attention: Attention, bias: ir.Value, heads: int, groups: int, of_heads: bool
) -> ir.Value:
    """A bias `[B|1,H|1,S,T]` as `[B|1,G|1,S*R,T]`."""
    keys = build.size(attention.v, 2)

    def rows() -> ir.Value:
        each = heads // groups
        if of_heads:
            every = build.op("Expand", bias, build.const([1, heads, 1, 1], np.int64), name="mask/bias_BHST")
            numbers = build.const([0, groups, each], np.int64)
            shape = build.op("Concat", numbers, build.size(attention.q, 2), keys, name="mask/bias_shape", axis=0)
            apart = build.op("Reshape", every, shape, name="mask/bias_BGRST")
            apart = build.op("Transpose", apart, name="mask/bias_BGSRT", perm=_GROUPS_LAST)
        else:
            apart = build.op("Unsqueeze", bias, build.const([3], np.int64), name="mask/bias_BHS1T")
            apart = build.op("Expand", apart, build.const([1, 1, 1, each, 1], np.int64), name="mask/bias_BHSRT")
        numbers = build.const([0, groups if of_heads else 1, -1], np.int64)
        shape = build.op("Concat", numbers, keys, name="mask/rows_shape", axis=0)
        return build.op("Reshape", apart, shape, name="mask/bias_of_rows")

    return build.once(("bias of rows", bias, heads, groups), rows)


def _reshaped(build: Builder, value: ir.Value, shape: list[int], name: str) -> ir.Value:
    return build.op("Reshape", value, build.const(shape, np.int64), name=name)


@dataclass(frozen=True)
class _Projection:
    """`source @ weight + bias`, `[B,S,H*D]`: a weight of `[K,H*D]` and a bias of `[H*D]`, or none."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def one_product(build: Builder, attention: Attention) -> tuple[ir.Value, ir.Value | None] | None:
    """q, k and v as `[B,S,H,3,D]` without their biases, and the biases, `[3*H*D]`.

    None where they are not three linear layers of one value with constant weights and as many heads.
    """
    heads, key_heads = attention.head_counts()
    if heads is None or heads != key_heads or attention.k is None:
        return None
    values = attention.q, attention.k, attention.v
    depths = {known_size(value, 3) for value in values}
    found = [_projection(value) for value in values]
    parts = [part for part in found if part is not None]
    if len(parts) < 3 or len({part.source for part in parts}) > 1 or len(depths) > 1:
        return None
    depth = depths.pop()
    assert isinstance(depth, int)
    key = heads, *((part.weight, part.bias) for part in parts)

    def weight() -> ir.Value:
        each = [array_of(part.weight).reshape(-1, heads, depth) for part in parts]
        return build.stored("qkv/weight", np.stack(each, axis=2).reshape(len(each[0]), -1))

    def bias() -> ir.Value:
        dtype = array_of(parts[0].weight).dtype
        each = [np.zeros(heads * depth, dtype) if part.bias is None else array_of(part.bias) for part in parts]
        return build.stored("qkv/bias", np.concatenate(each))

    product = build.op("MatMul", parts[0].source, build.once(("weight of q, k and v", *key), weight), name="qkv")
    packed = build.op("Reshape", product, build.const([0, 0, heads, 3, depth], np.int64), name="qkv_BSH3D")
    if all(part.bias is None for part in parts):
        return packed, None
    return packed, build.once(("bias of q, k and v", *key), bias)


def _projection(value: ir.Value) -> _Projection | None:
    """The linear layer whose outputs, split into heads, are a value `[B,H,S,D]`; None if it is another value."""
    transpose = made_by(value, "Transpose")
    reshape = None if transpose is None else made_by(transpose.inputs[0], "Reshape")
    if transpose is None or reshape is None or perm_of(transpose, 4) != [0, 2, 1, 3]:
        return None
    linear, apart = reshape.inputs[0], reshape.outputs[0]
    before, after = dims_of(linear), dims_of(apart)
    if linear is None or before is None or after is None or len(before) != 3 or None in (*before, *after):
        return None
    batch, length, width = before
    heads, depth = after[2:]
    if after[:2] != [batch, length] or not isinstance(heads, int) or not isinstance(depth, int):
        return None
    if width != heads * depth or linear.is_graph_output() or len(linear.uses()) > 1:
        return None
    return _linear_layer(linear, heads * depth)


def _linear_layer(value: ir.Value, width: int) -> _Projection | None:
    """A value as `MatMul`, with or without an `Add` behind it, by constants; None if it is another value."""
    node, bias = value.producer(), None
    if node is not None and node.op_type == "Add":
        biases = [given for given in node.inputs if _is_weight(given, [width])]
        products = [given for given in node.inputs if given not in biases]
        if len(biases) != 1 or products[0] is None:
            return None
        bias, node = biases[0], products[0].producer()
    if node is None or node.op_type != "MatMul" or node.domain:
        return None
    source, weight = node.inputs
    if source is None or weight is None or source.shape is None or len(source.shape) != 3:
        return None
    return _Projection(source, weight, bias) if _is_weight(weight, [known_size(source, 2), width]) else None


def _is_weight(value: ir.Value | None, shape: list[int | str | None]) -> bool:
    return is_constant(value) and dims_of(value) == shape


def _expand(build: Builder, o: SimpleNamespace) -> Expanded:
    q, k, v = _by_head(build, o)
    if o.unidirectional:
        new = o.q if o.k is None else o.k
        length = known_size(o.q, 1)
        if length is None or length != known_size(new, 2 if rank_of(new) == 4 else 1):
            raise NotImplementedError("MultiHeadAttention that is unidirectional, with more keys than queries or fewer")
    if o.past_k is None or o.past_v is None:
        return _attended(build, o, o.q, (q, k, v))
    k, v = (build.op("Concat", past, new, name="kept", axis=2) for past, new in ((o.past_k, k), (o.past_v, v)))
    return _attended(build, o, o.q, (q, k, v), o.past_k)


def _expand_packed(build: Builder, o: SimpleNamespace) -> Expanded:
    width = known_size(o.weight, 1)
    if o.do_rotary or not isinstance(width, int):
        raise NotImplementedError("com.microsoft Attention with a rotation, or a weight of unknown size")
    product = summed(build, build.op("MatMul", o.x, o.weight, name="product"), o.bias)
    sizes = list(o.qkv_hidden_sizes) or [width // 3] * 3
    q, k, v = (split_heads(build, part, o.num_heads) for part in parted(build, product, sizes, 2))
    past_k = None
    if o.past is not None:
        past_k, past_v = (build.op("Gather", o.past, build.const(at, np.int64), name="past", axis=0) for at in (0, 1))
        k, v = (build.op("Concat", old, new, name="kept", axis=2) for old, new in ((past_k, k), (past_v, v)))
    made = _attended(build, o, o.x, (q, k, v), past_k)
    if sizes[1] != sizes[2]:
        return made[:1]
    both = [unsqueezed(build, value, 0) for value in (k, v)]
    return [made[0], build.op("Concat", *both, name="present", axis=0)]


def _by_head(build: Builder, o: SimpleNamespace) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values with their biases, `[B,H,T,D]`."""
    q, k, v, heads = o.q, o.k, o.v, o.num_heads
    axes = [rank_of(value) for value in (q, k, v)]
    if axes == [5, None, None]:  # [B,T,H,3,D]
        biases = o.bias
        if biases is not None:
            biases = build.op("Reshape", biases, build.const([3, heads, -1], np.int64), name="bias")
        q, k, v = (_unpacked(build, q, at, biases) for at in range(3))
        return q, k, v
    if axes == [3, 5, None] and o.bias is None:  # [B,S,H,2,D]
        return split_heads(build, q, heads), _unpacked(build, k, 0), _unpacked(build, k, 1)
    if axes not in ([3, 3, 3], [3, 4, 4]):
        raise NotImplementedError("MultiHeadAttention of queries, keys and values of other ranks")
    by_head = axes[1] == 4
    flat = [q] if by_head else [q, k, v]
    if o.bias is not None:
        widths = [known_size(value, 2) for value in flat]
        sizes = [width for width in widths if isinstance(width, int)]
        if len(sizes) < len(widths):
            raise NotImplementedError("biases of parts of unknown size")
        biases_of = parted(build, o.bias, sizes, 0)
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
    o: SimpleNamespace,
    x: ir.Value,
    parts: tuple[ir.Value, ir.Value, ir.Value],
    past: ir.Value | None = None,
) -> Expanded:
    """ONNX's operator on `[B,H,T,D]`, merged to `[B,T,E]`, and keys and values.

    Args:
        parts: Queries, keys and values.
        past: Of keys, where `parts` begin with a cache.
    """
    q, k, v = parts
    if not _is_readable(o.mask, x):
        raise NotImplementedError("a mask of the places where texts begin and end")
    of_keys = _mask_bias(build, o, q, k)
    bias = o.added if of_keys is None else summed(build, of_keys, o.added)
    attributes: dict[str, Any] = {"scale": o.scale} if o.scale else {}
    if o.unidirectional and past is None:
        attributes["is_causal"] = 1
    elif o.unidirectional and past is not None:
        visible = causal(build, build.size(q, 2), build.size(k, 2), build.size(past, 2))
        bias = visible if bias is None else hidden(build, bias, visible)
    y = build.op("Attention", q, k, v, bias, name="attention", **attributes)
    return [merge_heads(build, y), k, v]


def _is_readable(mask: ir.Value | None, x: ir.Value) -> bool:
    """Whether a mask is one of 0 and 1, or of one axis the numbers of keys.

    Others with one axis, `[2*B]` and `[3*B+2]`, have places where texts begin and end.
    """
    if mask is None or rank_of(mask) in (2, 3):
        return True
    size = known_size(mask, 0)
    return _is_counted(mask) or (rank_of(mask) == 1 and size is not None and size == known_size(x, 0))


def _is_counted(mask: ir.Value) -> bool:
    """Whether these are the numbers of keys that `EmbedLayerNormalization` counted."""
    node = mask.producer()
    return node is not None and node.op_type == "ReduceSum"


def _mask_bias(build: Builder, o: SimpleNamespace, q: ir.Value, k: ir.Value) -> ir.Value | None:
    """What a mask of 0 and 1, [B,S] or [B,T,S], or numbers of keys, [B], add to the scores of queries [B,H,T,D]."""
    mask = o.mask
    if mask is None:
        return None
    assert q.dtype is not None
    if rank_of(mask) not in (2, 3):
        lengths = unsqueezed(build, mask, 1, name="lengths")
        every = build.cast(places(build, build.size(k, 2)), mask.dtype or ir.DataType.INT32)
        mask = build.op("Less", every, lengths, name="kept", dtype=ir.DataType.BOOL, shape=[None, None])
    kept = build.cast(mask, q.dtype)
    out = build.op("Sub", build.like(1.0, q), kept, name="excluded")
    low = build.like(o.mask_filter_value, q)
    excluded = build.op("Mul", out, low, name="bias")
    if rank_of(mask) == 3:
        return unsqueezed(build, excluded, 1, name="bias_of_keys")
    of_keys = unsqueezed(build, excluded, 1, 2, name="bias_of_keys")
    one = build.const([1], np.int64)
    rows = build.op("Concat", one, one, build.size(q, 2), one, name="rows", dtype=ir.DataType.INT64, axis=0)
    return build.op("Expand", of_keys, rows, name="bias_of_rows")  # ONNX Runtime takes no mask of one row


def _shape(run: KnownSizes, o: SimpleNamespace, node: ir.Node) -> Sequence[Sizes | None]:
    """[B,T,E] of queries [B,T,E], or of all three as [B,T,H,3,D]; values may be of another width."""
    if len(o.q) == 5:
        return [(*o.q[:2], o.q[2] * o.q[4])]
    if len(o.q) != 3:
        return [None]
    width = None
    if o.v is not None:
        width = o.v[2] if len(o.v) == 3 else o.v[1] * o.v[3] if len(o.v) == 4 else None
    elif o.k is not None:
        width = o.q[2]
    return [None if width is None else (*o.q[:2], width)]


def _shape_packed(run: KnownSizes, o: SimpleNamespace, node: ir.Node) -> Sequence[Sizes | None]:
    if o.weight is None or len(o.x) != 3:
        return [None]
    sizes = o.qkv_hidden_sizes
    return [(*o.x[:2], run.size(int(sizes[2])) if sizes else o.weight[1] / 3)]


OPERATORS = {"MultiHeadAttention": Operator(_expand, _shape), "Attention": Operator(_expand_packed, _shape_packed)}
