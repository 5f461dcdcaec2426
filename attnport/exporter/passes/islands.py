"""Islands of float32 in a graph of half precision: marks their nodes, and casts only what crosses their borders."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from attnport.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

STAYS = "attnport.float32"
"""The key in a node's metadata that keeps the node in float32 under every plan."""
_SHARED_ELEMENTS = 1024
"""Constants of at most this many elements are copied if an island shares them with nodes outside."""


def keep_islands(model: ir.Model, names: Collection[str]) -> int:
    """Marks the nodes called `names` to stay in float32, and casts their results; returns how many there are.

    A graph output that such a node computes stays in float32, since half precision may not be able to represent it.

    Raises:
        ExportError: there is no node of such a name.
    """
    import onnx_ir.passes.common as passes

    if not names:
        return 0
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    kept = {node: None for node in model.graph if node.name in names}
    missing = set(names) - {node.name for node in kept}
    if missing:
        raise ExportError(f"the graph has no node {min(missing)!r}, which is to stay in float32.")
    for node in kept:
        node.metadata_props[STAYS] = "1"
    _copy_shared_constants(model, kept)
    for node in kept:
        for value in node.outputs:
            if value.dtype is not None and value.dtype.name == "FLOAT":
                _cast_outside(model, node, value)
    return len(kept)


def _copy_shared_constants(model: ir.Model, kept: Collection[ir.Node]) -> None:
    """Copies the small constants that an island shares with nodes outside: a shared epsilon would be rounded."""
    import onnx_ir as ir

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


def _cast_outside(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Inserts a cast, whose type the plan changes later, between a value and the users that do not stay in float32."""
    import onnx_ir as ir

    outside = [(user, at) for user, at in value.uses() if STAYS not in user.metadata_props]
    if not outside:
        return
    cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"{value.name}/to_plan")
    out = cast.outputs[0]
    out.dtype, out.shape, out.name = ir.DataType.FLOAT, value.shape, f"{value.name}/half"
    for user, at in outside:
        user.replace_input_with(at, out)
    model.graph.insert_after(node, cast)


def join_casts(model: ir.Model) -> int:
    """Merges equal casts of a value, and bypasses casts to half precision and back; returns how many casts are unused.

    An island thus reads a float32 value as it was computed, also where other nodes read it in half precision.
    """
    first: dict[tuple[ir.Value, int], ir.Value] = {}
    bypassed = 0
    for node in list(model.graph):
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        out, wide = node.outputs[0], _before_rounding(node)
        to = node.attributes["to"].as_int()
        replacement = wide if wide is not None else first.setdefault((node.inputs[0], to), out)
        if replacement is not out and not out.is_graph_output():
            out.replace_all_uses_with(replacement)
            bypassed += 1
    return bypassed


def _before_rounding(node: ir.Node) -> ir.Value | None:
    """The float32 value before a cast to half precision and back to float32; None for any other cast."""
    import onnx_ir as ir

    assert node.inputs[0] is not None
    back = node.inputs[0].producer()
    if node.outputs[0].dtype != ir.DataType.FLOAT or back is None or back.op_type != "Cast" or back.domain:
        return None
    wide = back.inputs[0]
    rounded = node.inputs[0].dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return wide if rounded and wide is not None and wide.dtype == ir.DataType.FLOAT else None
