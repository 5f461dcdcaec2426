"""Reads a graph of ONNX: sizes and constants of values, attributes of nodes, and which node makes a value.

A value that is None, as an input that is left out, has no size, no constant and no node.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir
    import onnx_ir.passes.common

    ir, passes = onnx_ir, onnx_ir.passes.common
else:

    class _WhenUsed:
        """A module that is imported when something of it is used: onnx_ir takes a quarter of a second."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = self.__dict__[attribute] = getattr(importlib.import_module(self._name), attribute)
            return found

    ir, passes = _WhenUsed("onnx_ir"), _WhenUsed("onnx_ir.passes.common")

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

Dim = int | str | None
"""A size, the name of one, or None where it is not known."""


def dims_of(value: ir.Value | None) -> list[Dim] | None:
    """The sizes of all axes; None where not even their number is known."""
    if value is None or value.shape is None:
        return None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def known_size(value: ir.Value | None, axis: int) -> Dim:
    """The size of one axis; None also where there is no such axis."""
    dims = dims_of(value)
    return None if dims is None or axis >= len(dims) else dims[axis]


def rank_of(value: ir.Value | None) -> int | None:
    """How many axes a value has; None where that is not known."""
    return None if value is None or value.shape is None else len(value.shape)


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is an initializer, or what a `Constant` makes."""
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def constant_of(value: ir.Value | None, most: int = 4096) -> Any | None:
    """The array of a constant of at most so many elements, else None."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor.numpy() if tensor is not None and tensor.size <= most else None


def array_of(value: ir.Value) -> np.ndarray[Any, Any]:
    """The array of a value that `is_constant`, however large."""
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None
    return tensor.numpy()


def scalar(value: ir.Value | None) -> float | int | bool | None:
    """The element of a constant that has only one, else None."""
    array = constant_of(value)
    found: float | int | bool | None = array.reshape(-1)[0].item() if array is not None and array.size == 1 else None
    return found


def made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes a value, if it is this operator of ONNX, else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """The value of an attribute, or what it is by default."""
    return node.attributes[name].value if name in node.attributes else default


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """The values of all attributes that are given, by name."""
    return {name: attribute.value for name, attribute in node.attributes.items()}


def perm_of(transpose: ir.Node, rank: int) -> list[int]:
    """The permutation of a `Transpose`; without one it reverses the axes."""
    return list(attribute(transpose, "perm", range(rank)[::-1]))


def node_axis(node: ir.Node, rank: int, default: int) -> int:
    """The attribute `axis`, counted from the first."""
    axis: int = attribute(node, "axis", default)
    return axis % rank if axis < 0 else axis


def node_axes(node: ir.Node, rank: int, at: int = 1) -> list[int] | None:
    """The axes in an attribute or in the input at `at`, counted from the first; None if they are not known."""
    axes = attribute(node, "axes", None)
    if axes is None:
        array = constant_of(node.inputs[at], 64) if len(node.inputs) > at else None
        axes = None if array is None else array.reshape(-1)
    return None if axes is None else [int(axis) % rank if axis < 0 else int(axis) for axis in axes]


def reduced(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """What a reduction takes together along its last axis, which is kept; None where a value is something else."""
    node = made_by(value, op_type)
    source = None if node is None else node.inputs[0]
    rank = rank_of(source)
    if node is None or not rank or attribute(node, "keepdims", 1) != 1:
        return None
    return source if node_axes(node, rank) == [rank - 1] else None
