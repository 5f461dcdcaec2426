"""A sum and the RMS norm of it as ONNX Runtime's `SkipSimplifiedLayerNormalization`: one kernel on CUDA for two.

ONNX Runtime writes this operator by itself for `LayerNormalization`, but not for the standard's `RMSNormalization`.
Source: its schema in ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.builder import Builder
from attnport.exporter.forms.contrib import contrib
from attnport.exporter.fusion.moves import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir


def with_skip(model: ir.Model) -> int:
    """Writes `RMSNormalization(a + b)` of two values `[B,S,D]` as one operator, which gives the sum too.

    Returns:
        How many were written.
    """
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        total = node.inputs[0] if node.op_type == "RMSNormalization" and not node.domain else None
        add = total.producer() if total is not None else None
        if total is None or add is None or add.op_type != "Add" or not _fits(node, add):
            continue
        build.before, build.scope = add, node.name or "norm"
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        operands = *add.inputs, node.inputs[1]
        output = contrib(build, "SkipSimplifiedLayerNormalization", *operands, epsilon=epsilon)
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
    axis = norm.attributes["axis"].as_int() if "axis" in norm.attributes else -1
    stash = norm.attributes["stash_type"].as_int() if "stash_type" in norm.attributes else 1
    if axis not in (-1, 2) or stash != 1 or weight is None or total is None or weight.const_value is None:
        return False
    shapes = [dims_of(value) for value in (*add.inputs, total)]
    first = shapes[0]
    if first is None or len(first) != 3 or None in first or any(shape != first for shape in shapes):
        return False
    types = {value.dtype for value in (*add.inputs, total, weight) if value is not None}
    return len(types) == 1 and dims_of(weight) == first[2:]
