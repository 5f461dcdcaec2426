"""ONNX Runtime on CUDA: its own operators, whose kernels choose flash or memory-efficient attention at run time."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np

from attnport.exporter.builder import Builder, clean_up
from attnport.exporter.contrib.group_query import group_query_attention, why_not_group_query
from attnport.exporter.contrib.layers import with_skip
from attnport.exporter.contrib.multi_head import (
    can_fold,
    folded_attention,
    multi_head_attention,
    one_product,
    why_not_multi_head,
)
from attnport.exporter.contrib.parts import guarded
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.forms.standard import attention_op, form_name
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.targets.base import Lowering, Written
from attnport.onnx_graph import attribute, constant_of, dims_of, ir, made_by, scalar

PROMPT = 64
"""The usual number of queries from which grouped heads are not folded. Folding writes a bias for every query head of a
group, `[B,1,S*R,T]`, which each layer reads: 537 MB for 8 prompts of 2048 tokens, R = 8. On an H200 one query is three
times as quick with it, 504 are 1.3 times as slow (docs/gpu.md); nothing between was measured."""
_OF_SIZES = ("Squeeze", "Unsqueeze", "Gather", "Slice", "Reshape", "Add", "Sub", "Mul", "Div", "Min", "Max", "Cast")


class _CudaMaskWriter(MaskWriter):
    """Counts keys in float32: of integers and of maxima, reductions on CUDA are many times as slow."""

    counting: ClassVar[tuple[str, str]] = ("FLOAT", "ReduceSum")


class OrtCuda(Lowering):
    """The form for which ONNX Runtime chooses one kernel, as measured on an H200 with 1.31.1 (docs/gpu.md).

    In fp16 and bf16, `GroupQueryAttention` and `MultiHeadAttention` run as cuDNN's flash attention, with a bias too, at
    every length that was tried; below SM 90, cuDNN is asked for (docs/gpu.md). A mask of lengths goes in as such, which
    cuDNN takes too. The standard's `Attention` runs as flash attention without a mask, and with one as
    memory-efficient attention, or as several kernels where T is no multiple of 4. In fp32, for which
    `GroupQueryAttention` has no kernel (OperatorKernels.md), the others run as memory-efficient attention, but a single
    query of `MultiHeadAttention` as several kernels. Half precision is the default for that reason.

    In a row without an allowed key, some of these kernels give the mean of v and others NaN: each form sets it to zero.
    """

    name = "ort_cuda"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp32")
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cuda",)

    def mask_writer(self, build: Builder) -> MaskWriter:
        """A writer whose reductions are quick on CUDA."""
        return _CudaMaskWriter(build)

    def finish(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """As for any target, with sizes kept on the host, and with operators that one kernel computes."""
        keep_sizes_on_host(model)
        super().finish(model, plan, islands)
        as_operator(model)
        with_skip(model)
        clean_up(model)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """`GroupQueryAttention` if it computes exactly this mask, else `MultiHeadAttention`, else the standard's."""
        if plan != "fp32" and not why_not_group_query(attention):
            output, anchors = group_query_attention(build, masks, attention)
            return Written(output, "GroupQueryAttention", anchors)
        reason = why_not_multi_head(attention)
        few = (build.usual_size(attention.q, 2) or 1) < PROMPT
        if not reason and few and can_fold(attention):
            output, anchors = folded_attention(build, masks, attention)
            return Written(output, "MultiHeadAttention, query heads folded", anchors)
        if not reason:
            packed = None if plan == "fp32" else one_product(build, attention)
            output, anchors = multi_head_attention(
                build, masks, attention, key_column=False, packed=packed, by_lengths=plan != "fp32"
            )
            return Written(output, "MultiHeadAttention", anchors)
        output, anchors = attention_op(build, masks, attention, "bool_full")
        output = guarded(build, masks, attention, output)
        return Written(output, f"{form_name(attention, 'bool_full')} ({reason})", anchors)


def keep_sizes_on_host(model: ir.Model) -> int:
    """Writes leading rows of a table as `Slice`, a range plus a size as another range, and a dim's size as an input's.

    The runtime computes sizes on the host and everything else on the device. A size that meets a tensor of the device
    has to be copied there, in each call, and a graph with such a copy cannot be captured as a CUDA graph. Found with
    ONNX Runtime 1.31.1: it makes a `Slice` of `Gather(table, Range(0, size, 1))` and brings its bounds to the device
    and back; and causal masks add the length of the cache to the index of the query.

    A size that is an input's needs nothing that is computed: a value may be gone but for its size.

    Returns:
        How many nodes were replaced.
    """
    build = Builder(model)
    changed = 0
    for node in list(model.graph):
        build.before, build.scope = node, node.name or ""
        new = _leading_rows(build, node) or _moved_range(build, node) or _input_size(build, node)
        if new is not None:
            build.replace(node.outputs[0], new)
            model.graph.remove(node, safe=True)
            changed += 1
    return changed


