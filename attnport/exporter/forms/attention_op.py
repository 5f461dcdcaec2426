"""One standard `Attention` operator (opset 23 up) for each attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention

if TYPE_CHECKING:
    import onnx_ir as ir

MaskStyle = Literal["bool", "bool_full", "float_full"]


def attention_op(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    style: MaskStyle,
    *,
    compute: ir.DataType | None = None,
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Attention(q, k, v, mask)`; returns its output, shaped as `attention.output`, and the node's name.

    Args:
        style: How the runtime takes the mask: bool broadcast over queries (`[B,1,1,T]`, the standard), bool or float
            (zero and -inf) at `[B,1,S,T]`. Biases are added to it as float in any style.
        compute: The dtype to compute in (q, k, v are cast to it, the output back); None = q's own.
    """
    causal = attention.mask.is_causal_only
    assert attention.q.dtype is not None
    compute = compute or attention.q.dtype
    mask = None if causal else _mask(build, masks, attention, style, compute)
    # Half precision around attention alone: the scale goes on q before its cast, where it is not rounded.
    on_q, scale = (attention.scale, 1.0) if compute != attention.q.dtype else (1.0, attention.scale)
    q = build.cast(scaled(build, attention.q, on_q), compute)
    k, v = (build.cast(value, compute) for value in (key_of(build, attention), attention.v))
    one = build.const([1], np.int64)
    if attention.rank == 3:
        q, k, v = (build.op("Unsqueeze", value, one, name="one_head") for value in (q, k, v))
    output = build.op(
        "Attention", q, k, v, mask, name="Attention", dtype=compute, scale=scale,
        is_causal=int(causal),
    )  # fmt: skip
    anchor = _node_name(output)
    if attention.rank == 3:
        output = build.op("Squeeze", output, one, name="one_head_out")
    return build.cast(output, attention.q.dtype, "out_cast"), (anchor,)


def scaled(build: Builder, q: ir.Value, factor: float) -> ir.Value:
    """q times a factor, in q's own dtype: before a cast to half precision, so that the factor itself is not rounded."""
    return q if factor == 1.0 else build.op("Mul", q, build.like(factor, q), name="scale_q")


def key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., T, D]`; where the graph only has it transposed, the transposition is taken back."""
    if attention.k is not None:
        return attention.k
    transposed = attention.k_transposed
    assert transposed is not None
    node = transposed.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        perm = perm_of(node, attention.rank)
        perm[-1], perm[-2] = perm[-2], perm[-1]
        if perm == sorted(perm):
            return node.inputs[0]
        return build.op("Transpose", node.inputs[0], name="k", perm=perm)
    perm = [*range(attention.rank - 2), attention.rank - 1, attention.rank - 2]
    return build.op("Transpose", transposed, name="k", perm=perm)


def perm_of(transpose: ir.Node, rank: int) -> list[int]:
    """The permutation of a `Transpose`; without one it reverses the axes."""
    return list(transpose.attributes["perm"].as_ints()) if "perm" in transpose.attributes else [*reversed(range(rank))]


def _mask(
    build: Builder, masks: MaskWriter, attention: Attention, style: MaskStyle, compute: ir.DataType
) -> ir.Value | None:
    bias = masks.bias(attention, compute)
    keep = masks.keep(attention) if style == "bool" and bias is None else masks.full(attention)
    if bias is not None and style != "bool":
        bias = masks.full_bias(attention, bias)
    if keep is None or (bias is None and style != "float_full"):
        return keep if bias is None else bias
    additive = masks.additive(keep, compute)
    return additive if bias is None else build.op("Add", additive, bias, name="mask/with_bias")


def _node_name(value: ir.Value) -> str:
    node = value.producer()
    assert node is not None
    assert node.name is not None
    return node.name
