"""Precision plans: writes half precision into the graph, as TensorRT needs it (strongly typed since 11.0).

`fp16` and `bf16` cast the whole module: every float32 becomes the half type. `auto` is fp16, except for the nodes that
a search found to need float32. `*_islands` leave the graph in float32: the lowering casts q, k and v around attention,
and this pass does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import numpy as np

from attnport.artifacts import PLANS
from attnport.errors import ExportError
from attnport.exporter.naming import all_nodes, all_values, branches
from attnport.exporter.precision.islands import (
    STAYS,
    cast_for,
    join_casts,
    keep_islands,
    keep_positions,
    keep_scales,
)
from attnport.onnx_graph import ir


def apply_plan(model: ir.Model, plan: str, islands: Collection[str] = ()) -> int:
    """Casts the graph to the plan's type, in place; returns how many tensors and nodes were changed.

    A constant of one element that is finite and not zero stays so: an epsilon of 1e-12 would become 0 in fp16, and a
    division by it infinite. Weights are rounded as torch rounds them.

    Args:
        islands: The names of nodes that stay in float32, with the inputs that only they read and the outputs that they
            compute.

    Raises:
        ExportError: the graph has branches (`If`, `Loop`), whose types would have to change with it.
    """
    if PLANS[plan].islands or not PLANS[plan].half:
        return 0
    half = ir.DataType[PLANS[plan].half.upper()]
    for node in model.graph:
        if any(branches(node)):
            raise ExportError(
                f"precision {plan}: node {node.name} is control flow ({node.op_type}), whose branches are not cast.",
                hint="Use a plan that keeps float32, or islands around attention.",
            )
    changed = keep_positions(model) + keep_islands(model, islands)
    if half == ir.DataType.FLOAT16:
        keep_scales(model)
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        uses = value.uses()
        # A constant that is only read where float32 is required (the scales of Resize) is not rounded.
        if (value.const_value is not None or islands) and uses and all(_demands_float32(*use, half) for use in uses):
            continue
        if value.dtype == ir.DataType.FLOAT:
            _cast_value(value, half)
            changed += 1
    for node in list(model.graph):
        changed += _cast_node(node, half)
    if islands:
        join_casts(model)
    return changed


def widen(model: ir.Model) -> int:
    """Computes in float32 what a module in float32 casts to half precision itself, in place; returns how many values.

    For runtimes that have no kernels in half precision, or compute in float32 between such casts anyway. Inputs and
    outputs keep the types that they are declared in; a graph that has them in half precision is left as it is.
    """
    halves, float32 = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16), ir.DataType.FLOAT
    ends = {*model.graph.inputs, *model.graph.outputs}
    if any(value.dtype in halves for value in ends) or any(any(branches(node)) for node in model.graph):
        return 0
    changed = 0
    for value in all_values(model):
        if value.dtype not in halves:
            continue
        if (held := value.const_value) is not None:
            value.const_value = ir.tensor(held.numpy().astype(np.float32), name=value.name)
        value.dtype = float32
        changed += 1
    for node in all_nodes(model) if changed else ():
        for name in ("to", "dtype"):
            if name in node.attributes and node.attributes[name].as_int() in halves:
                node.attributes[name] = ir.AttrInt64(name, float32)
        if "value" in node.attributes and node.attributes["value"].type == ir.AttributeType.TENSOR:
            tensor = node.attributes["value"].as_tensor()
            if tensor.dtype in halves:
                node.attributes["value"] = ir.AttrTensor("value", ir.tensor(tensor.numpy().astype(np.float32)))
    return changed


def _cast_value(value: ir.Value, half: ir.DataType) -> None:
    if (held := value.const_value) is not None:
        # The weight is cast when it is written, since all weights of a model at once may not fit into memory.
        value.const_value = ir.LazyTensor(
            lambda: _halved(held, half),
            dtype=half,
            shape=ir.Shape(held.shape.numpy()),
            name=value.name,
        )
    value.dtype = half


def _halved(held: ir.TensorProtocol, half: ir.DataType) -> ir.TensorProtocol:
    """A weight in the half type; a weight in a file maps the whole file, and lets go of it again."""
    cast = ir.tensor(to_half(held.numpy(), half))
    if isinstance(held, ir.ExternalTensor):
        with contextlib.suppress(BufferError):  # somebody else reads it
            held.release()
    return cast


def to_half(array: np.ndarray[Any, Any], half: ir.DataType) -> np.ndarray[Any, Any]:
    """`array` in the half type; an array of one finite non-zero number stays finite and non-zero."""
    import ml_dtypes

    dtype = half.numpy()
    with np.errstate(over="ignore", under="ignore"):
        cast = array.astype(dtype)
        if array.size != 1 or not np.isfinite(array).all() or not array.any():
            return cast
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types
        least, most = float(info.smallest_subnormal), float(info.max)
        magnitude = np.clip(np.abs(cast.astype(np.float64)), least, most)
        return np.asarray(np.copysign(magnitude, array)).astype(dtype).reshape(array.shape)


def _cast_node(node: ir.Node, half: ir.DataType) -> int:
    """Gives a node's outputs the half type; an operator without a half form computes in float32 between casts."""
    float32 = ir.DataType.FLOAT
    changed = 0
    if STAYS in node.metadata_props:
        return _keep_float32(node, half)
    _name_default_type(node)
    for name in ("to", "dtype"):
        if name in node.attributes and node.attributes[name].as_int() == float32:
            node.attributes[name] = ir.AttrInt64(name, half)
            changed += 1
    if "value" in node.attributes and node.attributes["value"].type == ir.AttributeType.TENSOR:
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype == float32:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(to_half(tensor.numpy(), half)))
            changed += 1
    outputs = [value for value in node.outputs if value.dtype == float32]
    if outputs and not _takes(node, half):
        _compute_in_float32(node, outputs, half)
        return changed + 1
    for at, value in enumerate(node.inputs):
        if value is not None and value.dtype == half and _demands_float32(node, at, half):
            _read_in_float32(node, at, value)
            changed += 1
    for value in outputs:
        value.dtype = half
    return changed + bool(outputs)


