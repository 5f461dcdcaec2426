"""Converts a graph to a lower opset: replaces newer operators by their definitions in the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnport.errors import ExportError, whole_cause

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


def to_opset(model: ir.Model, opset: int) -> int:
    """Lowers `model` to `opset`, in place; returns how many operators were expanded.

    An operator that the opset does not have is replaced by its function body in the ONNX standard. An operator that it
    has is kept: later versions with the same signature only add types, and the checker runs at the end.

    Raises:
        ExportError: an operator has no form at that opset (the message names it and its node), or the result is not
            valid.
    """
    import onnx
    import onnx_ir as ir
    import onnx_ir.passes.common as passes

    if model.graph.opset_imports[""] <= opset:
        return 0
    expanded = 0
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.domain == "" and not _fits(node, opset):
            function = _definition(node, opset, model.graph.opset_imports[""])
            function.name, function.domain = f"{node.op_type}_{expanded}", "attnport.expanded"
            model.functions[function.identifier()] = function
            node.op_type, node.domain = function.name, function.domain
            expanded += 1
    model.graph.opset_imports[""] = opset
    if expanded:
        model.graph.opset_imports["attnport.expanded"] = 1
        for function in model.functions.values():
            function.opset_imports[""] = opset
        passes.InlinePass()(model)
        passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]  # its __init__ has no types
        passes.RemoveUnusedOpsetsPass()(model)
    model.ir_version = min(model.ir_version or 10, 8 if opset <= 18 else 11)
    try:
        passes.CheckerPass(full_check=True)(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as err:
        raise ExportError(
            f"the graph is not valid at opset {opset}: {whole_cause(err)}",
            hint="Leave that target out, or rewrite the operator named above in the module.",
        ) from err
    return expanded


def _fits(node: ir.Node, opset: int) -> bool:
    """Whether an operator exists at `opset` with the attributes and inputs that the node uses.

    Attributes that the opset does not know are removed if they have their default value.
    """
    import onnx

    try:
        older = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    known = set(older.attributes)
    extra = [name for name in node.attributes if name not in known and not _is_default(node, name)]
    for name in list(node.attributes):
        if name not in known and name not in extra:
            del node.attributes[name]
    return not extra and len(node.inputs) <= older.max_input


def _is_default(node: ir.Node, name: str) -> bool:
    """Whether an attribute has its default value."""
    import onnx

    version = node.graph.opset_imports.get("") if node.graph is not None else None
    schema = onnx.defs.get_schema(node.op_type, version or onnx.defs.onnx_opset_version(), "")
    default = schema.attributes[name].default_value if name in schema.attributes else None
    if default is None or not default.name:
        return False
    expected = onnx.helper.get_attribute_value(default)
    return bool(node.attributes[name].value == (expected.decode() if isinstance(expected, bytes) else expected))


def _definition(node: ir.Node, opset: int, version: int) -> ir.Function:
    """The function body that the standard gives for a node's operator, in operators that `opset` has."""
    import onnx
    import onnx_ir as ir

    schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    body = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        version = _nearest(schema.context_dependent_function_opset_versions, opset)
        types = [_type_proto(value).SerializeToString() for value in node.inputs]
        proto = ir.serde.serialize_node(node).SerializeToString()
        body.ParseFromString(schema.get_context_dependent_function_with_opset_version(version, proto, types))
    elif schema.has_function:
        body.ParseFromString(schema.get_function_with_opset_version(_nearest(schema.function_opset_versions, opset)))
    # A body lists optional outputs even if it does not compute them for this node.
    computed = {name for inner in body.node for name in inner.output}
    kept = [name for name in body.output if name in computed]
    del body.output[:]
    body.output.extend(kept)
    function = ir.serde.deserialize_function(body)
    if not len(function) or not all(_fits(inner, opset) for inner in function):
        raise ExportError(
            f"node {node.name}: {node.op_type} does not exist at opset {opset} and the standard does not define it by "
            "operators that do.",
            hint="Leave that target out, or rewrite this operator in the module.",
        )
    return function


def _nearest(versions: list[int], opset: int) -> int:
    """The newest version that is `opset` or older; without any, the oldest version."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _type_proto(value: ir.Value | None) -> onnx.TypeProto:
    import onnx
    import onnx_ir as ir

    if value is None or value.type is None:
        return onnx.TypeProto()
    return ir.serde.serialize_type(value.type)
