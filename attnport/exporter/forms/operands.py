"""What goes into a form: q, k and v scaled, transposed and with heads repeated, and attention sinks, in few nodes.

Grouped heads are repeated for forms that multiply matrices. A sink is one more key before the others: a zero row of k
and of v, whose score is an unmasked bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder, CannotLower
from attnport.exporter.forms.masks import Change, MaskWriter, reindexed
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.comparisons import CAUSAL, J
from attnport.exporter.fusion.formula import Const, Op, op
from attnport.exporter.fusion.layout import Located
from attnport.exporter.fusion.mask import SCORES, Bias, Factor
from attnport.onnx_graph import dims_of, made_by, perm_of

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


ForEachHead = Callable[[Builder, Attention, "ir.Value"], "ir.Value"]
"""Gives keys or values for every query head."""


def operands(
    build: Builder, attention: Attention, compute: ir.DataType, factor: float, for_each_head: ForEachHead
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The operands of a form's products: q times a factor, k transposed, and v, each cast to `compute`."""
    q = build.cast(scaled(build, attention.q, factor), compute, "q_cast")
    k_transposed = build.cast(for_each_head(build, attention, transposed_key_of(build, attention)), compute, "k_cast")
    v = build.cast(for_each_head(build, attention, attention.v), compute, "v_cast")
    return q, k_transposed, v


def scaled(build: Builder, q: ir.Value, factor: float) -> ir.Value:
    """q times a factor in the dtype of q, before a cast to half precision, so that the factor is not rounded."""
    return q if factor == 1.0 else build.op("Mul", q, build.like(factor, q), name="scale_q")


def key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., T, D]`; if the graph only has it transposed, the transposition is undone."""
    if attention.k is not None:
        return attention.k
    transposed = attention.k_transposed
    assert transposed is not None
    node = made_by(transposed, "Transpose")
    if node is not None and node.inputs[0] is not None:
        perm = perm_of(node, 4)
        perm[-1], perm[-2] = perm[-2], perm[-1]
        if perm == sorted(perm):
            return node.inputs[0]
        return build.op("Transpose", node.inputs[0], name="k", perm=perm)
    return build.op("Transpose", transposed, name="k", perm=[0, 1, 3, 2])


def transposed_key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., D, T]`; if k is itself the result of a transposition, the two become one."""
    if attention.k_transposed is not None:
        return attention.k_transposed
    assert attention.k is not None
    perm = [0, 1, 3, 2]
    node = made_by(attention.k, "Transpose")
    if node is not None and node.inputs[0] is not None:
        before = perm_of(node, 4)
        return build.op("Transpose", node.inputs[0], name="k_transposed", perm=[before[at] for at in perm])
    return build.op("Transpose", attention.k, name="k_transposed", perm=perm)


def with_sink_key(build: Builder, masks: MaskWriter, attention: Attention) -> Attention:
    """The attention with the sink's key before its own keys; `sink` is now the bias of key 0.

    With the sink first, a causal mask is still a single comparison: query i sees key j if `j - 1 <= i`.
    """
    assert attention.sink is not None
    k = _with_first_entry(build, key_of(build, attention), 2)
    v = _with_first_entry(build, attention.v, 2)

    def lay(value: ir.Value, axis: int) -> ir.Value:
        return _with_first_entry(build, value, axis)

    change = Change(J, Op("Sub", (J, Const(1))), lay)
    factors = []
    for factor in attention.mask.factors:
        keep = reindexed(masks, attention, factor, change)
        if keep != factor.keep and factor.keep != CAUSAL:
            keep = op("Or", Op("Equal", (J, Const(0))), keep)
        factors.append(Factor(keep, None))
    biases = tuple(_bias_with_sink(build, attention, bias) for bias in attention.mask.biases)
    mask = replace(attention.mask, factors=tuple(factors), biases=biases)
    return replace(attention, k=k, k_transposed=None, v=v, mask=mask, bring=lambda at: at.value)


def sink_bias(build: Builder, masks: MaskWriter, attention: Attention, dtype: ir.DataType) -> ir.Value | None:
    """What a sink adds to the scores: its own score at key 0, zero elsewhere; None without a sink.

    It is written as a product of `[1|B,H,1|S,1]` and `[1,1,1,T]`, which the attention kernel computes. With a `Where`
    over the index of the key instead, the builder writes the whole mask to memory.
    """
    if attention.sink is None:
        return None
    first = masks.build.once(
        ("first key", dtype, masks.length(attention, "j")), lambda: _first(build, attention, dtype)
    )
    return build.op("Mul", build.cast(attention.sink, dtype, "sink_cast"), first, name="sink")


def _first(build: Builder, attention: Attention, dtype: ir.DataType) -> ir.Value:
    one = build.const(np.ones((1, 1, 1, 1)), dtype.numpy())
    zero = build.const(np.zeros((1, 1, 1, 1)), dtype.numpy())
    others = build.op("Sub", build.size(attention.v, 2), build.const([1], np.int64), name="own_keys")
    shape = build.op("Concat", build.const([1, 1, 1], np.int64), others, name="own_keys_shape", axis=0)
    return build.op("Concat", one, build.op("Expand", zero, shape, name="no_sink"), name="first_key", axis=3)


def _bias_with_sink(build: Builder, attention: Attention, bias: Bias) -> Bias:
    value = attention.bring(bias.at)
    if value.shape is None or value.shape[-1] != 1:
        value = _with_first_entry(build, value, 3)
    return Bias(Located(value, SCORES), bias.times)


def _with_first_entry(build: Builder, value: ir.Value, axis: int) -> ir.Value:
    """A tensor with one more entry, zero or false, at the start of an axis."""
    import onnx_ir as ir

    dims = dims_of(value) or [None] * 4  # k may just have been transposed back, and then has no shape yet
    pads = build.const([int(at == axis) for at in range(len(dims))] + [0] * len(dims), np.int64)
    size = dims[axis]
    dims[axis] = size + 1 if isinstance(size, int) else f"{size} + 1" if size is not None else None
    if value.dtype != ir.DataType.BOOL:
        return build.op("Pad", value, pads, name="sink_first", shape=dims)
    # Runtimes do not agree on padding bool tensors.
    number = build.op("Pad", build.cast(value, ir.DataType.INT32), pads, name="sink_first", shape=dims)
    return build.cast(number, ir.DataType.BOOL)
