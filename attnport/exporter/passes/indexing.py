"""Rewrites tensors indexed by two grids, as the older exporter writes them, with the standard's `GatherND`.

TorchScript's exporter turns `mask[b, j]` into a gather from the flattened mask at `j + b * T`, which no longer shows
which axis is which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.passes.known_sizes import KnownSizes, Size
from attnport.exporter.passes.sizes import Inference

if TYPE_CHECKING:
    import onnx_ir as ir

_MOVES = ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Cast", "Identity")


def index_by_grid(model: ir.Model) -> int:
    """Rewrites every `flat(x)[j + b * T]` over whole axes of x `[B,T]` as `GatherND(x, (b, j))`; returns how many.

    Both indices have to count through their axis from its start (`Range`), so that they are within bounds. A reshape of
    a reshape becomes one reshape, so that later code reads one step.
    """
    import onnx_ir as ir

    known = Inference(model)
    known.run()
    _join_reshapes(model, known)
    build, changed = Builder(model), 0
    for node in [node for node in model.graph if node.op_type == "Gather" and node.domain == ""]:
        read = _read(node, known)
        if read is None:
            continue
        source, rows, columns, at = read
        build.before, build.scope = node, node.name or "gather"
        shape = build.op("Shape", at, name="shape", dtype=ir.DataType.INT64)
        last = build.const([-1], np.int64)
        grids = [build.op("Unsqueeze", build.op("Expand", grid, shape), last) for grid in (rows, columns)]
        gathered = build.op("GatherND", source, build.op("Concat", *grids, axis=-1), name="grid")
        rank = len(node.outputs[0].shape) if node.outputs[0].shape is not None else 0
        if at.shape is not None and rank == len(at.shape) + 1:
            gathered = build.op("Unsqueeze", gathered, last, name="column")
        build.replace(node.outputs[0], gathered)
        changed += 1
    return changed


def _read(node: ir.Node, known: KnownSizes) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value] | None:
    """The indexed tensor, its row and column indices, and the index that is their sum."""
    flat, at = node.inputs[:2]
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    flattened = flat.producer() if flat is not None else None
    if axis != 0 or at is None or flattened is None or flattened.op_type not in ("Reshape", "Flatten"):
        return None
    source = flattened.inputs[0]
    sizes, after = (known.sizes.get(value) if value is not None else None for value in (source, flat))
    total = at.producer()
    if source is None or sizes is None or after is None or len(sizes) != 2 or after[1:] not in ((), (1,)):
        return None
    if total is None or total.op_type != "Add":
        return None
    for columns, high in (total.inputs[:2], total.inputs[1::-1]):
        product = high.producer() if high is not None else None
        if columns is None or product is None or product.op_type != "Mul":
            continue
        for rows, width in (product.inputs[:2], product.inputs[1::-1]):
            content = known.contents.get(width) if width is not None else None
            whole = content is not None and content.size == 1 and content.item() == sizes[1]
            if rows is not None and whole and [_counts_to(grid, known) for grid in (rows, columns)] == list(sizes):
                return source, rows, columns, at
    return None


def _counts_to(value: ir.Value, known: KnownSizes) -> Size | None:
    """n if a tensor is `Range(0, n, 1)` along one of its axes, else None."""
    node = value.producer()
    while node is not None and node.op_type in _MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Range":
        return None
    start, limit, delta = (known.content(node, at) for at in range(3))
    if start is None or limit is None or delta is None or start.item() != 0 or delta.item() != 1:
        return None
    return limit.item()


def _join_reshapes(model: ir.Model, known: KnownSizes) -> None:
    """Lets each reshape skip a reshape before it, unless it copies a size of its input."""
    for node in model.graph:
        before = node.inputs[0].producer() if node.op_type == "Reshape" and node.inputs[0] is not None else None
        target = known.content(node, 1)
        if before is not None and before.op_type == "Reshape" and target is not None and 0 not in list(target):
            node.replace_input_with(0, before.inputs[0])
