"""Attention sinks as one more key before the others: a zero row of k and of v, whose score is an unmasked bias."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.groups import Change, reindexed
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.operands import key_of
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.comparisons import CAUSAL, J
from attnport.exporter.fusion.formula import Const, Op, op
from attnport.exporter.fusion.layout import Located
from attnport.exporter.fusion.mask import SCORES, Bias, Factor
from attnport.onnx_graph import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


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
