"""The parts of a lowered graph for which a precision plan chooses a type: layers, norms and sums, not single nodes.

A part is a product with its bias, or the sums of two activations in one module (residuals), or other connected nodes of
one module (a norm that is written out, an activation). Nodes that only move elements belong to the part whose elements
they move. The nodes that a lowering wrote for an attention belong to no part: in float32 it has no fused kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.naming import module_of
from attnport.onnx_graph import ir

_PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"}
# fmt: off
_MOVES = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
}
# fmt: on


@dataclass(frozen=True)
class Part:
    """Nodes that are computed in the same type.

    Attributes:
        name: The module path (`model` for the outermost), with the operators where a module has several parts, and a
            number where that is not enough.
        nodes: Their names, in topological order.
        operators: The operators of the nodes, in the same order.
        reads: The names of the floating-point activations that the part reads from outside.
        makes: The names of the floating-point values that its nodes compute.
    """

    name: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def parts_of(model: ir.Model, anchors: Mapping[str, Collection[str]]) -> tuple[Part, ...]:
    """The parts of a lowered graph that is still in float32, in topological order.

    Args:
        model: As lowered, before its plan is applied.
        anchors: The nodes of each attention's products and softmax, whose names give the attention's scope.
    """
    scopes = tuple(scope_of(nodes) for nodes in anchors.values() if nodes)
    groups = _groups([node for node in model.graph if _counts(node) and not str(node.name).startswith(scopes)])
    paths = [_path(group) for group in groups]
    shared = {path for path, count in Counter(paths).items() if count > 1}
    parts, seen = list[Part](), Counter[str]()
    for group, path in zip(groups, paths, strict=True):
        operators = tuple(node.op_type for node in group)
        name = f"{path}: {', '.join(dict.fromkeys(operators))}" if path in shared else path
        seen[name] += 1
        computed = {value: None for node in group for value in node.outputs if _floating(value)}
        read = {value: None for node in group for value in node.inputs if value is not None and _activation(value)}
        parts.append(
            Part(
                name if seen[name] == 1 else f"{name} #{seen[name]}",
                tuple(str(node.name) for node in group),
                operators,
                tuple(str(value.name) for value in read if value not in computed),
                tuple(str(value.name) for value in computed),
            )
        )
    return tuple(parts)


def scope_of(anchors: Collection[str]) -> str:
    """The prefix that the names of all nodes have which a lowering wrote for an attention."""
    return f"{next(iter(anchors)).rpartition('/')[0]}/"


def _groups(nodes: list[ir.Node]) -> list[list[ir.Node]]:
    """The nodes of each part, in topological order of their first nodes."""
    group_of: dict[ir.Node, list[ir.Node]] = {}

    def join(node: ir.Node, other: ir.Node) -> None:
        target, group = group_of[other], group_of[node]
        if target is not group:
            target.extend(group)
            group_of.update(dict.fromkeys(group, target))

    for node in nodes:
        group_of[node] = [node]
        for at, value in enumerate(node.inputs):
            other = value.producer() if value is not None and _floating(value) else None
            if other in group_of and _belongs(node, at, other):
                join(node, other)
    place = {node: number for number, node in enumerate(nodes)}
    unique = {id(group): sorted(group, key=place.__getitem__) for group in group_of.values()}
    # Nodes that move elements of an input, a weight or an attention's result are no part of their own.
    kept = [group for group in unique.values() if any(node.op_type not in _MOVES for node in group)]
    return sorted(kept, key=lambda group: place[group[0]])


def _belongs(node: ir.Node, at: int, other: ir.Node) -> bool:
    """Whether a node belongs to the same part as the node that computes its input `at`."""
    if node.op_type in _MOVES:
        return at == 0
    moved = _moved_by(other)
    if moved is None or module_of(node) != module_of(moved):
        return False
    other = moved
    if _is_bias(node):
        return other.op_type in _PRODUCTS
    return _kind(node) == _kind(other) != "product"


def _moved_by(node: ir.Node) -> ir.Node | None:
    """The node that computed these elements before they were moved; None if they are an input's or a weight's."""
    source: ir.Node | None = node
    while source is not None and source.op_type in _MOVES:
        source = source.inputs[0].producer() if source.inputs[0] is not None else None
    return source


def _kind(node: ir.Node) -> str:
    if node.op_type in _PRODUCTS or _is_bias(node):
        return "product"
    activations = [value for value in node.inputs if value is not None and _activation(value)]
    return "sum" if node.op_type == "Add" and len(activations) == 2 else "rest"


def _is_bias(node: ir.Node) -> bool:
    """Whether a node adds a constant to a product."""
    if node.op_type != "Add":
        return False
    makers = [value.producer() for value in node.inputs if value is not None and _activation(value)]
    return len(makers) == 1 and makers[0] is not None and makers[0].op_type in _PRODUCTS


def _path(group: list[ir.Node]) -> str:
    """The module path of the first node that does more than move elements and has one."""
    paths = [module_of(node) for node in group if node.op_type not in _MOVES]
    return next((path for path in paths if path), "model")


def _counts(node: ir.Node) -> bool:
    return node.op_type != "Constant" and any(_floating(value) for value in node.outputs)


def _floating(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT


def _activation(value: ir.Value) -> bool:
    """Whether a value is floating point and, as far as its producer shows, depends on inputs."""
    node = value.producer()
    return _floating(value) and value.const_value is None and (node is None or node.op_type != "Constant")


def add_largest(model: ir.Model, names: Collection[str]) -> dict[str, str]:
    """Adds, in place, an output for each float32 tensor called one of `names`: the largest finite magnitude in it, 0
    for a tensor without elements or finite numbers.

    Only the scalars leave the graph, so that a large model needs no more memory than a usual run.

    Returns:
        The name of the output by that of the tensor, for the tensors that are there.
    """
    build, outputs = Builder(model), dict[str, str]()
    build.scope = "largest"
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in values:
        if value.name not in names or value.dtype != ir.DataType.FLOAT:
            continue
        magnitude = build.op("Abs", build.op("Reshape", value, build.const([-1])))
        # Hidden scores are -inf on purpose, which half precision has too, so only finite magnitudes count.
        finite = build.op("Less", magnitude, build.const([np.inf], np.float32), dtype=ir.DataType.BOOL)
        zero = build.const([0], np.float32)
        counted = build.op("Where", finite, magnitude, zero, dtype=ir.DataType.FLOAT)
        largest = build.op("ReduceMax", build.op("Concat", counted, zero, axis=0), shape=[], keepdims=0)
        largest.name = outputs[str(value.name)] = f"largest/{value.name}"
        model.graph.outputs.append(largest)
    return outputs
