"""Measures how large the numbers in a graph become: adds the largest magnitude of each tensor as an output."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

PREFIX = "largest/"


def measure_ranges(model: ir.Model, names: Collection[str]) -> tuple[str, ...]:
    """Adds, in place, an output `largest/NAME` for each float32 tensor called one of `names`: the largest finite
    magnitude in it, 0 for a tensor without elements or finite numbers.

    Only the scalars leave the graph, so that a large model needs no more memory than a usual run.

    Returns:
        The names of the tensors that were found.
    """
    import onnx_ir as ir

    graph = model.graph
    zero = ir.Value(name=f"{PREFIX}zero", const_value=ir.tensor(np.zeros(1, np.float32), name=f"{PREFIX}zero"))
    zero.dtype, zero.shape = ir.DataType.FLOAT, ir.Shape([1])
    flat = ir.Value(name=f"{PREFIX}flat", const_value=ir.tensor(np.array([-1]), name=f"{PREFIX}flat"))
    flat.dtype, flat.shape = ir.DataType.INT64, ir.Shape([1])
    for constant in (zero, flat):
        graph.register_initializer(constant)
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    measured = []
    for value in values:
        if value.name in names and value.dtype == ir.DataType.FLOAT:
            measured.append(str(value.name))
            graph.outputs.append(_largest(graph, value, zero, flat))
    return tuple(measured)


def _largest(graph: ir.Graph, value: ir.Value, zero: ir.Value, flat: ir.Value) -> ir.Value:
    import onnx_ir as ir

    def op(op_type: str, *inputs: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT, **attributes: int) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes=attributes or None)
        node.name = f"{PREFIX}{op_type}/{value.name}"
        node.outputs[0].name, node.outputs[0].dtype = f"{node.name}/output", dtype
        graph.append(node)
        return node.outputs[0]

    row = op("Reshape", value, flat)
    magnitude = op("Abs", row)
    # Hidden scores are -inf on purpose, which half precision has too, so only finite magnitudes count.
    finite = op("Less", magnitude, _infinity(graph), dtype=ir.DataType.BOOL)
    counted = op("Concat", op("Where", finite, magnitude, zero), zero, axis=0)
    largest = op("ReduceMax", counted, keepdims=0)
    largest.name, largest.shape = f"{PREFIX}{value.name}", ir.Shape([])
    return largest


def _infinity(graph: ir.Graph) -> ir.Value:
    import onnx_ir as ir

    name = f"{PREFIX}infinity"
    if name not in graph.initializers:
        infinity = ir.Value(name=name, const_value=ir.tensor(np.array([np.inf], np.float32), name=name))
        infinity.dtype, infinity.shape = ir.DataType.FLOAT, ir.Shape([1])
        graph.register_initializer(infinity)
    return graph.initializers[name]
