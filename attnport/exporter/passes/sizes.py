"""Infers shapes as formulas of the graph's named dims, through the arithmetic that exporters do on shapes.

The standard's inference stops where a shape is computed (`Shape`, `Gather`, `Concat`, `Where`, `Reshape`): it then
knows neither the head count nor that two lengths are one. Here each size is a formula (`batch`, `4*batch`, 16), so that
what is constant becomes a number and what is equal gets one name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.passes.size_rules import CONTENTS, SHAPES

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

MAX_CONTENT = 64
"""Elements of an integer tensor whose values are followed: shapes, axes and bounds are short."""
_BROADCAST = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater"),
    *("GreaterOrEqual", "Min", "Max", "Sum", "Mean", "PRelu", "BitwiseAnd", "BitwiseOr"),
)
Size = Any
"""A sympy expression that is a positive integer."""


def infer_sizes(model: ir.Model) -> int:
    """Gives every value of the graph a shape whose equal sizes have equal names, and makes constants of what is one.

    Returns how many integer tensors became constants. Control flow keeps the shapes that it has. A size that no rule
    gives is a name of its own.
    """
    return Inference(model).run()


class Inference:
    """The sizes of every value so far, and the contents of short integer tensors, in graph order."""

    MAX_CONTENT = MAX_CONTENT

    def __init__(self, model: ir.Model) -> None:
        import sympy  # type: ignore[import-untyped]  # torch brings it

        self.sympy, self.graph, self.opsets = sympy, model.graph, dict(model.graph.opset_imports)
        self.ir_version = model.ir_version
        self.sizes: dict[ir.Value, tuple[Size, ...]] = {}
        self.contents: dict[ir.Value, np.ndarray[Any, Any]] = {}
        self.names: dict[Size, str] = {}
        self.given = {
            str(dim.value) for value in model.graph.inputs for dim in value.shape or () if hasattr(dim, "value")
        }
        self.meaning: dict[str, Size] = {}
        self.fresh = (f"unknown{number}" for number in itertools.count())

    def run(self) -> int:
        """Visits every node in order and writes what was found; returns how many constants that made."""
        for value in (*self.graph.inputs, *self.graph.initializers.values()):
            if value.shape is not None:
                self.sizes[value] = tuple(map(self.size, value.shape))
            tensor = value.const_value
            if tensor is not None and tensor.dtype.is_integer() and tensor.size <= MAX_CONTENT:
                self.contents[value] = self.exact(tensor.numpy())
        for node in self.graph:
            self.visit(node)
        return self.write()

    def size(self, dim: Any) -> Size:
        """A dim of the graph as a formula; what has no name gets one."""
        if isinstance(dim, int):
            return self.sympy.Integer(dim)
        name = dim.value if dim is not None and dim.value else next(self.fresh)
        return self.meaning.get(name, self.symbol(name))

    def symbol(self, name: str) -> Size:
        """A size that is known by name alone."""
        return self.sympy.Symbol(name, integer=True, positive=True)

    def unknown(self) -> Size:
        """A size of its own."""
        return self.symbol(next(self.fresh))

    def exact(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Integers as sympy's."""
        made = np.empty(array.shape, object)
        for index, number in np.ndenumerate(array):
            made[index] = self.sympy.Integer(int(number))
        return made

    def visit(self, node: ir.Node) -> None:
        """Infers the contents and the shapes of one node's outputs."""
        if node.domain == "" and node.op_type in CONTENTS:
            content = CONTENTS[node.op_type](self, node)
            if content is not None and content.size <= MAX_CONTENT:
                self.contents[node.outputs[0]] = content
        found: Sequence[Sequence[Size] | None] = [None]
        if node.domain == "" and node.op_type in SHAPES:
            found = [SHAPES[node.op_type](self, node)]
        elif node.domain == "" and node.op_type in _BROADCAST:
            known = [self.sizes.get(value) for value in node.inputs if value is not None]
            found = [self.broadcast([sizes for sizes in known if sizes is not None]) if None not in known else None]
        if found == [None]:
            found = self.by_standard(node)
        for value, sizes in itertools.zip_longest(node.outputs, found):
            if value is not None:
                self.learn(value, sizes)

    def learn(self, value: ir.Value, sizes: Sequence[Size] | None) -> None:
        """Takes the sizes that were inferred; where none was, or one without a name, the one that the graph has."""
        graph = tuple(map(self.size, value.shape)) if value.shape is not None else None
        if sizes is not None and graph is not None and len(sizes) == len(graph):
            sizes = [ours if self.has_name(ours) else theirs for ours, theirs in zip(sizes, graph, strict=True)]
            for ours, theirs in zip(sizes, graph, strict=True):
                # What the exporter gave one name is one size, here and wherever else it stands.
                if theirs != ours and theirs.is_Symbol and self.has_name(theirs) and theirs.name not in self.given:
                    self.meaning[theirs.name] = ours
                    if not ours.is_Integer and not ours.is_Symbol:
                        self.names.setdefault(ours, theirs.name)
        found = sizes if sizes is not None else graph
        if found is not None:
            self.sizes[value] = tuple(found)

    @staticmethod
    def has_name(size: Size) -> bool:
        """Whether a size is more than a symbol made up here."""
        return not (size.is_Symbol and size.name.startswith("unknown"))

    def broadcast(self, shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
        """The shape that several broadcast to."""
        rank = max(map(len, shapes), default=0)
        padded = [(*(self.sympy.Integer(1),) * (rank - len(sizes)), *sizes) for sizes in shapes]
        return tuple(self.broadcast_size(column) for column in zip(*padded, strict=True))

    def broadcast_size(self, sizes: Sequence[Size]) -> Size:
        """One axis of it."""
        others = {size for size in sizes if size != 1}
        # Of several, a number wins: the others are that number or 1. So does x over Min(x, 40): equal, or refused.
        for size in sorted(others, key=str):
            if all(size == other or size.is_Integer or (other.func == self.sympy.Min and size in other.args)
                   for other in others):  # fmt: skip
                return size
        return self.unknown() if others else self.sympy.Integer(1)

    def by_standard(self, node: ir.Node) -> Sequence[Sequence[Size] | None]:
        """What the standard's own inference of one node says, with formulas passed through it as names."""
        import onnx
        import onnx_ir as ir

        if any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        ):
            return []
        given = {value.name: value for value in node.inputs if value is not None and value.name}
        spelt: dict[str, Size] = {}
        types = {name: self.type_of(value, spelt) for name, value in given.items() if value.dtype is not None}
        data = {
            str(name): ir.serde.serialize_tensor(value.const_value)
            for name, value in given.items()
            if value.const_value is not None and value.const_value.size <= MAX_CONTENT
        }
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(node.domain, 1), node.domain)
            found = onnx.shape_inference.infer_node_outputs(
                schema, ir.serde.serialize_node(node), types, data, ir_version=self.ir_version,
                opset_imports=[onnx.helper.make_opsetid(*entry) for entry in self.opsets.items()],
            )  # fmt: skip
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, KeyError):
            return []  # another domain's operator, or an input of unknown type: the shape it has stays
        return [self.read(found.get(str(value.name)), spelt) for value in node.outputs]

    def type_of(self, value: ir.Value, spelt: dict[str, Size]) -> onnx.TypeProto:
        """A value's type for the standard's inference; `spelt` learns what its dims stand for."""
        import onnx

        sizes = self.sizes.get(value)
        for size in sizes or ():
            spelt[str(size)] = size
        dims = None if sizes is None else [int(size) if size.is_Integer else str(size) for size in sizes]
        assert value.dtype is not None
        return onnx.helper.make_tensor_type_proto(int(value.dtype), dims)

    def read(self, found: onnx.TypeProto | None, spelt: dict[str, Size]) -> list[Size] | None:
        """The shape in a type that the standard's inference gave."""
        if found is None or not found.tensor_type.HasField("shape"):
            return None
        sizes = []
        for dim in found.tensor_type.shape.dim:
            name = dim.dim_param or next(self.fresh)
            sizes.append(self.size(dim.dim_value) if dim.HasField("dim_value") else spelt.get(name, self.symbol(name)))
        return sizes

    def write(self) -> int:
        """Puts the sizes into the graph, and constants in the place of integer tensors whose every element is known."""
        import onnx_ir as ir

        constants = 0
        for value, sizes in self.sizes.items():
            if not value.is_graph_input() and value.const_value is None:
                meant: list[Size] = [self.meaning.get(str(size), size) for size in sizes]
                value.shape = ir.Shape([int(size) if size.is_Integer else self.name(size) for size in meant])
        for value, content in self.contents.items():
            known = all(getattr(size, "is_Integer", False) for size in content.reshape(-1))
            if value.const_value is None and not value.is_graph_output() and known and value.dtype is not None:
                array = np.asarray([int(size) for size in content.reshape(-1)], value.dtype.numpy())
                made = ir.Value(name=f"{value.name}/known", const_value=ir.tensor(array.reshape(content.shape)))
                made.shape, made.type = ir.Shape(content.shape), value.type
                self.graph.register_initializer(made)
                ir.convenience.replace_all_uses_with(value, made)
                constants += 1
        return constants

    def name(self, size: Size) -> str:
        """The name of a size in the graph: the same for equal sizes."""
        if size.is_Symbol and self.has_name(size) and size.name not in self.meaning:
            return str(size.name)
        if size not in self.names:
            taken = self.given | set(self.names.values()) | self.meaning.keys()
            self.names[size] = next(name for number in itertools.count() if (name := f"size{number}") not in taken)
        return self.names[size]

    def content(self, node: ir.Node, at: int) -> np.ndarray[Any, Any] | None:
        """What is known of the values of an input."""
        value = node.inputs[at] if len(node.inputs) > at else None
        return None if value is None else self.contents.get(value)

    def ints(self, node: ir.Node, at: int, attribute: str = "") -> list[int] | None:
        """Integers that an input or, in older opsets, an attribute gives."""
        if attribute and attribute in node.attributes:
            return [int(number) for number in node.attributes[attribute].as_ints()]
        content = self.content(node, at)
        if content is None or not all(getattr(size, "is_Integer", False) for size in content.reshape(-1)):
            return None
        return [int(size) for size in content.reshape(-1)]
