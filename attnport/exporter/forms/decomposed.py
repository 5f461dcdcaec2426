"""Attention written out as the products and the softmax that every opset has, in the spelling that fuses best.

Masks are merged into one `Where`. Two spellings, each measured to be the only one that its readers fuse best:

- `tiled`, for TensorRT: hides with -inf and turns the NaN of a row with no allowed key into zeros; about the root of
  the scale stands on q (range in half precision) and the rest on the scores. Tiles are skipped only for -inf, and only
  where an operator stands between the product and the mask.
- `plain`, for everyone else: the scale on q, hides with the type's lowest number, and zeroes a row with no allowed key
  behind the product with v, a tensor of S x D instead of S x T. OpenVINO fuses neither a step between softmax and v nor
  one between the product and the mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import scaled
from attnport.exporter.forms.heads import repeated
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.moves import perm_of

if TYPE_CHECKING:
    import onnx_ir as ir

Spelling = Literal["tiled", "plain"]


def decomposed(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    *,
    compute: ir.DataType | None = None,
    spelling: Spelling,
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Where(mask, (q scale) k^T, low) -> Softmax -> v` with its guard.

    Args:
        compute: The dtype to compute in (q, k, v are cast to it, the output back); None = q's own.

    Returns:
        The output and the names of the QK^T product, the softmax and the PV product.
    """
    import onnx_ir as ir

    dtype = attention.q.dtype
    assert dtype is not None
    compute = compute or dtype
    on_q, on_scores = (attention.scale, 1.0) if spelling == "plain" else _split(attention.scale)
    q = build.cast(scaled(build, attention.q, on_q), compute, "q_cast")
    k_transposed = build.cast(repeated(build, attention, transposed_key_of(build, attention)), compute, "k_cast")
    v = build.cast(repeated(build, attention, attention.v), compute, "v_cast")
    scores = build.op("MatMul", q, k_transposed, name="qk")
    anchors = [scores]
    if on_scores != 1.0:
        scores = build.op("Mul", scores, build.like(on_scores, scores), name="scale_scores")
    if attention.softcap:
        cap = build.like(attention.softcap, scores)
        capped = build.op("Tanh", build.op("Div", scores, cap, name="softcap_in"), name="softcap_tanh")
        scores = build.op("Mul", capped, cap, name="softcap")
    bias = masks.bias(attention, compute)
    if bias is not None:
        scores = build.op("Add", scores, bias, name="bias")
    keep = masks.keep(attention)
    may_hide = any(can_hide(each.at.value) for each in attention.mask.biases)
    if keep is not None:
        # A bias of -inf lies below the lowest number: only -inf itself hides beside it.
        low = build.like(-np.inf if spelling == "tiled" or may_hide else _lowest(compute), scores)
        scores = build.op("Where", keep, scores, low, name="mask", dtype=compute)
    weights = build.op("Softmax", scores, name="softmax", axis=-1)
    anchors.append(weights)
    if (keep is not None or may_hide) and spelling == "tiled":
        empty = build.op("IsNaN", weights, name="no_key", dtype=ir.DataType.BOOL)
        weights = build.op("Where", empty, build.like(0.0, weights), weights, name="guard", dtype=compute)
    output = build.op("MatMul", weights, v, name="pv")
    anchors.append(output)
    if may_hide and spelling == "plain":
        empty = build.op("IsNaN", output, name="no_key", dtype=ir.DataType.BOOL)
        output = build.op("Where", empty, build.like(0.0, output), output, name="guard", dtype=compute)
    elif keep is not None and spelling == "plain":
        output = build.op("Where", masks.any_key(keep), output, build.like(0.0, output), name="guard", dtype=compute)
    names = tuple(str(value.producer().name) for value in anchors)  # type: ignore[union-attr]
    return build.cast(output, dtype, "out_cast"), names


def _split(scale: float) -> tuple[float, float]:
    """A scale as a factor on q and one on the scores, the latter a power of two: exact in every type, and never 1."""
    if scale <= 0:
        return 1.0, scale
    on_scores = 2.0 ** round(math.log2(scale) / 2)
    on_scores = 0.5 if on_scores == 1.0 else on_scores
    return scale / on_scores, on_scores


def _lowest(dtype: ir.DataType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy()).min)  # type: ignore[no-untyped-call]


def can_hide(bias: ir.Value) -> bool:
    """Whether a bias may hold -inf: it comes from a float input or a constant of -inf, through no product."""
    pending, seen = [bias], set()
    while pending:
        value = pending.pop()
        if value in seen or (value.dtype is not None and not value.dtype.is_floating_point()):
            continue
        seen.add(value)
        number = value.const_value.numpy().min() if value.const_value is not None and value.const_value.size else 0.0
        if value.is_graph_input() or float(number) == -np.inf:
            return True
        node = value.producer()
        if node is not None and node.op_type not in ("MatMul", "Gemm", "Einsum", "LayerNormalization", "Softmax"):
            pending.extend(part for part in node.inputs if part is not None)
    return False


def transposed_key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., D, T]`; one transposition, not two, where k is itself transposed."""
    if attention.k_transposed is not None:
        return attention.k_transposed
    assert attention.k is not None
    perm = [0, 1, 3, 2]
    node = attention.k.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        own = perm_of(node, 4)
        return build.op("Transpose", node.inputs[0], name="k_transposed", perm=[own[at] for at in perm])
    return build.op("Transpose", attention.k, name="k_transposed", perm=perm)
