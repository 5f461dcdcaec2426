"""Attention written out for TensorRT: products and a softmax around one `Where`, in the form that its kernel takes.

Each choice was measured on one block at T=4096 (`benchmarks/engine_forms.py`; scratch memory in MB):

- A `Where` hides keys with -inf. Hidden tiles are skipped only then, and only if there is an operator between the
  product and the mask. So about the square root of the scale is on q (for range) and the rest on the scores.
- The NaN of a row with no allowed key becomes zero after the product with v. This guard on the probabilities needs more
  memory (59 against 50), and with it one masked head, a cap and a softmax in float32 are not fused at all. It needs
  less there (185 against 193) only beside a bias looked up in a table, which has already filled the memory.
- A mask that combines indices with an input's values is written `Equal(mask, true)`: the kernel then skips every hidden
  tile, by a map made at run time. Without it, causal with padding skips none.
- If bias and mask are both computed from indices, the mask is applied to the bias: a `Where` on the scores would write
  one of the two to memory (67 to 151 against 50).
- A cap on the scores is written with `Exp`, in float32: with `Tanh` nothing is fused (2206 against 50).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.operands import operands, repeated
from attnport.exporter.forms.sinks import sink_bias
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.formula import ELEMENTWISE, axes_of, reads_of
from attnport.exporter.passes.islands import STAYS

if TYPE_CHECKING:
    import onnx_ir as ir


def tiled(
    build: Builder, masks: MaskWriter, attention: Attention, *, compute: ir.DataType | None = None
) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes `Where(mask, (q scale) k^T + bias, -inf) -> Softmax -> v`, and zero for a row with no allowed key.

    Args:
        compute: The dtype to compute in (q, k, v are cast to it, the output back); None = the dtype of q.

    Returns:
        The output and the names of the QK^T product, the softmax and the PV product.

    Raises:
        CannotLower: the head counts do not say how often a key/value head is repeated.
    """
    dtype = attention.q.dtype
    assert dtype is not None
    compute = compute or dtype
    on_q, on_scores = split_scale(attention.scale)
    q, k_transposed, v = operands(build, attention, compute, on_q, _for_each_head)
    product = build.op("MatMul", q, k_transposed, name="qk")
    scores = product
    if on_scores != 1.0:
        scores = build.op("Mul", scores, build.like(on_scores, scores), name="scale_scores")
    if attention.softcap:
        scores = _capped(build, scores, attention.softcap)
    bias = masks.bias(attention, compute)
    weights = build.op("Softmax", _masked(build, masks, attention, scores, bias, compute), name="softmax", axis=-1)
    softmax = weights
    if attention.softcap:
        _stays(weights)
        weights = build.op("Cast", weights, name="weights_cast", dtype=compute, to=compute)
    within = bias is not None and _is_gathered(bias) and attention.head_counts()[0] != 1 and not attention.softcap
    if within:
        weights = _guarded(build, weights)
    output = build.op("MatMul", weights, v, name="pv")
    names = tuple(map(node_name, (product, softmax, output)))
    return build.cast(output if within else _guarded(build, output), dtype, "out_cast"), names


def _guarded(build: Builder, value: ir.Value) -> ir.Value:
    """The value with zero in place of NaN."""
    import onnx_ir as ir

    empty = build.op("IsNaN", value, name="no_key", dtype=ir.DataType.BOOL)
    return build.op("Where", empty, build.like(0.0, value), value, name="guard", dtype=value.dtype)


def split_scale(scale: float) -> tuple[float, float]:
    """A scale as a factor on q and one on the scores; the latter is a power of two (exact in every type), never 1."""
    if scale <= 0:
        return 1.0, scale
    on_scores = 2.0 ** round(math.log2(scale) / 2)
    on_scores = 0.5 if on_scores == 1.0 else on_scores
    return scale / on_scores, on_scores


