"""The names that an exported graph keeps: the contract's dims, and the module path of each node."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attnport.artifacts import OWN_HALF, UNKNOWN_SIZE, IOContract, TensorSpec
from attnport.onnx_graph import ir

SCOPES = "pkg.torch.onnx.name_scopes"
"""The only metadata of torch's exporter that is kept: the module path of each node."""

MAY_BE_EMPTY = "attnport.may_be_empty"
"""The key of the metadata of a model of which dims may be 0, as of an empty cache; it holds their names."""


def note_empty(model: ir.Model, contract: IOContract) -> None:
    """Notes the dims that may be 0 on the model, for what is inferred of sizes now and when it is lowered."""
    if names := [dim.name for dim in contract.dims if dim.min == 0]:
        model.metadata_props[MAY_BE_EMPTY] = " ".join(names)


def module_of(node: ir.Node) -> str | None:
    """The module path that the exporter left on a node; "" for the outermost module, None where it left none."""
    scopes = node.metadata_props.get(SCOPES)
    return path_of(scopes) if scopes else None


def path_of(scopes: str) -> str | None:
    """The module path in the metadata `SCOPES` of a node, as `module_of`."""
    try:
        path = ast.literal_eval(scopes)
    except (ValueError, SyntaxError):
        return None
    return str(path[-2]) if isinstance(path, list) and len(path) > 1 else ""


def name_dims(model: ir.Model, contract: IOContract) -> None:
    """Gives the graph's symbolic dims (`s18`) the contract's names (`batch`), on every value."""
    names: dict[str, str] = {}
    for value, spec in zip(model.graph.inputs, contract.inputs, strict=True):
        if value.shape is None:
            continue
        for axis, dim in enumerate(spec.dims):
            symbol = value.shape[axis]
            if isinstance(dim, str) and isinstance(symbol, ir.SymbolicDim) and symbol.value:
                names[symbol.value] = dim
    for value in all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_named(dim, names) for dim in value.shape])
    for value, spec in zip(model.graph.inputs, contract.inputs, strict=True):
        value.shape = ir.Shape(list(spec.dims))
    for value, spec in zip(model.graph.outputs, contract.outputs, strict=True):
        value.shape = _declared(value, spec)


def _declared(output: ir.Value, spec: TensorSpec) -> ir.Shape:
    """A contract's sizes; one that it does not know keeps the graph's name, which other values may have too."""
    own = output.shape if output.shape is not None and len(output.shape) == len(spec.dims) else [None] * len(spec.dims)
    return ir.Shape([had if dim == UNKNOWN_SIZE else dim for had, dim in zip(own, spec.dims, strict=True)])


def name_outputs(model: ir.Model, contract: IOContract) -> None:
    """Gives outputs the contract's sizes after shapes were inferred anew; names such as `size5` give way everywhere."""
    known = {dim.name for dim in contract.dims}
    names: dict[str, str] = {}
    for value, spec in zip(model.graph.outputs, contract.outputs, strict=True):
        for symbol, dim in zip(value.shape or (), spec.dims, strict=False):
            if isinstance(symbol, ir.SymbolicDim) and symbol.value and symbol.value not in known:
                names.setdefault(symbol.value, symbol.value if dim == UNKNOWN_SIZE else str(dim))
        value.shape = _declared(value, spec)
    names = {symbol: name for symbol, name in names.items() if not name.isdigit() and symbol != name}
    outputs = set(model.graph.outputs)
    for value in all_values(model) if names else ():
        if value.shape is not None and value not in outputs:
            value.shape = ir.Shape([dim if isinstance(dim, int) else names.get(dim.value or "", dim.value)
                                    for dim in value.shape])  # fmt: skip


def _named(dim: Any, names: dict[str, str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    symbol = dim.value
    if not symbol:
        return None
    # The tracer leaves expressions such as "Min(512, s41)", which other readers take for names. Each expression gets a
    # plain name, so that equal sizes are still known to be equal.
    if symbol not in names:
        number = len(names)
        while f"size{number}" in names.values():
            number += 1
        names[symbol] = f"size{number}"
    return names[symbol]


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Every value: inputs, initializers and node outputs of the graph, its branches and the model's functions."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        yield from graph.initializers.values()
    for function in model.functions.values():
        yield from function.inputs
    for node in all_nodes(model):
        yield from node.outputs


def note_own_half(model: ir.Model) -> None:
    """Notes in which half types a model computes by itself, to tell them from those of a form's plan."""
    declared = {*model.graph.inputs, *model.graph.outputs}
    kinds = {value.dtype.name for value in all_values(model) if value.dtype is not None and value not in declared}
    if own := kinds & {"FLOAT16", "BFLOAT16"}:
        model.metadata_props[OWN_HALF] = ",".join(sorted(own))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of the graph, its branches and the model's functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def branches(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in a node's attributes: the branches of an `If`, the body of a `Loop`."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def upstream(
    values: Iterable[ir.Value | None], through: Callable[[ir.Value, ir.Node], bool] = lambda value, node: True
) -> Iterator[ir.Value]:
    """Values and what they are computed of, each once, from the last back.

    Args:
        through: Whether the walk goes on from a value, which this node makes, to what the node reads.
    """
    pending, seen = list(values), set[ir.Value]()
    while pending:
        value = pending.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        yield value
        node = value.producer()
        if node is not None and through(value, node):
            pending += node.inputs


def strip(model: ir.Model) -> None:
    """Removes stack traces, source lines and builder paths; keeps each node's module path, and which dims may be 0."""
    empty = model.metadata_props.get(MAY_BE_EMPTY)
    model.metadata_props.clear()
    if empty:
        model.metadata_props[MAY_BE_EMPTY] = empty
    model.doc_string = None
    for graph in (model.graph, *model.graph.subgraphs()):
        graph.metadata_props.clear()
        graph.doc_string = None
    for function in model.functions.values():
        function.metadata_props.clear()
        function.doc_string = None
    for node in all_nodes(model):
        scopes = node.metadata_props.get(SCOPES)
        node.metadata_props.clear()
        node.doc_string = None
        if scopes:
            node.metadata_props[SCOPES] = scopes
    for value in all_values(model):
        value.metadata_props.clear()
        value.doc_string = None
