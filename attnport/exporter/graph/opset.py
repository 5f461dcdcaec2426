"""Converts a graph to a lower opset: replaces newer operators by their definitions in the standard."""

from __future__ import annotations

from attnport.bodies import body_of, inline, put_in_place, schema_of
from attnport.errors import ExportError, whole_cause
from attnport.onnx_graph import ir, passes


def to_opset(model: ir.Model, opset: int) -> int:
    """Lowers `model` to `opset`, in place; returns how many operators were expanded.

    An operator that the opset does not have is replaced by its function body in the ONNX standard. An operator that it
    has is kept: later versions with the same signature only add types, and the checker runs at the end.

    Raises:
        ExportError: an operator has no form at that opset (the message names it and its node), or the result is not
            valid.
    """
    import onnx

    if model.graph.opset_imports[""] <= opset:
        return 0
    expanded = 0
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.domain == "" and not _fits(node, opset):
            function = _definition(node, opset, model.graph.opset_imports[""])
            put_in_place(model, node, function, f"{node.op_type}_{expanded}")
            expanded += 1
    model.graph.opset_imports[""] = opset
    if expanded:
        inline(model, opset)
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
    schema = schema_of(node, version)
    function = None if schema is None else body_of(node, schema, opset)
    if function is None or not all(_fits(inner, opset) for inner in function):
        raise ExportError(
            f"node {node.name}: {node.op_type} does not exist at opset {opset} and the standard does not define it by "
            "operators that do.",
            hint="Leave that target out, or rewrite this operator in the module.",
        )
    return function
