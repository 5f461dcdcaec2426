"""A BERT encoder in the leanest form known for TensorRT, written by hand as an ONNX graph.

It is the yardstick for the scratch memory of engines from the project's own lowering, so nothing of that is imported.
The computation is all-MiniLM-L6's: embeddings, post-norm layers with the exact GELU, mean pooling over real tokens and
normalisation, all in float16. Weights are random; scratch memory does not depend on them.

Shape legend: B batch, T sequence, H heads, D head dim, E model dim, F feed-forward dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from graph_writer import GraphWriter

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder; the defaults are all-MiniLM-L6's with positions for long sequences."""

    layers: int = 6
    heads: int = 12
    hidden: int = 384
    feed_forward: int = 1536
    vocabulary: int = 30522
    positions: int = 4096


@dataclass(frozen=True)
class Variant:
    """What was tried; the defaults are the leanest. `benchmarks/scratch.py --variants` measures them all.

    Attributes:
        attention: `operator` (one Attention operator with a [B,1,1,T] mask), `where` (products, `Where` with -inf,
            softmax, guard), `bias` (the same with a 0/-inf mask that is added), `expanded` (the same with the mask
            written out as [B,H,T,T]).
        scale: Where the scale stands in what is no operator: on the `scores` or on `q`.
        joined: One product for q, k and v, split after.
        sequence_major: [T,B,E] in place of [B,T,E] between the embeddings and the output.
        chunks: In how many parts the feed-forward dim is computed, one after the other.
    """

    attention: str = "operator"
    scale: str = "scores"
    joined: bool = False
    sequence_major: bool = False
    chunks: int = 1

    @property
    def swap(self) -> tuple[int, ...]:
        """The order of batch and sequence inside."""
        return (1, 0) if self.sequence_major else (0, 1)


def _qkv(w: GraphWriter, x: ir.Value, shape: Shape, variant: Variant) -> list[ir.Value]:
    size = shape.hidden
    if not variant.joined:
        return [w.dense(x, size, size) for _ in range(3)]
    joined, axis = w.dense(x, size, 3 * size), w.ints(2)
    return [w.op("Slice", joined, w.ints(at * size), w.ints((at + 1) * size), axis) for at in range(3)]


