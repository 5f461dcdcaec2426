"""What the operators of ONNX Runtime, and their expansions, are written with: lengths, rows of heads, places, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnport.contrib import SCHEMAS
from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.forms.standard import can_hide
from attnport.exporter.fusion.formula import BATCH, J, length_of, reads_of
from attnport.exporter.fusion.mask import Factor, Mask
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.graph.size_rules import KnownSizes, Sizes
from attnport.onnx_graph import CONTRIB, ir, known_size, made_by, perm_of

Expanded = list["ir.Value | None"]
"""What replaces an operator's outputs in order; None for one that is not computed."""


@dataclass(frozen=True)
class Operator:
    """How an operator of com.microsoft is read.

    Attributes:
        expand: Builds operators of ONNX in its place, of its operands; raises NotImplementedError where there are none.
        shape: The sizes of its outputs, of those of its operands and the node; None where one is not known.
    """

    expand: Callable[[Builder, SimpleNamespace], Expanded]
    shape: Callable[[KnownSizes, SimpleNamespace, ir.Node], Sequence[Sizes | None]] = lambda run, o, node: [None]


def write(build: Builder, op_type: str, **operands: Any) -> ir.Value:
    """Writes an operator of com.microsoft.

    Args:
        op_type: One of `SCHEMAS`.
        operands: Inputs and attributes by the names in `SCHEMAS`; an input that is None is left out.
    """
    build.model.graph.opset_imports.setdefault(CONTRIB, 1)
    inputs = [operands.pop(name, None) for name in SCHEMAS[op_type].inputs]
    while inputs[-1] is None:
        inputs.pop()
    return build.op(op_type, *inputs, name=op_type, domain=CONTRIB, **operands)


# --- what is written ------------------------------------------------------------------------------------------------

SEQUENCE_FIRST, KEYS_LAST = (0, 2, 1, 3), (0, 3, 1, 2)
"""Permutations that bring `[B,H,S,D]` and `[B,H,D,S]` to `[B,S,H,D]`."""


def length_factor(mask: Mask) -> Factor | None:
    """The factor `j < lengths[b]` of a mask: right padding by contract; None where there is none, or several."""
    by_length = [factor for factor in mask.factors if _lengths(factor) is not None]
    return by_length[0] if len(by_length) == 1 else None


def _lengths(factor: Factor) -> ir.Value | None:
    """The integer input whose element b is the number of leading keys that the factor allows; None if there is none."""
    if length_of(factor.keep, J, None) is None:
        return None
    (read,) = reads_of(factor.keep)
    integers = read.value.dtype is not None and read.value.dtype.is_integer()
    return read.value if integers and read.index == (BATCH,) else None


def counted(build: Builder, attention: Attention, factor: Factor) -> ir.Value:
    """The lengths of a factor as int32[B], and at most the number of keys: kernels take no more."""
    lengths = _lengths(factor)
    assert lengths is not None

    def write() -> ir.Value:
        wide = build.cast(lengths, ir.DataType.INT64, "mask/lengths")
        most = build.op("Min", wide, build.size(attention.v, 2), name="mask/most_lengths")
        return build.cast(most, ir.DataType.INT32, "mask/lengths")

    return build.once(("lengths", lengths, name_or_value(attention.v, 2)), write)


def same_lengths(attention: Attention) -> bool:
    """Whether the graph says that there are as many queries as keys."""
    length = known_size(attention.q, 2)
    return length is not None and length == known_size(attention.v, 2)


def name_or_value(value: ir.Value, axis: int) -> int | str | ir.Value:
    """A key for the size of an axis: equal keys mean equal sizes."""
    dim = known_size(value, axis)
    return value if dim is None else dim


