"""Describes a graph's tensors for the search for a divergence, and marks some of them as outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from attnport.exporter.naming import branches, module_of
from attnport.exporter.tokens.real import dims_of_all, with_all_rows
from attnport.onnx_graph import ir, passes

# These read a tensor's shape and none of its elements, so no error passes through them.
_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Tensor:
    """A tensor that a node of the main graph computes.

    Attributes:
        operator: The node's operator.
        module: The module path that the exporter left; "" for the outermost module, None where it left none.
        dims: Sizes and names of dims, None for an unknown one; None altogether if the rank is unknown.
        sources: The tensors whose elements the node reads, including those that its branches read.
        floating: Whether it has a floating-point type.
        exact: Whether it is of integers or booleans, computed from such alone: no rounding has a part in it.
    """

    name: str
    operator: str
    module: str | None
    dims: tuple[int | str | None, ...] | None
    sources: tuple[str, ...]
    floating: bool
    exact: bool


def tensors(model: ir.Model) -> dict[str, Tensor]:
    """The tensors that a graph's nodes compute, by name, in topological order, without those inside branches."""
    by_name = {}
    given = (*model.graph.inputs, *model.graph.initializers.values())
    exact = {value.name for value in given if _integral(value)}
    for node in model.graph:
        sources = () if node.op_type in _OF_SHAPES and not node.domain else tuple(dict.fromkeys(_read(node)))
        for value in node.outputs:
            if value.name:
                if _integral(value) and exact.issuperset(sources):
                    exact.add(value.name)
                floating = value.dtype is not None and value.dtype.is_floating_point()
                of = (module_of(node), _dims(model.graph, value), sources, floating, value.name in exact)
                by_name[value.name] = Tensor(value.name, node.op_type, *of)
    return by_name


def before(by_name: Mapping[str, Tensor], name: str, walls: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a tensor is computed from, back to `walls`, in topological order.

    Returns:
        Those of `walls` that are reached, and the tensors between them and `name`.
    """
    near, between, pending = set[str](), set[str](), list(by_name[name].sources)
    while pending:
        source = pending.pop()
        if source in walls:
            near.add(source)
        elif source in by_name and source not in between:
            between.add(source)
            pending += by_name[source].sources
    return tuple(one for one in by_name if one in near), tuple(one for one in by_name if one in between)


def mark(model: ir.Model, names: Collection[str]) -> None:
    """Appends tensors of the main graph to its outputs, in place; those of real tokens alone with rows for all."""
    already = {value.name for value in model.graph.outputs}
    wanted = [value for node in model.graph for value in node.outputs if value.name in names]
    for value in wanted:
        if value.name not in already:
            model.graph.outputs.append(with_all_rows(model, value))
    passes.TopologicalSortPass()(model)


def _read(node: ir.Node) -> Iterator[str]:
    """The names of the values that a node reads, and of those that its branches read from the graph around them."""
    for value in node.inputs:
        if value is not None and value.name:
            yield value.name
    for graph in branches(node):
        for inner in graph:
            yield from _read(inner)
        yield from (str(value.name) for value in graph.outputs)


def _integral(value: ir.Value) -> bool:
    return value.dtype is not None and (value.dtype.is_integer() or value.dtype.name == "BOOL")


def _dims(graph: ir.Graph, value: ir.Value) -> tuple[int | str | None, ...] | None:
    return None if value.shape is None else dims_of_all(graph, value)