def _heads(w: GraphWriter, x: ir.Value, shape: Shape, variant: Variant, last: Sequence[int] = (1, 3)) -> ir.Value:
    """[B,H,T,D] from [B,T,E]; with `last` (3, 1) [B,H,D,T]."""
    split = w.op("Reshape", x, w.ints(0, 0, shape.heads, shape.hidden // shape.heads))
    batch, sequence = variant.swap
    return w.op("Transpose", split, perm=[batch, 2, *(sequence if axis == 1 else axis for axis in last)])


def _attention(w: GraphWriter, x: ir.Value, mask_B11T: ir.Value, shape: Shape, variant: Variant, name: str) -> ir.Value:
    q, k, v = _qkv(w, x, shape, variant)
    scale = (shape.hidden // shape.heads) ** -0.5
    q_BHTD, v_BHTD = (_heads(w, value, shape, variant) for value in (q, v))
    if variant.attention == "operator":
        k_BHTD = _heads(w, k, shape, variant)
        out = w.op("Attention", q_BHTD, k_BHTD, v_BHTD, mask_B11T, name=f"{name}/pv", scale=scale)
    else:
        if variant.scale == "q":
            q_BHTD = w.op("Mul", q_BHTD, w.const(scale))
        scores = w.op("MatMul", q_BHTD, _heads(w, k, shape, variant, (3, 1)), name=f"{name}/qk")
        if variant.scale == "scores":
            scores = w.op("Mul", scores, w.const(scale))
        weights = w.op("Softmax", _masked(w, scores, mask_B11T, variant), name=f"{name}/softmax", axis=-1)
        guarded = w.op("Where", w.op("IsNaN", weights), w.const(0.0), weights)
        out = w.op("MatMul", guarded, v_BHTD, name=f"{name}/pv")
    out = w.op("Transpose", out, perm=[2, 0, 1, 3] if variant.sequence_major else [0, 2, 1, 3])
    return w.dense(w.op("Reshape", out, w.ints(0, 0, shape.hidden)), shape.hidden, shape.hidden)


def _masked(w: GraphWriter, scores: ir.Value, mask_B11T: ir.Value, variant: Variant) -> ir.Value:
    hidden = w.const(-np.inf)
    if variant.attention == "bias":
        return w.op("Add", scores, w.op("Where", mask_B11T, w.const(0.0), hidden))
    if variant.attention == "expanded":
        mask_B11T = w.op("Expand", mask_B11T, w.op("Shape", scores))
    return w.op("Where", mask_B11T, scores, hidden)


def _feed_forward(w: GraphWriter, x: ir.Value, shape: Shape, variant: Variant) -> ir.Value:
    size = shape.feed_forward // variant.chunks
    total = w.op("Add", x, w.weight(shape.hidden))
    for _ in range(variant.chunks):
        inner = w.op("Gelu", w.dense(x, shape.hidden, size), approximate="none")
        total = w.op("Add", total, w.op("MatMul", inner, w.weight(size, shape.hidden)))
    return total


def _pool(w: GraphWriter, x_BTE: ir.Value, attention_mask: ir.Value) -> ir.Value:
    mask_BT1 = w.op("Cast", w.op("Unsqueeze", attention_mask, w.ints(2)), to=ir.DataType.FLOAT16)
    total = w.op("ReduceSum", w.op("Mul", x_BTE, mask_BT1), w.ints(1), keepdims=0)
    count = w.op("Max", w.op("ReduceSum", mask_BT1, w.ints(1), keepdims=0), w.const(1e-4))
    mean = w.op("Div", total, count)
    length = w.op("ReduceL2", mean, w.ints(1), keepdims=1)
    return w.op("Div", mean, w.op("Max", length, w.const(1e-4)))


def leanest(shape: Shape, variant: Variant) -> ir.Model:
    """The encoder: int64 inputs [B,T]; outputs `last_hidden_state` [B,T,E] and `sentence_embedding` [B,E]."""
    w = GraphWriter()
    ids, mask, types = inputs = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["batch", "seq"])) for name in INPUTS
    ]
    length = w.op("Shape", ids, start=1, end=2)
    positions = w.op("Slice", w.weight(shape.positions, shape.hidden), w.ints(0), length, w.ints(0))
    words = w.op("Gather", w.weight(shape.vocabulary, shape.hidden), ids, axis=0)
    words = w.op("Add", words, w.op("Gather", w.weight(2, shape.hidden), types, axis=0))
    x = w.norm(w.op("Add", words, positions), shape.hidden)
    if variant.sequence_major:
        x = w.op("Transpose", x, perm=[1, 0, 2])
    keep_B11T = w.op("Unsqueeze", w.op("Cast", mask, to=ir.DataType.BOOL), w.ints(1, 2))
    for layer in range(shape.layers):
        attended = _attention(w, x, keep_B11T, shape, variant, f"layer{layer}")
        x = w.norm(w.op("Add", x, attended), shape.hidden)
        x = w.norm(_feed_forward(w, x, shape, variant), shape.hidden)
    if variant.sequence_major:
        x = w.op("Transpose", x, perm=[1, 0, 2])
    outputs = [x, _pool(w, x, mask)]
    dims = (["batch", "seq", shape.hidden], ["batch", shape.hidden])
    for value, name, dim in zip(outputs, ("last_hidden_state", "sentence_embedding"), dims, strict=True):
        value.name, value.type, value.shape = name, ir.TensorType(ir.DataType.FLOAT16), ir.Shape(dim)
    graph = ir.Graph(
        inputs, outputs, nodes=w.tape.nodes, initializers=w.tape.initializers, opset_imports={"": 23}, name="leanest"
    )
    return ir.Model(graph, ir_version=11)


def anchors(shape: Shape, variant: Variant) -> dict[str, tuple[str, ...]]:
    """Node names by attention, for the proof that it is fused."""
    parts = ("pv",) if variant.attention == "operator" else ("qk", "softmax", "pv")
    return {f"layer{layer}": tuple(f"layer{layer}/{part}" for part in parts) for layer in range(shape.layers)}


def save(path: Path, shape: Shape | None = None, variant: Variant | None = None) -> Path:
    """Writes the encoder to `path`."""
    ir.save(leanest(shape or Shape(), variant or Variant()), path)
    return path