def _leading_rows(build: Builder, node: ir.Node) -> ir.Value | None:
    """`Slice(table, [0], [size], [0])` for `Gather(table, Range(0, size, 1))`; None for another node."""
    if node.op_type != "Gather" or node.domain or attribute(node, "axis", 0):
        return None
    indices = made_by(node.inputs[1], "Range")
    if indices is None or scalar(indices.inputs[0]) != 0 or scalar(indices.inputs[2]) != 1:
        return None
    squeeze = made_by(indices.inputs[1], "Squeeze")
    size = None if squeeze is None else squeeze.inputs[0]
    if size is None or not _is_size(size) or size.shape is None or size.shape.rank() != 1:
        return None
    if size.dtype != ir.DataType.INT64:
        return None
    zero = build.const([0], np.int64)
    rows = build.op("Slice", node.inputs[0], zero, size, zero, name="rows")
    rows.shape = node.outputs[0].shape
    return rows


def _moved_range(build: Builder, node: ir.Node) -> ir.Value | None:
    """`Range(start + size, limit + size, 1)` for `Range(start, limit, 1) + size`; None for another node."""
    if node.op_type not in ("Add", "Sub") or node.domain:
        return None
    one, other = node.inputs
    if node.op_type == "Add" and one is not None and _is_size(one):
        one, other = other, one
    if one is None or other is None or not _is_size(other):
        return None
    shapes: list[ir.Node] = []
    ranged = one.producer()
    while ranged is not None and ranged.op_type == "Unsqueeze" and ranged.inputs[0] is not None:
        shapes.append(ranged)
        ranged = ranged.inputs[0].producer()
    if ranged is None or ranged.op_type != "Range" or scalar(ranged.inputs[2]) != 1:
        return None
    if other.shape is None or one.shape is None or other.shape.rank() > one.shape.rank():
        return None
    if other.dtype != ir.DataType.INT64:  # the bounds of a range of floats round when they are moved
        return None
    size = build.op("Squeeze", other, name="size") if other.shape.rank() else other
    bounds = [build.op(node.op_type, bound, size, name="bound") for bound in ranged.inputs[:2]]
    value = build.op("Range", *bounds, ranged.inputs[2], name="range")
    for shape in reversed(shapes):
        value = build.op("Unsqueeze", value, shape.inputs[1], name="range_nd")
    value.shape = node.outputs[0].shape
    return value


def _input_size(build: Builder, node: ir.Node) -> ir.Value | None:
    """The size of an input's dim for the size of a computed value's dim of the same name; None for another node."""
    value = node.inputs[0] if node.op_type == "Shape" and not node.domain else None
    if value is None or value.is_graph_input() or value.shape is None or "start" not in node.attributes:
        return None
    dims = list(value.shape)[attribute(node, "start", 0) : attribute(node, "end", len(value.shape))]
    name = None if len(dims) != 1 or isinstance(dims[0], int) else dims[0].value
    for given in build.model.graph.inputs:
        for axis, dim in enumerate(given.shape or ()):
            if name is not None and not isinstance(dim, int) and dim.value == name:
                return build.size(given, axis)
    return None


def _is_size(value: ir.Value | None) -> bool:
    """Whether a value is one number that follows from the shapes of tensors."""
    if value is None or (value.shape is not None and any(size != 1 for size in value.shape)):
        return False
    return _of_shapes(value) and value.const_value is None


def _of_shapes(value: ir.Value | None) -> bool:
    if value is None or value.const_value is not None:
        return True
    node = value.producer()
    if node is None or node.domain:
        return False
    return node.op_type in ("Shape", "Size") or (node.op_type in _OF_SIZES and all(map(_of_shapes, node.inputs)))


