"""What stands around attentions: norms, activations, rotations, and products with their weights in a few bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.contrib.parts import Expanded, Operator, places, summed, write
from attnport.exporter.graph.size_rules import KnownSizes, Sizes
from attnport.onnx_graph import array_of, attribute, dims_of, ir, is_constant, known_size, made_by, rank_of

Array = np.ndarray[Any, Any]


def with_skip(model: ir.Model) -> int:
    """Writes `RMSNormalization(a + b)` of two values `[B,S,D]` as `SkipSimplifiedLayerNormalization`.

    It gives the sum too, and is one kernel on CUDA. ONNX Runtime writes such an operator by itself for
    `LayerNormalization`, but not for the standard's `RMSNormalization`.

    Returns:
        How many were written.
    """
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        total = node.inputs[0] if node.op_type == "RMSNormalization" and not node.domain else None
        add = made_by(total, "Add")
        if total is None or add is None or not _fits(node, add):
            continue
        build.before, build.scope = add, node.name or "norm"
        x, skip = add.inputs
        output = write(
            build, "SkipSimplifiedLayerNormalization", x=x, skip=skip, scale=node.inputs[1],
            epsilon=attribute(node, "epsilon", 1e-5),
        )  # fmt: skip
        made = output.producer()
        assert made is not None
        made.resize_outputs(4)
        for value, name in zip(made.outputs[1:], ("", "", f"{made.name}/sum"), strict=True):  # "" = not computed
            value.name = name
        build.replace(node.outputs[0], output)
        build.replace(total, made.outputs[3])
        for old in (node, add):
            model.graph.remove(old, safe=True)
        replaced += 1
    return replaced


def _fits(norm: ir.Node, add: ir.Node) -> bool:
    """Whether a norm is over the last axis, with a weight for each of its elements, of a sum without broadcasting."""
    weight, total = norm.inputs[1], norm.inputs[0]
    axis, stash = attribute(norm, "axis", -1), attribute(norm, "stash_type", 1)
    if axis not in (-1, 2) or stash != 1 or weight is None or not is_constant(weight):
        return False
    shapes = [dims_of(value) for value in (*add.inputs, total)]
    first = shapes[0]
    if first is None or len(first) != 3 or None in first or any(shape != first for shape in shapes):
        return False
    types = {value.dtype for value in (*add.inputs, total, weight) if value is not None}
    return len(types) == 1 and dims_of(weight) == first[2:]


def _skip_norm(build: Builder, o: SimpleNamespace) -> Expanded:
    total = summed(build, o.x, o.skip, o.added)
    norm = build.op("LayerNormalization", total, o.scale, o.bias, name="norm", axis=-1, epsilon=o.epsilon)
    return [norm, None, None, total]


def _skip_rms_norm(build: Builder, o: SimpleNamespace) -> Expanded:
    total = summed(build, o.x, o.skip, o.added)
    norm = build.op("RMSNormalization", total, o.scale, name="norm", axis=-1, epsilon=o.epsilon)
    return [norm, None, None, total]


def _embed_norm(build: Builder, o: SimpleNamespace) -> Expanded:
    positions = places(build, build.size(o.ids, 1)) if o.positions is None else o.positions
    tables = (o.words, o.ids), (o.places, positions), (o.kinds, o.segments)
    rows = [build.op("Gather", table, at, name="rows", dtype=o.words.dtype, axis=0)
            for table, at in tables if at is not None]  # fmt: skip
    total = summed(build, rows[0], *rows[1:])
    norm = build.op("LayerNormalization", total, o.scale, o.bias, name="norm", axis=-1, epsilon=o.epsilon)
    if o.mask is None:
        return [norm, None, total]
    count = build.op("ReduceSum", o.mask, build.const([1], np.int64), name="lengths", keepdims=0)
    return [norm, count, total]


def _gelu(approximate: str) -> Callable[[Builder, SimpleNamespace], Expanded]:
    """Of x, or of the sum of x and a bias."""
    return lambda build, o: [
        build.op("Gelu", summed(build, o.x, getattr(o, "bias", None)), name="gelu", approximate=approximate)
    ]


def _quick_gelu(build: Builder, o: SimpleNamespace) -> Expanded:
    scaled = build.op("Mul", o.x, build.like(o.alpha, o.x), name="scaled")
    return [build.op("Mul", o.x, build.op("Sigmoid", scaled, name="gate"), name="gelu")]


def _rotary(build: Builder, o: SimpleNamespace) -> Expanded:
    if o.is_packed_batching:
        raise NotImplementedError("RotaryEmbedding of packed texts")
    x, positions, heads = o.x, o.positions, o.num_heads
    axes, width, half = rank_of(x), known_size(x, 2), known_size(o.cos, 1)
    if axes == 3 and not heads:
        if not isinstance(width, int) or not isinstance(half, int):
            raise NotImplementedError("RotaryEmbedding of heads of unknown size")
        heads = width // (2 * half)
    if rank_of(positions) == 1 and axes is not None:  # the position of the first token
        every = build.op("Add", positions, places(build, build.size(x, axes - 2)), name="positions")
        rows = build.op("Concat", build.size(x, 0), build.size(x, axes - 2), name="rows", axis=0)
        positions = build.op("Expand", every, rows, name="positions_of_rows", dtype=every.dtype)
    if rank_of(positions) not in (2, None):
        raise NotImplementedError("RotaryEmbedding with positions of other ranks")
    rotated = build.op(
        "RotaryEmbedding", x, o.cos, o.sin, positions, name="rotated", interleaved=o.interleaved, num_heads=heads,
        rotary_embedding_dim=o.rotary_embedding_dim,
    )  # fmt: skip
    return [rotated]


def _fused_matmul(build: Builder, o: SimpleNamespace) -> Expanded:
    factors = []
    for value, turns, moves in ((o.a, o.transA, o.transBatchA), (o.b, o.transB, o.transBatchB)):
        axes = rank_of(value)
        if (turns or moves) and axes is None:
            raise NotImplementedError("FusedMatMul of a transposed value of unknown rank")
        order = list(range(axes or 0))
        order = [*order[1:-1], order[0], order[-1]] if moves else order
        order = [*order[:-2], order[-1], order[-2]] if turns else order
        factors.append(build.op("Transpose", value, name="turned", perm=order) if turns or moves else value)
    found = build.op("MatMul", *factors, name="product")
    return [found if o.alpha == 1.0 else build.op("Mul", found, build.like(o.alpha, found), name="scaled")]


def _matmul_n_bits(build: Builder, o: SimpleNamespace) -> Expanded:
    """A product by a weight of a few bits, which becomes one of float32."""
    packed = o.weight, o.scales, o.zeros
    if o.order is not None or not all(value is None or is_constant(value) for value in packed):
        raise NotImplementedError("MatMulNBits with an order of blocks, or with a weight that is computed")

    def wide_weight() -> ir.Value:
        zeros = None if o.zeros is None else array_of(o.zeros)
        wide = _widened(array_of(o.weight), array_of(o.scales), zeros, o.bits)[:, : o.K]
        return build.stored(f"{o.weight.name}/wide", np.ascontiguousarray(wide.T))

    stored = build.once(("wide", *packed, o.bits, o.K), wide_weight)
    return [summed(build, build.op("MatMul", o.x, stored, name="product"), o.bias)]


def _widened(weight: Array, scales: Array, zeros: Array | None, bits: int) -> Array:
    """A weight as float32 `[N, blocks * width of one]`, of whole numbers that are packed in bytes."""
    count, blocks = weight.shape[:2]
    middle: Array | float = 2.0 ** (bits - 1)
    if zeros is not None:
        whole = zeros if zeros.dtype.kind == "f" else _whole(zeros.reshape(count, -1), bits)
        middle = whole.reshape(count, -1)[:, :blocks, None].astype(np.float32)
    wide = (_whole(weight, bits).astype(np.float32) - middle) * scales.reshape(count, blocks, 1)
    return wide.reshape(count, -1).astype(np.float32)


def _whole(packed: Array, bits: int) -> Array:
    """Numbers along the last axis, the first of a byte in its lowest bits."""
    parts = [(packed >> low) & (2**bits - 1) for low in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def _same(run: KnownSizes, o: SimpleNamespace, node: ir.Node) -> Sequence[Sizes | None]:
    return [o.x]


def _skipped(run: KnownSizes, o: SimpleNamespace, node: ir.Node) -> Sequence[Sizes | None]:
    return [o.x, None, None, o.x]


OPERATORS = {
    "BiasGelu": Operator(_gelu("none"), _same),
    "EmbedLayerNormalization": Operator(_embed_norm),
    "FastGelu": Operator(_gelu("tanh"), _same),
    "FusedMatMul": Operator(_fused_matmul),
    "Gelu": Operator(_gelu("none"), _same),
    "MatMulNBits": Operator(_matmul_n_bits, lambda run, o, node: [(*o.x[:-1], run.size(o.N))]),
    "QuickGelu": Operator(_quick_gelu, _same),
    "RotaryEmbedding": Operator(_rotary, _same),
    "SimplifiedLayerNormalization": Operator(
        lambda build, o: [build.op("RMSNormalization", o.x, o.scale, name="norm", axis=o.axis, epsilon=o.epsilon)],
        _same,
    ),
    "SkipLayerNormalization": Operator(_skip_norm, _skipped),
    "SkipSimplifiedLayerNormalization": Operator(_skip_rms_norm, _skipped),
}
