"""Precision plans: half precision is written into the graph; TensorRT, strongly typed since 11.0, takes it from there.

`fp16` and `bf16` are the module cast: every float32 becomes the half type. `*_islands` leave the graph in float32; the
lowering casts q, k and v around attention, and the pass has nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir


def apply(model: ir.Model, plan: str) -> int:
    """Casts the graph to the plan's type, in place; returns how many tensors and nodes were changed.

    Constants of one element keep their sign of life: what is finite and not zero stays so (an epsilon of 1e-12 would
    become 0 in fp16 and divide by it). Weights are rounded as torch rounds them.
    """
    import onnx_ir as ir

    half = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}.get(plan)
    if half is None:
        return 0
    changed = 0
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        if value.dtype == ir.DataType.FLOAT:
            _cast_value(value, half)
            changed += 1
    for node in list(model.graph):
        changed += _cast_node(model, node, half)
    return changed


def _cast_value(value: ir.Value, half: ir.DataType) -> None:
    import onnx_ir as ir

    if value.const_value is not None:
        value.const_value = ir.tensor(to_half(value.const_value.numpy(), half), name=value.name)
    value.dtype = half


def to_half(array: np.ndarray[Any, Any], half: ir.DataType) -> np.ndarray[Any, Any]:
    """`array` in the half type; one finite non-zero number alone stays finite and non-zero."""
    import ml_dtypes

    dtype = half.numpy()
    with np.errstate(over="ignore", under="ignore"):
        cast = array.astype(dtype)
        if array.size != 1 or not np.isfinite(array).all() or not array.any():
            return cast
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        low, high = float(info.smallest_normal), float(info.max)
        magnitude = np.clip(np.abs(array.astype(np.float64)), low, high)
        return np.asarray(np.copysign(magnitude, array)).astype(dtype).reshape(array.shape)


def _cast_node(model: ir.Model, node: ir.Node, half: ir.DataType) -> int:
    """Retypes what a node makes; a node whose operator has no half form computes in float32 between casts."""
    import onnx_ir as ir

    float32 = ir.DataType.FLOAT
    changed = 0
    if "to" in node.attributes and node.attributes["to"].as_int() == float32:
        node.attributes["to"] = ir.AttrInt64("to", half)
        changed += 1
    if "value" in node.attributes and node.attributes["value"].type == ir.AttributeType.TENSOR:
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype == float32:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(to_half(tensor.numpy(), half)))
            changed += 1
    outputs = [value for value in node.outputs if value.dtype == float32]
    if outputs and not _takes(node, half):
        _island(model, node, outputs, half)
        return changed + 1
    for value in outputs:
        value.dtype = half
    return changed + bool(outputs)


def _takes(node: ir.Node, half: ir.DataType) -> bool:
    import onnx

    if node.domain != "":
        return True
    assert node.graph is not None
    schema = onnx.defs.get_schema(node.op_type, node.graph.opset_imports[""], "")
    wanted = "tensor(float16)" if half.name == "FLOAT16" else "tensor(bfloat16)"
    return any(wanted in output.types for output in schema.outputs)


def _island(model: ir.Model, node: ir.Node, outputs: list[ir.Value], half: ir.DataType) -> None:
    import onnx_ir as ir

    for at, value in enumerate(node.inputs):
        if value is not None and value.dtype == half:
            cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"{node.name}/to_fp32_{at}")
            cast.outputs[0].dtype = ir.DataType.FLOAT
            model.graph.insert_before(node, cast)
            node.replace_input_with(at, cast.outputs[0])
    for value in outputs:
        users = list(value.uses())
        back = ir.node("Cast", [value], attributes={"to": half}, name=f"{node.name}/to_half")
        back.outputs[0].dtype = half
        back.outputs[0].shape = value.shape
        model.graph.insert_after(node, back)
        for user, at in users:
            user.replace_input_with(at, back.outputs[0])