def _keep_float32(node: ir.Node, half: ir.DataType) -> int:
    """Casts the inputs of a node that stays in float32 back from the half type."""
    halves = [(at, value) for at, value in enumerate(node.inputs) if value is not None and value.dtype == half]
    for at, value in halves if node.op_type != "Cast" else ():
        _read_in_float32(node, at, value)
    return len(halves)


def _name_default_type(node: ir.Node) -> None:
    """Writes out the float32 that is an operator's default."""
    if node.domain == "" and node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float32)))
    for name in ("value_float", "value_floats"):
        if node.op_type == "Constant" and name in node.attributes:
            array = np.array(node.attributes[name].value, np.float32)
            del node.attributes[name]
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))


def _demands_float32(node: ir.Node, at: int, half: ir.DataType) -> bool:
    """Whether an input has to be float32: the node stays in float32, or the standard does not allow the half type."""
    if STAYS in node.metadata_props:
        return True
    if node.domain != "" or not _takes(node, half):
        return False
    formal = _schema(node).inputs
    return _type_name(half) not in formal[min(at, len(formal) - 1)].types


def _schema(node: ir.Node) -> Any:
    import onnx

    assert node.graph is not None
    return onnx.defs.get_schema(node.op_type, node.graph.opset_imports[""], "")


def _type_name(half: ir.DataType) -> str:
    return "tensor(float16)" if half.name == "FLOAT16" else "tensor(bfloat16)"


def _takes(node: ir.Node, half: ir.DataType) -> bool:
    return node.domain != "" or any(_type_name(half) in output.types for output in _schema(node).outputs)


def _label(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)


def _compute_in_float32(node: ir.Node, outputs: list[ir.Value], half: ir.DataType) -> None:
    """Puts casts around a node, whose `outputs` are to have the half type for the nodes that read them."""
    for at, value in enumerate(node.inputs):
        if value is not None and value.dtype == half:
            _read_in_float32(node, at, value)
    for at, value in enumerate(outputs):
        # The cast takes over the name: the value may be an output of the graph, or be looked up by its name.
        cast_for(value, half, list(value.uses()), f"{_label(node)}/to_half_{at}", takes_over=True)


def _read_in_float32(node: ir.Node, at: int, value: ir.Value) -> None:
    """Casts one input of a node to float32, for this node alone."""
    assert node.graph is not None
    cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"{_label(node)}/to_fp32_{at}")
    out = cast.outputs[0]
    out.dtype, out.shape, out.name = ir.DataType.FLOAT, value.shape, f"{cast.name}/output"
    node.graph.insert_before(node, cast)
    node.replace_input_with(at, out)