def as_operator(model: ir.Model) -> int:
    """Writes every rotation of the halves of x, `[B,H,S,D]`, as `RotaryEmbedding`; returns how many.

    Written out, a rotation is nine kernels on CUDA, for queries and for keys of each layer. On an H200, steps of a
    Llama with 8 layers take 0.86 of the time with the operator (docs/gpu.md); on CPU it makes no difference.

    That is `Concat(first * cos - second * sin, second * cos + first * sin)` of the halves of the last axis. Cosines and
    sines are given to the operator as `[B,S,D/2]`, expanded once for the whole graph. What it replaces is left to
    `clean_up`.
    """
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        found = _rotation(node)
        if found is None:
            continue
        x, cosines, sines = found
        build.before, build.scope = node, node.name or "rotary"
        caches = [_cache(build, angles, x) for angles in (cosines, sines)]
        build.replace(node.outputs[0], build.op("RotaryEmbedding", x, *caches, name="turned"))
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _rotation(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """x, the cosines and the sines by which a node puts its turned halves together; None if it is another node."""
    if node.op_type != "Concat" or len(node.inputs) != 2 or node.attributes["axis"].as_int() not in (-1, 3):
        return None
    difference, total = _operands(node.inputs[0], "Sub"), _operands(node.inputs[1], "Add")
    if difference is None or total is None:
        return None
    of_first, of_second = _operands(difference[0], "Mul"), _operands(difference[1], "Mul")
    products = [_operands(value, "Mul") for value in total]
    if of_first is None or of_second is None:
        return None
    for first, cosines in (of_first, of_first[::-1]):
        for second, sines in (of_second, of_second[::-1]):
            x = _halved(first, second)
            wanted = {frozenset((second, cosines)), frozenset((first, sines))}
            if x is not None and {frozenset(pair or ()) for pair in products} == wanted:
                fits = all(_is_cache(angles, x) for angles in (cosines, sines))
                return (x, cosines, sines) if fits else None
    return None


def _operands(value: ir.Value | None, op_type: str) -> tuple[ir.Value, ir.Value] | None:
    """The inputs of the node of an operator that computes a value; None if it is another one."""
    node = made_by(value, op_type)
    if node is None:
        return None
    first, second = node.inputs
    return None if first is None or second is None else (first, second)


def _halved(first: ir.Value, second: ir.Value) -> ir.Value | None:
    """The value `[B,H,S,D]` of which two values are the halves of the last axis; None if they are not."""
    one, other = first.producer(), second.producer()
    if one is None or other is None or one.op_type != other.op_type or one.inputs[0] is not other.inputs[0]:
        return None
    x = one.inputs[0]
    sizes = dims_of(x)
    if x is None or sizes is None or len(sizes) != 4 or not isinstance(sizes[3], int):
        return None
    half = sizes[3] // 2
    if half * 2 != sizes[3] or any(value.shape is None or value.shape[-1] != half for value in (first, second)):
        return None
    if one.op_type == "Split":
        axis = attribute(one, "axis", 0)
        return x if one is other and axis in (-1, 3) and (first.index(), second.index()) == (0, 1) else None
    if one.op_type != "Slice":
        return None
    (start, end), (next_start, next_end) = _bounds(one), _bounds(other)
    return x if (start, end, next_start) == (0, half, half) and next_end >= 2 * half else None


def _bounds(node: ir.Node) -> tuple[int, int]:
    """From where to where a `Slice` reads the last of four axes by steps of 1; (-1, -1) if it does something else."""
    numbers = [None if (array := constant_of(value)) is None else array.tolist() for value in node.inputs[1:]]
    if len(numbers) < 3 or numbers[2] not in ([-1], [3]) or (len(numbers) == 4 and numbers[3] != [1]):
        return -1, -1
    start, end = numbers[:2]
    return (start[0], end[0]) if start and end and len(start) == len(end) == 1 else (-1, -1)


def _is_cache(angles: ir.Value, x: ir.Value) -> bool:
    """Whether cosines or sines are the same for all heads, `[B|1,1,S|1,D/2]`, and of the type of x.

    Where x has one row for several of angles, it is x that is broadcast, which the operator does not do.
    """
    sizes, of_x = dims_of(angles), dims_of(x)
    if sizes is None or of_x is None or not 1 < len(sizes) < 5 or angles.dtype != x.dtype:
        return False
    batch, _, length, depth = of_x
    rows = [(sizes[-2], length), *([(sizes[0], batch)] if len(sizes) == 4 else [])]
    if any(size != 1 and own == 1 for size, own in rows) or not isinstance(depth, int):
        return False
    return sizes[-1] == depth // 2 and (len(sizes) < 3 or sizes[-3] == 1)


def _cache(build: Builder, angles: ir.Value, x: ir.Value) -> ir.Value:
    """Cosines or sines as `[B,S,D/2]`, once for all that have the batch and the length of x."""
    sizes, rank = dims_of(x), len(dims_of(angles) or ())
    assert sizes is not None
    batch, _, length, depth = sizes
    assert isinstance(depth, int)

    def write() -> ir.Value:
        rows = angles
        if rank == 4:
            rows = build.op("Squeeze", angles, build.const([1], np.int64), name="rows")
        ends = build.size(x, 0), build.size(x, 2), build.const([depth // 2], np.int64)
        shape = build.op("Concat", *ends, name="shape", axis=0)
        return build.op("Expand", rows, shape, name="cache")

    known = None not in (batch, length)
    return build.once(("cache", angles, batch, length) if known else ("cache", angles, x), write)


LOWERING = OrtCuda()
