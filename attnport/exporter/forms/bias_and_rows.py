"""What goes into an attention operator that takes one bias and gives `[B,S,H*Dv]`, and what is done with its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.decomposed import can_hide
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


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
    import onnx_ir as ir

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
        empty = build.op("IsNaN", output, name="no_key", dtype=ir.DataType.BOOL)
        output = build.op("Where", empty, zero, output, name="guard_bias", dtype=output.dtype)
    return output


def _shown(build: Builder, bias: ir.Value | None) -> ir.Value:
    """Where biases and mask together are above -inf, as bool; the kernels of `Greater` on CUDA take no bf16."""
    import onnx_ir as ir

    assert bias is not None

    def write() -> ir.Value:
        hidden = build.op("IsInf", bias, name="mask/hidden", dtype=ir.DataType.BOOL, detect_positive=0)
        return build.op("Not", hidden, name="mask/shown")

    return build.once(("shown", bias), write)


def _heads_apart(build: Builder, attention: Attention, rows: ir.Value) -> ir.Value:
    """`[B,S,H*Dv]` as `[B,S,H,Dv]`."""
    depth, heads = (dims_of(attention.v) or [None])[-1], attention.head_counts()[0]
    shape = build.const([0, 0, heads, depth if isinstance(depth, int) else -1], np.int64)
    return build.op("Reshape", rows, shape, name="out_BSHD")


def heads_first(build: Builder, attention: Attention, rows: ir.Value) -> ir.Value:
    """`[B,S,H*Dv]` as `[B,H,S,Dv]`; models mostly turn that back, and both transpositions go."""
    return build.op("Transpose", _heads_apart(build, attention, rows), name="out", perm=[0, 2, 1, 3])