def rows_of(
    build: Builder, attention: Attention, times: int, columns: tuple[ir.Value, ir.Value] | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q, k and v as `[B,S,H*D]`, the heads of k and v repeated.

    Args:
        times: How often each head of k and v occurs.
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
    node = made_by(value, "Transpose")
    if node is not None and node.inputs[0] is not None:
        perm_before = perm_of(node, 4)
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


def attention_bias(build: Builder, masks: MaskWriter, attention: Attention) -> ir.Value | None:
    """Biases and mask as one tensor that is added to the scores, `[B|1,H|1,S,T]`; None if there is neither."""
    assert attention.q.dtype is not None
    dtype = attention.q.dtype
    bias = masks.bias(attention, dtype)
    if bias is None:
        full = masks.full(attention)
        return None if full is None else masks.additive(full, dtype)
    bias = masks.full_bias(attention, bias)
    keep = masks.keep(attention)
    if keep is None:
        return bias
    additive = masks.additive(keep, dtype)
    return build.once(("sum", additive, bias), lambda: build.op("Add", additive, bias, name="mask/with_bias"))


def guarded(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    output: ir.Value,
    *,
    by_nan: bool = False,
    rows: bool = False,
) -> ir.Value:
    """The output with zeros in the rows that have no allowed key; as it is if the mask leaves a key to every row.

    Args:
        by_nan: Whether the kernel gives NaN in a row that a bias hides. Otherwise such rows are found in the bias.
        rows: Whether the output is `[B,S,H*Dv]` and not `[B,H,S,Dv]`. A kernel that broadcasts over three axes in place
            of four is quicker on CUDA.
    """
    if attention.mask.is_causal_only or attention.sink is not None:
        return output
    zero, keep = build.like(0.0, output), masks.keep(attention)
    hidden_by_bias = any(can_hide(bias.at.value) for bias in attention.mask.biases)
    if hidden_by_bias and not by_nan:
        keep = _shown(build, attention_bias(build, masks, attention))
    if keep is not None:
        any_key = masks.any_key(keep)
        if rows and not masks.may_vary_by_head(attention):
            any_key = build.once(
                ("any key of rows", keep),
                lambda: build.op("Squeeze", any_key, build.const([1], np.int64), name="mask/any_key_of_row"),
            )
            output = build.op("Where", any_key, output, zero, name="guard", dtype=output.dtype)
        elif rows:
            any_key = build.op("Transpose", any_key, name="mask/any_key_of_query", perm=[0, 2, 1, 3])
            apart = _heads_apart(build, attention, output)
            apart = build.op("Where", any_key, apart, zero, name="guard", dtype=output.dtype)
            output = build.op("Reshape", apart, build.const([0, 0, -1], np.int64), name="guarded_rows")
        else:
            output = build.op("Where", any_key, output, zero, name="guard", dtype=output.dtype)
    if hidden_by_bias and by_nan:
        output = build.without_nan(output, "guard_bias")
    return output


def _shown(build: Builder, bias: ir.Value | None) -> ir.Value:
    """Where biases and mask together are above -inf, as bool; the kernels of `Greater` on CUDA take no bf16."""
    assert bias is not None

    def write() -> ir.Value:
        hidden = build.op("IsInf", bias, name="mask/hidden", dtype=ir.DataType.BOOL, detect_positive=0)
        return build.op("Not", hidden, name="mask/shown")

    return build.once(("shown", bias), write)


def _heads_apart(build: Builder, attention: Attention, rows: ir.Value) -> ir.Value:
    """`[B,S,H*Dv]` as `[B,S,H,Dv]`."""
    depth, heads = known_size(attention.v, 3), attention.head_counts()[0]
    shape = build.const([0, 0, heads, depth if isinstance(depth, int) else -1], np.int64)
    return build.op("Reshape", rows, shape, name="out_BSHD")


def heads_first(build: Builder, attention: Attention, rows: ir.Value) -> ir.Value:
    """`[B,S,H*Dv]` as `[B,H,S,Dv]`; models mostly turn that back, and both transpositions go."""
    return build.op("Transpose", _heads_apart(build, attention, rows), name="out", perm=[0, 2, 1, 3])


# --- what expansions are made of ------------------------------------------------------------------------------------


def summed(build: Builder, first: ir.Value, *rest: ir.Value | None) -> ir.Value:
    """The sum of values; those that are None are left out."""
    for one in rest:
        first = first if one is None else build.op("Add", first, one, name="sum")
    return first


def places(build: Builder, count: ir.Value, start: ir.Value | None = None) -> ir.Value:
    """`start`, `start` + 1, ..., as int64[count]; sizes are int64[1]."""
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


def causal(build: Builder, queries: ir.Value, keys: ir.Value, past: ir.Value, window: int = -1) -> ir.Value:
    """Which keys a query sees of those up to its own, bool[T,S].

    Args:
        queries: How many there are, int64[1].
        keys: How many there are, int64[1].
        past: How many keys are before the first query's own, int64[1].
        window: How many of the last keys a query sees, its own among them; from 0 down, all.
    """
    of_queries = unsqueezed(build, places(build, queries, past), 1, name="own_keys")
    return seen(build, of_queries, places(build, keys), window)


def seen(build: Builder, own: ir.Value, keys: ir.Value, window: int) -> ir.Value:
    """As `causal`, by the place of each query's own key and that of every key, which broadcast."""
    before = build.op("LessOrEqual", keys, own, name="causal", dtype=ir.DataType.BOOL)
    if window <= 0:
        return before
    out_of_sight = build.op("Sub", own, build.const(window, np.int64), name="out_of_sight")
    near = build.op("Greater", keys, out_of_sight, name="near", dtype=ir.DataType.BOOL)
    return build.op("And", before, near, name="visible")


def hidden(build: Builder, bias: ir.Value, visible: ir.Value) -> ir.Value:
    """A bias, -inf where a key is not visible."""
    return build.op("Where", visible, bias, build.like(-math.inf, bias), name="bias_of_visible", dtype=bias.dtype)
