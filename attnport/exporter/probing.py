"""A graph's tensors as a search for a divergence sees them, and the graph with some of them marked as outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.naming import module_of

if TYPE_CHECKING:
    import onnx_ir as ir

# They read a tensor's shape and none of its elements, so no error passes through them.
_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Tensor:
    """What a node of the main graph makes.

    Attributes:
        operator: The node's operator.
        module: The module path that the exporter left; "" for the outermost module, None where it left none.
        dims: Sizes and names of dims as far as they are known; None where not even the rank is.
        sources: The tensors whose elements the node reads, those that its branches read included.
        floating: Whether it has a floating-point type.
    """

    name: str
    operator: str
    module: str | None
    dims: tuple[int | str | None, ...] | None
    sources: tuple[str, ...]
    floating: bool


def tensors(model: ir.Model) -> dict[str, Tensor]:
    """The tensors that a graph's nodes make, by name, in topological order; the bodies of branches are left out."""
    found = {}
    for node in model.graph:
        sources = () if node.op_type in _OF_SHAPES and not node.domain else tuple(dict.fromkeys(_read(node)))
        for value in node.outputs:
            if value.name:
                floating = value.dtype is not None and value.dtype.is_floating_point()
                dims = _dims(value)
                found[value.name] = Tensor(value.name, node.op_type, module_of(node), dims, sources, floating)
    return found


def parents_among(made: Mapping[str, Tensor], chosen: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each of `chosen`, in topological order: the nearest of `chosen` that it is made of."""
    return {name: tuple(sorted(_walk(made, name, chosen)[0])) for name in made if name in chosen}


def operators_between(made: Mapping[str, Tensor], name: str, chosen: Collection[str]) -> tuple[str, ...]:
    """The operators that make a tensor of the nearest of `chosen`, in topological order, its own one last."""
    passed = _walk(made, name, chosen)[1]
    return tuple(made[one].operator for one in made if one in passed or one == name)


def _walk(made: Mapping[str, Tensor], name: str, chosen: Collection[str]) -> tuple[set[str], set[str]]:
    """The nearest of `chosen` before a tensor, and what lies between."""
    near, between, pending = set[str](), set[str](), list(made[name].sources)
    while pending:
        one = pending.pop()
        if one in chosen:
            near.add(one)
        elif one in made and one not in between:
            between.add(one)
            pending += made[one].sources
    return near, between


def mark(model: ir.Model, names: Collection[str]) -> None:
    """Makes tensors of the main graph outputs, behind those that it has; in place."""
    already = {value.name for value in model.graph.outputs}
    for node in model.graph:
        model.graph.outputs.extend(value for value in node.outputs if value.name in names and value.name not in already)


def _read(node: ir.Node) -> Iterator[str]:
    """The names of what a node reads, and of what its branches read from around them."""
    for value in node.inputs:
        if value is not None and value.name:
            yield value.name
    for graph in _branches(node):
        for inner in graph:
            yield from _read(inner)
        yield from (str(value.name) for value in graph.outputs)


def _branches(node: ir.Node) -> Iterator[ir.Graph]:
    import onnx_ir as ir

    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _dims(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
