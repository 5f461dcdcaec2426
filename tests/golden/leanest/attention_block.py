"""One attention block for TensorRT, written by hand: x, projections, heads, an attention that is given, projection.

Nothing of the project's own lowering is imported. Weights are random; scratch memory does not depend on them.

Shape legend: B batch, S queries, T keys, H heads, G key/value heads, D head dim, Dv value dim, E = 256 model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from graph_writer import GraphWriter

from attnport.artifacts import EngineRecord, IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import prove, read_engine_text

MODEL_DIM = 256
HALF, INT32, INT64, BOOL = ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL


@dataclass(frozen=True)
class Sizes:
    """Heads, key/value heads, head dim, value dim; the defaults are those of FACTS' one-block figures."""

    heads: int = 8
    groups: int = 8
    depth: int = 32
    value_depth: int = 32


class Block(GraphWriter):
    """Adds nodes to one graph; `q`, `k`, `v` are `[B,H,S,D]`, `[B,G,T,D]`, `[B,G,T,Dv]`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.inputs: list[ir.Value] = []
        self.specs: list[TensorSpec] = []
        self.anchors: tuple[str, ...] = ()
        self.x = self.input("x", HALF, "batch", "seq", MODEL_DIM)
        self.q = self._heads(self.x, sizes.heads, sizes.depth)
        self.k = self._heads(self.x, sizes.groups, sizes.depth)
        self.v = self._heads(self.x, sizes.groups, sizes.value_depth)

    def input(self, name: str, dtype: ir.DataType, *dims: int | str) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))
        self.inputs.append(value)
        self.specs.append(TensorSpec(name, {HALF: "float16", INT64: "int64", BOOL: "bool"}[dtype], dims))
        return value

    def index(self, axis: str) -> ir.Value:
        """The index of a query (`i`) or key (`j`) in int32, over its axis of the scores."""
        size = self.op("Shape", self.q if axis == "i" else self.v, start=2, end=3)
        end = self.op("Squeeze", self.op("Cast", size, to=INT32))
        steps = self.op("Range", self.const(0, np.int32), end, self.const(1, np.int32))
        return self.op("Unsqueeze", steps, self.ints(0, 1, 3) if axis == "i" else self.ints(0, 1, 2))

    def int32(self, value: ir.Value, *axes: int) -> ir.Value:
        """An int64 input as int32, with more axes."""
        return self.op("Unsqueeze", self.op("Cast", value, to=INT32), self.ints(*axes))

    def padding(self) -> ir.Value:
        """The keep-mask `[B,1,1,T]` of an int64 input."""
        mask = self.input("mask", INT64, "batch", "seq")
        return self.op("Unsqueeze", self.op("Cast", mask, to=BOOL), self.ints(1, 2))

    def operator(self, mask: ir.Value | None = None, **attributes: Any) -> ir.Value:
        """One `Attention` operator."""
        self.anchors = ("pv",)
        inputs = (self.q, self.k, self.v) if mask is None else (self.q, self.k, self.v, mask)
        return self.op("Attention", *inputs, name="pv", scale=self.sizes.depth**-0.5, **attributes)

    def scores(self) -> ir.Value:
        """Scaled products `[B,H,S,T]`."""
        product = self.op("MatMul", self.q, self.op("Transpose", self.k, perm=[0, 1, 3, 2]), name="qk")
        return self.op("Mul", product, self.const(self.sizes.depth**-0.5))

    def hidden(self, keep: ir.Value, scores: ir.Value) -> ir.Value:
        """-inf where `keep` is false."""
        low = self.const(-np.inf, np.float32 if scores.dtype == ir.DataType.FLOAT else np.float16)
        return self.op("Where", keep, scores, low)

    def mapped(self, keep: ir.Value) -> ir.Value:
        """A mask whose hidden tiles the builder has skipped by a map that is made at run time."""
        return self.op("Equal", keep, self.const(True, np.bool_))

    def products(self, scores: ir.Value) -> ir.Value:
        """Softmax and product with v; zero for a row with no allowed key, on the output."""
        self.anchors = ("qk", "softmax", "pv")
        output = self.op("MatMul", self.op("Softmax", scores, name="softmax", axis=-1), self.v, name="pv")
        return self.op("Where", self.op("IsNaN", output), self.const(0.0), output)

    def save(self, attended: ir.Value, path: Path) -> None:
        """Writes the block with its output projection."""
        merged = self.op("Transpose", attended, perm=[0, 2, 1, 3])
        width = self.sizes.heads * self.sizes.value_depth
        y = self.dense(self.op("Reshape", merged, self.ints(0, 0, width)), width, MODEL_DIM)
        y.name, y.type, y.shape = "y", ir.TensorType(HALF), ir.Shape(["batch", "seq", MODEL_DIM])
        graph = ir.Graph(
            self.inputs,
            [y],
            nodes=self.tape.nodes,
            initializers=self.tape.initializers,
            opset_imports={"": 23},
            name="block",
        )
        ir.save(ir.Model(graph, ir_version=11), path)

    def _heads(self, x: ir.Value, heads: int, depth: int) -> ir.Value:
        split = self.op("Reshape", self.dense(x, MODEL_DIM, heads * depth), self.ints(0, 0, heads, depth))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])


Write = Callable[[Block], ir.Value]


def dims(batch: int, sequence: int, specs: Sequence[TensorSpec]) -> tuple[Dim, ...]:
    """The named dims of the inputs, up to the sizes that are asked for."""
    largest = {"batch": batch, "seq": sequence}
    names = dict.fromkeys(dim for spec in specs for dim in spec.dims if isinstance(dim, str))
    return tuple(Dim(name, 1, largest[name], largest[name]) for name in names)


def engine(
    write: Write, folder: Path, sizes: Sizes | None = None, *, batch: int = 4, sequence: int = 4096
) -> tuple[EngineRecord, object, str]:
    """Builds the block; returns the record, the proof that one kernel is its attention, and the tiles that it skips."""
    block = Block(sizes or Sizes())
    block.save(write(block), folder / "block.onnx")
    io = IOContract(tuple(block.specs), (), dims(batch, sequence, block.specs))
    record = build_engine("tensorrt_rtx", folder / "block.onnx", io, folder / "block.engine")
    text = read_engine_text(folder / "block.engine")
    tiles = "; ".join(dict.fromkeys(kernel.tiles for graph in text.graphs for kernel in graph if kernel.tiles))
    return record, prove(text, block.anchors, 1), tiles
