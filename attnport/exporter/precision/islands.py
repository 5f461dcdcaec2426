"""Islands of float32 in a graph of half precision: marks their nodes, and casts only what crosses their borders.

Islands are chosen by name, as a search found them, or are computed from positions and other integers: angles behind a
sine or cosine, as of rotary and sinusoidal embeddings, floats that become integers again, as of buckets of distances
and shares of a length, and float ranges. An angle is a position times a frequency. At position 500 its error is a
quarter of a radian in fp16 and two radians in bf16, and integers above 2048 (bf16: 256) are not exact. Modules compute
these in float32 whatever they are cast to, but a graph that was traced in float32 does not show which operations must
stay in it. Source: the rotary embeddings of transformers, which disable autocast for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from attnport.errors import ExportError
from attnport.onnx_graph import dims_of, ir, made_by, passes, scalar

STAYS = "attnport.float32"
"""The key in a node's metadata that keeps the node in float32 under every plan."""
_SHARED_ELEMENTS = 1024
"""Constants of at most this many elements are copied if an island shares them with nodes outside."""
_ENDS = {"Sin", "Cos", "Range"}
# Operators that compute with positions.
_MAKES = {"Cast", "Mul", "Div", "Add", "Sub", "Neg", "Pow", "Exp", "Log", "Sqrt", "Reciprocal", "MatMul", "Einsum",
          "Min", "Max", "Clip", "Abs", "Floor", "Ceil", "Round", "Sign", "Mod", "Where", "CumSum", "ReduceSum",
          "ReduceMax", "ReduceMin", "ConstantOfShape", "Identity", "Constant"}  # fmt: skip
_MOVES = {"Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Concat", "Slice", "Tile", "Range", "Gather"}


def keep_positions(model: ir.Model) -> int:
    """Marks the nodes behind every sine and cosine of positions, behind every integer that is made of floats, and float
    ranges to stay in float32; returns how many there are.

    Positions are recognised by being computed from integers and constants alone, or from an input with at most one
    number an item, such as the time of a diffusion model; a sine of activations is not changed. Values that leave these
    nodes are cast, also as outputs of the graph.
    """
    ends = [
        node for node in model.graph
        if node.domain == "" and (node.op_type in _ENDS or (node.op_type == "Cast" and _is_whole(node.outputs[0])))
    ]  # fmt: skip
    kept = dict.fromkeys(node for end in ends for node in _made_by(end))
    _keep(kept, cast_outputs=True)
    return len(kept)


def keep_scales(model: ir.Model) -> None:
    """Keeps `x * c` and `x / c` in float32 where fp16 has no such c.

    A factor below zero that is too large stays in fp16, and becomes the lowest number there: it is the -1e9 of a mask.
    """
    least, most = 2.0**-14, 65504.0
    kept: dict[ir.Node, None] = {}
    for node in model.graph:
        for by in node.inputs[:2] if node.op_type == "Mul" else node.inputs[1:2] if node.op_type == "Div" else ():
            number = float(scalar(by) or 0.0)
            if 0 < abs(number) < least or (most < abs(number) < math.inf and (number > 0 or node.op_type == "Div")):
                kept |= dict.fromkeys(filter(None, (node, by.producer() if by is not None else None)))
    _copy_shared_constants(model, kept)
    _keep(kept, cast_outputs=True)


