"""The linear layers of a graph: products of an activation with a weight of the model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.naming import module_of

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """Products that read the same tensor, as those of q, k and v, and so share its scale.

    Attributes:
        name: The module paths: of the first product, then the last parts of the others'.
        reads: The name of what they read.
        nodes: The names of their nodes.
        weights: The number of their weights, by which the work for a token grows.
    """

    name: str
    reads: str
    nodes: tuple[str, ...]
    weights: int


def layers(model: ir.Model) -> tuple[Layer, ...]:
    """The linear layers of a lowered graph in float32, in topological order."""
    found: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        value = node.inputs[0] if node.inputs else None
        if value is not None and _is_linear(node):
            found.setdefault(str(value.name), []).append(node)
    made, seen = list[Layer](), Counter[str]()
    for reads, nodes in found.items():
        name = _path(nodes)
        seen[name] += 1
        name = name if seen[name] == 1 else f"{name} #{seen[name]}"
        weights = sum(math.prod(sizes_of(node)) for node in nodes)
        made.append(Layer(name, reads, tuple(str(node.name) for node in nodes), weights))
    return tuple(made)


def _is_linear(node: ir.Node) -> bool:
    """Whether a node is a product of an activation in float32 with a weight `[K, N]`."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain or len(node.inputs) < 2:
        return False
    value, weight = node.inputs[0], _stored(node)[0]
    if value is None or value.const_value is not None or weight is None:
        return False
    if weight.dtype.name != "FLOAT" or len(weight.shape) != 2:
        return False
    if node.op_type == "MatMul":
        return True
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    plain = all(node.attributes[name].value == 1 for name in ("alpha", "beta") if name in node.attributes)
    first = "transA" not in node.attributes or node.attributes["transA"].value == 0
    return plain and first and (bias is None or (bias.const_value is not None and len(bias.const_value.shape) == 1))


def _stored(node: ir.Node) -> tuple[ir.TensorProtocol | None, bool]:
    """The second factor of a product if it is a weight, and whether the product takes it transposed.

    Many models use their embedding table as the weight of the last layer too, through a `Transpose`.
    """
    weight = node.inputs[1]
    turned = "transB" in node.attributes and bool(node.attributes["transB"].value)
    before = weight.producer() if weight is not None else None
    if before is not None and before.op_type == "Transpose" and before.inputs[0] is not None:
        order = before.attributes["perm"].as_ints() if "perm" in before.attributes else [1, 0]
        return (before.inputs[0].const_value, not turned) if list(order) == [1, 0] else (None, turned)
    return (weight.const_value if weight is not None else None), turned


def weight_of(node: ir.Node) -> Array:
    """The weight of a linear layer as `[K, N]`, in float32."""
    tensor, turned = _stored(node)
    assert tensor is not None
    array: Array = tensor.numpy()
    return array.T if turned else array


def weight_key(node: ir.Node) -> Hashable:
    """Equal for linear layers whose `weight_of` is one tensor of the graph, read in the same way."""
    tensor, turned = _stored(node)
    return id(tensor), turned


def sizes_of(node: ir.Node) -> tuple[int, int]:
    """K and N of a linear layer's weight."""
    tensor, turned = _stored(node)
    assert tensor is not None
    first, second = tensor.shape.numpy()
    return (second, first) if turned else (first, second)


def _path(nodes: list[ir.Node]) -> str:
    paths = [module_of(node) or str(node.name) for node in nodes]
    return ", ".join([paths[0], *(path.rpartition(".")[2] for path in paths[1:])])


def nodes_of(model: ir.Model, layer: Layer) -> tuple[ir.Value, list[ir.Node]]:
    """What a layer reads, and its nodes."""
    nodes = [node for node in model.graph if node.name in layer.nodes]
    value = nodes[0].inputs[0]
    assert value is not None
    return value, nodes
