"""Islands of float32 in a graph of half precision: which nodes stay, and no more casts at their borders than needed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from attnport.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

STAYS = "attnport.float32"
"""The mark, in a node's metadata, of what a lowering computes in float32 whatever the plan."""
_SHARED_ELEMENTS = 1024
"""Constants of at most so many elements get a copy in float32 where an island shares them with the rest."""


def keep_islands(model: ir.Model, names: Collection[str]) -> int:
    """Marks the nodes called `names` to stay in float32, and casts what leaves them; returns how many there are.

    A graph output that such a node makes stays in float32, since half precision may not be able to hold it.

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
    _own_constants(model, kept)
    for node in kept:
        for value in node.outputs:
            if value.dtype is not None and value.dtype.name == "FLOAT":
                _cast_outside(model, node, value)
    return len(kept)


def _own_constants(model: ir.Model, kept: Collection[ir.Node]) -> None:
    """An epsilon that an island shares with what is cast would be rounded on its way: each has its own."""
    import onnx_ir as ir

    for value in list(model.graph.initializers.values()):
        inside = [(node, at) for node, at in value.uses() if node in kept]
        if not inside or len(inside) == len(list(value.uses())) or value.const_value is None:
            continue
        if value.const_value.size <= _SHARED_ELEMENTS and value.dtype == ir.DataType.FLOAT:
            name = f"{value.name}/fp32"
            tensor = ir.tensor(value.const_value.numpy(), name=name)
            own = ir.Value(name=name, const_value=tensor, shape=value.shape)
            own.dtype = ir.DataType.FLOAT  # a type object of its own: the other one's is changed in place
            model.graph.register_initializer(own)
            for node, at in inside:
                node.replace_input_with(at, own)


def _cast_outside(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Puts a cast, which the plan gives its type, between a value and those of its users that do not stay."""
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
    """Leaves one cast of a value to a type, and none to half precision and back; returns how many casts go.

    What is cast to half precision for others is read in float32 by an island behind it, as it was made.
    """
    first: dict[tuple[ir.Value, int], ir.Value] = {}
    gone = 0
    for node in list(model.graph):
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        out, wide = node.outputs[0], _before_rounding(node)
        to = node.attributes["to"].as_int()
        made = wide if wide is not None else first.setdefault((node.inputs[0], to), out)
        if made is not out and not out.is_graph_output():
            out.replace_all_uses_with(made)
            gone += 1
    return gone


def _before_rounding(node: ir.Node) -> ir.Value | None:
    """Of a cast to float32 of what was cast from it: the value before both."""
    import onnx_ir as ir

    assert node.inputs[0] is not None
    back = node.inputs[0].producer()
    if node.outputs[0].dtype != ir.DataType.FLOAT or back is None or back.op_type != "Cast" or back.domain:
        return None
    wide = back.inputs[0]
    rounded = node.inputs[0].dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return wide if rounded and wide is not None and wide.dtype == ir.DataType.FLOAT else None
