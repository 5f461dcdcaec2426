"""Keeps the angles of rotary and sinusoidal embeddings in float32 in a graph of half precision.

An angle is a position times a frequency. At position 500 its error is a quarter of a radian in fp16 and two radians in
bf16, and integers above 2048 (bf16: 256) are not exact. Modules compute angles in float32 whatever they are cast to,
but a graph that was traced in float32 does not show which operations must stay in it. Source: the rotary embeddings of
transformers, which disable autocast for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.passes.islands import STAYS

if TYPE_CHECKING:
    import onnx_ir as ir

_WAVES = ("Sin", "Cos")
# Operators that compute angles. Gather is none: a row of an embedding is data, and sines of it may be rounded.
_MAKES = {"Cast", "Mul", "Div", "Add", "Sub", "Neg", "Pow", "Exp", "Reciprocal", "MatMul", "Identity", "Constant"}
_MOVES = {"Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Concat", "Slice", "Tile", "Range"}


def keep_angles(model: ir.Model) -> int:
    """Marks the nodes behind every sine and cosine of positions to stay in float32; returns how many there are.

    Positions are recognised by being computed from integers and constants alone; a sine of activations is not changed.
    Values that leave these nodes are cast.
    """
    kept: dict[ir.Node, None] = {}
    for node in model.graph:
        if node.op_type in _WAVES and node.domain == "":
            kept |= dict.fromkeys(_made_by(node) or ())
    for node in kept:
        node.metadata_props[STAYS] = "1"
    for node in kept:
        for value in node.outputs:
            if _is_float32(value) and (value.is_graph_output() or any(user not in kept for user, _ in value.uses())):
                _cast_outside(model, node, value, kept)
    return len(kept)


def _made_by(wave: ir.Node) -> list[ir.Node] | None:
    """The nodes from integers and constants up to `wave`, which is included; None if anything else is read."""
    nodes: dict[ir.Node, None] = {wave: None}
    pending = [wave]
    while pending:
        for value in pending.pop().inputs:
            if value is None or value.const_value is not None or not _is_float32(value):
                continue
            node = value.producer()
            if node is None or node.domain != "" or node.op_type not in _MAKES | _MOVES:
                return None
            if node not in nodes:
                nodes[node] = None
                pending.append(node)
    return list(nodes)


def _is_float32(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.name == "FLOAT"


def _cast_outside(model: ir.Model, node: ir.Node, value: ir.Value, kept: dict[ir.Node, None]) -> None:
    """Inserts a cast, whose type the plan changes later, between a value and the users that do not stay in float32."""
    import onnx_ir as ir

    name = str(value.name)
    cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"{name}/to_plan")
    out = cast.outputs[0]
    out.dtype, out.shape = ir.DataType.FLOAT, value.shape
    # The cast takes over the name: the value may be an output of the graph, or be looked up by its name.
    value.name, out.name = f"{name}/fp32", name
    for user, at in list(value.uses()):
        if user not in kept and user is not cast:
            user.replace_input_with(at, out)
    for at, output in enumerate(model.graph.outputs):
        if output is value:
            model.graph.outputs[at] = out
    model.graph.insert_after(node, cast)