def _masked(
    build: Builder,
    masks: MaskWriter,
    attention: Attention,
    scores: ir.Value,
    bias: ir.Value | None,
    compute: ir.DataType,
) -> ir.Value:
    keep = _keep(masks, attention)
    sink = sink_bias(build, masks, attention, compute)
    low = -np.inf
    if bias is not None and keep is not None and _of_indices(bias) and _uses_queries(attention):
        bias = build.op("Where", keep, bias, build.like(low, bias), name="mask", dtype=compute)
        keep = None
    for term in (bias, sink):
        if term is None:
            continue
        if attention.softcap:
            term = _stays(build.op("Cast", term, name="bias_cast", dtype=scores.dtype, to=scores.dtype))
        scores = build.op("Add", scores, term, name="bias")
        if attention.softcap:
            _stays(scores)
    if keep is not None:
        scores = build.op("Where", keep, scores, build.like(low, scores), name="mask", dtype=scores.dtype)
        if attention.softcap:
            _stays(scores)
    return scores


def _keep(masks: MaskWriter, attention: Attention) -> ir.Value | None:
    """The mask as it is, or as `Equal(mask, true)`.

    A mask of comparisons between indices bounds the tiles of a row and needs no map. A mask over queries and keys that
    an input contains is read by the kernel as it is; an operator on it would write it to memory again.
    """
    import onnx_ir as ir

    keep = masks.keep(attention)
    factors = [factor.keep for factor in attention.mask.factors]
    compared = all(
        getattr(condition, "name", "") in ("Less", "LessOrEqual") and not reads_of(condition) for condition in factors
    )
    held = any(axes_of(read) >= {"i", "j"} for condition in factors for read in reads_of(condition))
    if keep is None or compared or held:
        return keep
    true = masks.build.const(True)
    return masks.build.once(
        ("mapped", keep), lambda: masks.build.op("Equal", keep, true, name="mask/mapped", dtype=ir.DataType.BOOL)
    )


def _uses_queries(attention: Attention) -> bool:
    return any("i" in axes_of(factor.keep) for factor in attention.mask.factors)


def _of_indices(bias: ir.Value) -> bool:
    """Whether a bias is computed element by element from ranges, so that the kernel can compute it."""
    through = {*ELEMENTWISE, "Cast", "Unsqueeze", "Div", "Reshape", "Expand"}
    computing = {node.op_type for node in _computing(bias, through)}
    return "Range" in computing and computing <= {*through, "Range"}


def _is_gathered(bias: ir.Value) -> bool:
    """Whether a bias is looked up in a table, which the builder writes to memory for all queries and keys."""
    through = {"Add", "Mul", "Cast", "Where", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Expand"}
    return any(node.op_type in {"Gather", "GatherND", "GatherElements"} for node in _computing(bias, through))


def _computing(value: ir.Value, through: Collection[str]) -> Iterator[ir.Node]:
    """The nodes that compute a value, from the last one back; the walk goes on only at operators in `through`."""
    pending, seen = [value], set()
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in seen or node is None:
            continue
        seen.add(value)
        yield node
        if node.op_type in through:
            pending.extend(part for part in node.inputs if part is not None)


def _capped(build: Builder, scores: ir.Value, cap: float) -> ir.Value:
    """`cap tanh(scores / cap)` as `cap - 2 cap / (exp(2 scores / cap) + 1)`, in float32; exact where exp overflows."""
    import onnx_ir as ir

    float32 = ir.DataType.FLOAT
    up = _stays(build.op("Cast", scores, name="softcap_in", dtype=float32, to=float32))
    twice = _stays(build.op("Mul", up, build.like(2.0 / cap, up), name="softcap_twice"))
    power = _stays(build.op("Exp", twice, name="softcap_exp"))
    above = _stays(build.op("Add", power, build.like(1.0, power), name="softcap_plus"))
    part = _stays(build.op("Div", build.like(2.0 * cap, above), above, name="softcap_part"))
    return _stays(build.op("Sub", build.like(cap, part), part, name="softcap"))


def _stays(value: ir.Value) -> ir.Value:
    """Marks the node that computes a value to stay in float32."""
    node = value.producer()
    assert node is not None
    node.metadata_props[STAYS] = "1"
    return value


def _for_each_head(build: Builder, attention: Attention, value: ir.Value) -> ir.Value:
    """Keys or values for every query head, since a product that broadcasts one head over several is not fused."""
    heads, groups = attention.head_counts()
    if groups == 1 and heads is not None and heads > 1:
        return build.op("Expand", value, build.const([1, heads, 1, 1], np.int64), name="each_head")
    return repeated(build, attention, value)
