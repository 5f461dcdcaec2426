"""The bodies by which the ONNX standard defines some of its operators in other operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnport.onnx_graph import ir, passes

if TYPE_CHECKING:
    import onnx

_DOMAIN = "attnport.expanded"


def schema_of(node: ir.Node, opset: int) -> Any:
    """What the standard says of a node's operator at an opset of its domain; None if it has no such operator."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain)
    except onnx.defs.SchemaError:
        return None


def write_out(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> int:
    """Replaces each node that is `wanted` and that the standard defines by operators of the model's opset, in place.

    Returns how many. What a body consists of is asked for as well.
    """
    written, opset = 0, model.graph.opset_imports.get("", 0)
    while found := _defined(model, wanted):
        passes.ShapeInferencePass(data_prop=False)(model)  # a body may depend on the types of inputs
        for node, schema in found:
            function = body_of(node, schema, opset)
            if function is not None and all(inner.domain or schema_of(inner, opset) for inner in function):
                put_in_place(model, node, function, f"{node.op_type}_{written}")
                written += 1
        if not model.functions:
            break
        inline(model, opset)
    return written


def _defined(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> list[tuple[ir.Node, Any]]:
    found = []
    for node in model.graph.all_nodes():
        schema = schema_of(node, model.graph.opset_imports.get(node.domain, 1)) if wanted(node) else None
        if schema is not None and (schema.has_function or schema.has_context_dependent_function):
            found.append((node, schema))
    return found


def body_of(node: ir.Node, schema: Any, opset: int) -> ir.Function | None:
    """The body of a node's operator, in operators of `opset` or an older one; None where this node has none."""
    import onnx

    _give_defaults(node, schema)
    body = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        version = _nearest(schema.context_dependent_function_opset_versions, opset)
        types = [_type_proto(value).SerializeToString() for value in node.inputs]
        proto = ir.serde.serialize_node(node).SerializeToString()
        body.ParseFromString(schema.get_context_dependent_function_with_opset_version(version, proto, types))
    elif schema.has_function:
        body.ParseFromString(schema.get_function_with_opset_version(_nearest(schema.function_opset_versions, opset)))
    # A body lists optional outputs even if the node has them not, or they are not computed for it.
    computed = {name for inner in body.node for name in inner.output}
    kept = [name for name in body.output if name in computed][: len(node.outputs)]
    if not body.node or list(body.output[: len(kept)]) != kept or len(kept) < len(node.outputs):
        return None
    del body.output[:]
    body.output.extend(kept)
    function = ir.serde.deserialize_function(body)
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.GRAPH:  # a body has it within, and a call cannot
            del node.attributes[name]
            function.attributes.pop(name, None)
    return function


def _give_defaults(node: ir.Node, schema: Any) -> None:
    """Gives a node the attributes that it leaves to their defaults: a body refers to them."""
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)


def put_in_place(model: ir.Model, node: ir.Node, function: ir.Function, name: str) -> None:
    """Makes a node a call of a function, which `inline` then resolves."""
    function.name, function.domain = name, _DOMAIN
    model.functions[function.identifier()] = function
    node.op_type, node.domain = function.name, function.domain


def inline(model: ir.Model, opset: int) -> None:
    """Inlines the functions of a model; their operators are taken as those of `opset`."""
    model.graph.opset_imports[_DOMAIN] = 1
    for function in model.functions.values():
        function.opset_imports[""] = opset
    passes.InlinePass()(model)
    passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]  # its __init__ has no types
    passes.RemoveUnusedOpsetsPass()(model)


def _nearest(versions: list[int], opset: int) -> int:
    """The newest version that is `opset` or older; without any, the oldest version."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _type_proto(value: ir.Value | None) -> onnx.TypeProto:
    import onnx

    if value is None or value.type is None:
        return onnx.TypeProto()
    return ir.serde.serialize_type(value.type)