def _is_whole(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def keep_islands(model: ir.Model, names: Collection[str]) -> int:
    """Marks the nodes called `names` to stay in float32, and casts their results; returns how many there are.

    A graph output that such a node computes stays in float32, since half precision may not be able to represent it.

    Raises:
        ExportError: there is no node of such a name.
    """
    if not names:
        return 0
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    kept = {node: None for node in model.graph if node.name in names}
    missing = set(names) - {node.name for node in kept}
    if missing:
        raise ExportError(f"the graph has no node {min(missing)!r}, which is to stay in float32.")
    _copy_shared_constants(model, kept)
    _keep(kept, cast_outputs=False)
    return len(kept)


def _made_by(end: ir.Node) -> list[ir.Node]:
    """The nodes from integers and constants up to `end`, which is included; none if anything else is read."""
    nodes: dict[ir.Node, None] = {end: None}
    pending = [end]
    while pending:
        for value in pending.pop().inputs:
            if value is None or value.const_value is not None or value.dtype != ir.DataType.FLOAT:
                continue
            dims = dims_of(value)
            if value.is_graph_input() and dims is not None and (len(dims) < 2 or dims[1:] == [1]):
                continue
            node = value.producer()
            if node is None or node.domain != "" or node.op_type not in _MAKES | _MOVES:
                return []
            table = node.inputs[0] if node.op_type == "Gather" else None
            if table is not None and (table.const_value is not None or made_by(table, "Constant")):
                return []  # a row of an embedding is data
            if node not in nodes:
                nodes[node] = None
                pending.append(node)
    return list(nodes)


def _copy_shared_constants(model: ir.Model, kept: Collection[ir.Node]) -> None:
    """Copies the small constants that an island shares with nodes outside: a shared epsilon would be rounded."""
    for value in list(model.graph.initializers.values()):
        inside = [(node, at) for node, at in value.uses() if node in kept]
        if not inside or len(inside) == len(list(value.uses())) or value.const_value is None:
            continue
        if value.const_value.size <= _SHARED_ELEMENTS and value.dtype == ir.DataType.FLOAT:
            name = f"{value.name}/fp32"
            tensor = ir.tensor(value.const_value.numpy(), name=name)
            copy = ir.Value(name=name, const_value=tensor, shape=value.shape)
            copy.dtype = ir.DataType.FLOAT  # a new type object: that of the shared constant is changed in place
            model.graph.register_initializer(copy)
            for node, at in inside:
                node.replace_input_with(at, copy)


def _keep(nodes: Collection[ir.Node], *, cast_outputs: bool) -> None:
    """Marks nodes, and casts what they compute, to a type that the plan changes later, for those that are not marked.

    Args:
        cast_outputs: Whether outputs of the graph are cast too.
    """
    nodes = [node for node in nodes if STAYS not in node.metadata_props]
    for node in nodes:
        node.metadata_props[STAYS] = "1"
    for value in (value for node in nodes for value in node.outputs if value.dtype == ir.DataType.FLOAT):
        outside = [(user, at) for user, at in value.uses() if STAYS not in user.metadata_props]
        takes_over = cast_outputs and value.is_graph_output()
        if outside or takes_over:
            cast_for(value, ir.DataType.FLOAT, outside, f"{value.name}/to_plan", takes_over=takes_over)


def cast_for(
    value: ir.Value, to: ir.DataType, users: Iterable[tuple[ir.Node, int]], name: str, *, takes_over: bool
) -> None:
    """Casts what a node computes, and has `users` read the cast in its place.

    Args:
        value: An output of a node.
        users: Nodes, each with the number of the input to replace.
        takes_over: Whether the cast takes over the value's name and its place among the graph's outputs.
    """
    node = value.producer()
    assert node is not None
    assert node.graph is not None
    cast = ir.node("Cast", [value], attributes={"to": to}, name=name)
    out = cast.outputs[0]
    out.dtype, out.shape, out.name = to, value.shape, f"{value.name}/half"
    for user, at in users:
        user.replace_input_with(at, out)
    if takes_over:
        out.name, value.name = value.name, f"{value.name}/fp32"
        for at, output in enumerate(node.graph.outputs):
            if output is value:
                node.graph.outputs[at] = out
    node.graph.insert_after(node, cast)


def join_casts(model: ir.Model) -> None:
    """Merges equal casts of a value, and bypasses casts to half precision and back.

    An island thus reads a float32 value as it was computed, also where other nodes read it in half precision.
    """
    first: dict[tuple[ir.Value, int], ir.Value] = {}
    for node in list(model.graph):
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        out, wide = node.outputs[0], _before_rounding(node)
        to = node.attributes["to"].as_int()
        replacement = wide if wide is not None else first.setdefault((node.inputs[0], to), out)
        if replacement is not out and not out.is_graph_output():
            out.replace_all_uses_with(replacement)


def _before_rounding(node: ir.Node) -> ir.Value | None:
    """The float32 value before a cast to half precision and back to float32; None for any other cast."""
    assert node.inputs[0] is not None
    back = node.inputs[0].producer()
    if node.outputs[0].dtype != ir.DataType.FLOAT or back is None or back.op_type != "Cast" or back.domain:
        return None
    wide = back.inputs[0]
    rounded = node.inputs[0].dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return wide if rounded and wide is not None and wide.dtype == ir.DataType.FLOAT else None
