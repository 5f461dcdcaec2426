"""Keeps sizes on the host, for runtimes that compute them there and everything else on a device.

A size that meets a tensor of the device has to be copied there, in each call, and a graph with such a copy cannot be
captured as a CUDA graph. Found with ONNX Runtime 1.31.1: it makes a `Slice` of `Gather(table, Range(0, size, 1))` and
brings its bounds to the device and back; and causal masks add the length of the cache to the index of the query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder

if TYPE_CHECKING:
    import onnx_ir as ir

_OF_SIZES = ("Squeeze", "Unsqueeze", "Gather", "Slice", "Reshape", "Add", "Sub", "Mul", "Div", "Min", "Max", "Cast")


def keep_sizes_on_host(model: ir.Model) -> int:
    """Writes leading rows of a table as `Slice`, a range plus a size as another range, and a dim's size as an input's.

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
    import onnx_ir as ir

    if node.op_type != "Gather" or node.domain or ("axis" in node.attributes and node.attributes["axis"].as_int()):
        return None
    indices = node.inputs[1].producer() if node.inputs[1] is not None else None
    if (
        indices is None
        or indices.op_type != "Range"
        or _number(indices.inputs[0]) != 0
        or _number(indices.inputs[2]) != 1
    ):
        return None
    squeeze = indices.inputs[1].producer() if indices.inputs[1] is not None else None
    size = squeeze.inputs[0] if squeeze is not None and squeeze.op_type == "Squeeze" else None
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
    import onnx_ir as ir

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
    if ranged is None or ranged.op_type != "Range" or _number(ranged.inputs[2]) != 1:
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
    start = node.attributes["start"].as_int()
    end = node.attributes["end"].as_int() if "end" in node.attributes else len(value.shape)
    dims = list(value.shape)[start:end]
    name = None if len(dims) != 1 or isinstance(dims[0], int) else dims[0].value
    for given in build.model.graph.inputs:
        for axis, dim in enumerate(given.shape or ()):
            if name is not None and not isinstance(dim, int) and dim.value == name:
                return build.size(given, axis)
    return None


def _number(value: ir.Value | None) -> int | None:
    """A constant with one element; None for another value."""
    tensor = value.const_value if value is not None else None
    return int(tensor.numpy().reshape(())) if tensor is not None and tensor.size == 1 else None


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
