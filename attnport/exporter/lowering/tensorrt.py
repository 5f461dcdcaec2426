"""TensorRT (data centre): strongly typed, half precision around attention, the form that needs least memory by mask.

The form is chosen in three steps (measured by `benchmarks/engine_forms.py`):

1. head dims are padded to what kernels take: the same for q, k and v, a multiple of 8 from 16 to 256;
2. grouped heads use the `Attention` operator if that writes no mask to memory: without a mask, with the causal mask
   alone, or with a mask of keys alone;
3. everything else is written as products around one `Where` (`forms/tiled.py`), with grouped heads as rows, unless
   that would write a larger mask to memory: in float32, which has no fused kernel.

For heads that are not grouped, the products never need more memory than the operator, and they also build where the
operator does not: with a single query and fewer than four heads.
"""

from __future__ import annotations

from typing import ClassVar

from attnport.artifacts import PLANS
from attnport.exporter.builder import Builder
from attnport.exporter.forms.attention_op import attention_op
from attnport.exporter.forms.groups import can_fold, folded, unfolded
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.forms.narrow_masks import NarrowMaskWriter
from attnport.exporter.forms.operands import head_dims, narrowed, widened
from attnport.exporter.forms.tiled import tiled
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.formula import axes_of
from attnport.exporter.lowering.base import Lowering, Written
from attnport.onnx_graph import dims_of

LEAST_DEPTH, MOST_DEPTH, STEP = 16, 256, 8
"""Head dims with a fused kernel: at 8 and 257 there is none, at 12 and 20 a mask makes the builder fail (1.7.1)."""


class TensorRt(Lowering):
    """Fused kernels exist in half precision only, so fp32 models use it in islands around attention."""

    name = "tensorrt"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp16_islands", "bf16_islands", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("engine",)

    def mask_writer(self, build: Builder) -> MaskWriter:
        """A writer that compares indices in int32, so that kernels compute the mask."""
        return NarrowMaskWriter(build)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """The form that one kernel covers with the least memory; a note says if there is none.

        Raises:
            CannotLower: the head counts do not say how often a key/value head is repeated.
        """
        import onnx_ir as ir

        compute = ir.DataType[PLANS[plan].half.upper()] if PLANS[plan].islands else None
        changes: list[str] = []
        key_depth, value_depth = head_dims(attention)
        depth = None if plan == "fp32" else _kernel_depth(key_depth, value_depth)
        if depth is not None:
            attention = widened(build, attention, depth)
            changes.append(f"head dim {key_depth} padded to {depth}" if key_depth != depth else "")
            changes.append(
                f"value dim {value_depth} padded to {depth}" if value_depth not in (key_depth, depth) else ""
            )
        if attention.sink is not None:
            changes.append("sink as one more key")
        if plan != "fp32" and _as_operator(attention):
            form = "Attention"
            output, anchors = attention_op(build, masks, attention, "bool", compute=compute)
        elif can_fold(attention) and (plan != "fp32" or not _mask_is_square(attention)):
            form = "MatMul, Where(-inf), Softmax, MatMul"
            rows = folded(build, masks, attention)
            output, anchors = tiled(build, masks, rows, compute=compute)
            output = unfolded(build, attention, output)
            changes.append("grouped heads as rows")
        else:
            form = "MatMul, Where(-inf), Softmax, MatMul"
            output, anchors = tiled(build, masks, attention, compute=compute)
        if depth is not None and value_depth is not None and value_depth < depth:
            output = narrowed(build, output, value_depth)
        return Written(output, ", ".join([form, *filter(None, changes)]), anchors, _note(plan, key_depth, value_depth))


def _kernel_depth(key_depth: int | None, value_depth: int | None) -> int | None:
    """The head dim to pad to; None if no padding is needed or none helps."""
    if key_depth is None or value_depth is None:
        return None
    depth = max(LEAST_DEPTH, -(-max(key_depth, value_depth) // STEP) * STEP)
    return None if depth > MOST_DEPTH or key_depth == value_depth == depth else depth


def _as_operator(attention: Attention) -> bool:
    """Whether the operator fuses and needs less memory than the products.

    The operator writes a mask that depends on queries to memory at full size. With a bias and no mask, the products
    would write repeated keys.
    """
    mask = attention.mask
    heads, groups = attention.head_counts()
    if attention.softcap or attention.sink is not None or any((dim or 0) > MOST_DEPTH for dim in head_dims(attention)):
        return False
    by_key = all(axes_of(factor.keep) <= {"b", "j"} for factor in mask.factors)
    return heads != groups and (mask.is_causal_only or (by_key if not mask.biases else not mask.factors))


def _mask_is_square(attention: Attention) -> bool:
    """Whether the mask is one of queries by keys for each item of the batch, with as many queries as keys.

    Where it is written to memory, grouped heads as rows repeat it for every head of a group. Repeated keys and values
    are then leaner at long inputs (`benchmarks/scratch_exports.py`; Llama in float32: 1982 MB against 2052).
    """
    axes = {axis for factor in attention.mask.factors for axis in axes_of(factor.keep)}
    q, v = dims_of(attention.q), dims_of(attention.v)
    return {"b", "i"} <= axes and q is not None and v is not None and q[2] is not None and q[2] == v[2]


def _note(plan: str, key_depth: int | None, value_depth: int | None) -> str:
    if plan == "fp32":
        return "fp32 attention has no fused kernel; use fp16, bf16 or their islands"
    deepest = max(key_depth or 0, value_depth or 0)
    if deepest > MOST_DEPTH:
        return f"head dim {deepest}: fused kernels take up to {MOST_DEPTH}"
    return ""


LOWERING = TensorRt()
