"""Angles of positions stay in float32 in a graph of half precision: rotary and sinusoidal embeddings.

A position times a frequency is an angle. In fp16 its error at position 500 is a quarter of a radian, in bf16 two
whole ones, and integers above 2048 (bf16: 256) are not even exact. Modules compute angles in float32 whatever they are
cast to, and what they say about it is lost where the graph was traced in float32. Source: the rotary embeddings of
transformers, which leave autocast for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.passes.islands import STAYS

if TYPE_CHECKING:
    import onnx_ir as ir

_WAVES = ("Sin", "Cos")
# What angles are made by. No Gather: a row of an embedding is data, and a network of sines must not stay in float32.
_MAKES = {"Cast", "Mul", "Div", "Add", "Sub", "Neg", "Pow", "Exp", "Reciprocal", "MatMul", "Identity", "Constant"}
_MOVES = {"Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Concat", "Slice", "Tile", "Range"}


def keep_angles(model: ir.Model) -> int:
    """Marks what every sine and cosine of positions is made by, and casts what leaves it; returns how many nodes.

    What is made of integers and constants is meant; a sine of activations is left alone.
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
    """The nodes from integers and constants to `wave`, itself among them; None where anything else comes in."""
    found: dict[ir.Node, None] = {wave: None}
    left = [wave]
    while left:
        for value in left.pop().inputs:
            if value is None or value.const_value is not None or not _is_float32(value):
                continue
            node = value.producer()
            if node is None or node.domain != "" or node.op_type not in _MAKES | _MOVES:
                return None
            if node not in found:
                found[node] = None
                left.append(node)
    return list(found)


def _is_float32(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.name == "FLOAT"


def _cast_outside(model: ir.Model, node: ir.Node, value: ir.Value, kept: dict[ir.Node, None]) -> None:
    """Puts a cast, which the plan gives its type, between a value and those of its users that do not stay."""
    import onnx_ir as ir

    name = str(value.name)
    cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"{name}/to_plan")
    out = cast.outputs[0]
    out.dtype, out.shape = ir.DataType.FLOAT, value.shape
    # The cast takes the name over: the value may be an output of the graph, or wanted by its name.
    value.name, out.name = f"{name}/fp32", name
    for user, at in list(value.uses()):
        if user not in kept and user is not cast:
            user.replace_input_with(at, out)
    for at, output in enumerate(model.graph.outputs):
        if output is value:
            model.graph.outputs[at] = out
    model.graph.insert_after(node, cast)
