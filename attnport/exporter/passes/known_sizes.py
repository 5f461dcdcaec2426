"""The known sizes of a graph's values, as formulas of its named dims."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.naming import MAY_BE_EMPTY
from attnport.exporter.output_sizes import formula

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

MAX_CONTENT = 64
"""The largest integer tensor whose elements are tracked: shapes, axes and bounds are short."""
Size = Any
"""An integer sympy expression; that of a dim is positive, unless it may be empty."""
Sizes = tuple[Size, ...]
Content = np.ndarray[Any, Any]
"""The elements of a short integer tensor, each a `Size`."""


class KnownSizes:
    """What is known so far: the sizes of values, and the contents of short integer tensors."""

    def __init__(self, model: ir.Model) -> None:
        import sympy  # type: ignore[import-untyped]  # torch brings it

        self.sympy, self.graph, self.opsets = sympy, model.graph, dict(model.graph.opset_imports)
        self.ir_version = model.ir_version
        self.sizes: dict[ir.Value, tuple[Size, ...]] = {}
        self.contents: dict[ir.Value, np.ndarray[Any, Any]] = {}
        self.given = {
            str(dim.value) for value in model.graph.inputs for dim in value.shape or () if hasattr(dim, "value")
        }
        self.empty = set(model.metadata_props.get(MAY_BE_EMPTY, "").split())
        self.taken = set(self.given)
        self.names: dict[Size, str] = {self.symbol(name): name for name in self.given if not name.isidentifier()}
        self.meaning: dict[str, Size] = {}
        self.fresh = (f"unknown{number}" for number in itertools.count())

    def content(self, node: ir.Node, at: int) -> np.ndarray[Any, Any] | None:
        """The elements of an input, if they are known."""
        value = node.inputs[at] if len(node.inputs) > at else None
        return None if value is None else self.contents.get(value)

    def ints(self, node: ir.Node, at: int, attribute: str = "") -> list[int] | None:
        """The integers in an input or, in older opsets, in an attribute; None if they are not known."""
        if attribute and attribute in node.attributes:
            return [int(number) for number in node.attributes[attribute].as_ints()]
        content = self.content(node, at)
        if content is None or not all(getattr(size, "is_Integer", False) for size in content.reshape(-1)):
            return None
        return [int(size) for size in content.reshape(-1)]

    def size(self, dim: Any) -> Size:
        """A dim of the graph as a formula; a dim without a name gets a new one."""
        if isinstance(dim, int):
            return self.sympy.Integer(dim)
        name = dim.value if dim is not None and dim.value else next(self.fresh)
        return self.meaning.get(name, self.symbol(name))

    def symbol(self, name: str) -> Size:
        """The size with a name, which may be an expression such as `past+seq`."""
        if name.isidentifier():
            return self.sympy.Symbol(name, integer=True, **{"nonnegative" if name in self.empty else "positive": True})
        try:
            return formula(name, self.symbol)
        except ValueError:  # other exporters leave names of their own
            return self.sympy.Symbol(name, integer=True, positive=True)

    def unknown(self) -> Size:
        """A new size, which is equal to no other."""
        return self.symbol(next(self.fresh))

    def exact(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array of integers as sympy integers."""
        result = np.empty(array.shape, object)
        for index, number in np.ndenumerate(array):
            result[index] = self.sympy.Integer(int(number))
        return result

    @staticmethod
    def has_name(size: Size) -> bool:
        """Whether a size is anything but a symbol that `unknown` made."""
        return not (size.is_Symbol and size.name.startswith("unknown"))

    def broadcast(self, shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
        """The shape to which several shapes broadcast."""
        rank = max(map(len, shapes), default=0)
        padded = [(*(self.sympy.Integer(1),) * (rank - len(sizes)), *sizes) for sizes in shapes]
        return tuple(self.broadcast_size(column) for column in zip(*padded, strict=True))

    def broadcast_size(self, sizes: Sequence[Size]) -> Size:
        """The size of one axis to which several sizes broadcast."""
        others = {size for size in sizes if size != 1}
        # A number determines the result: the other sizes are that number or 1. So does x beside Min(x, 40): the two are
        # equal, or the runtime refuses.
        for size in sorted(others, key=str):
            if all(size == other or size.is_Integer or (other.func == self.sympy.Min and size in other.args)
                   for other in others):  # fmt: skip
                return size
        return self.unknown() if others else self.sympy.Integer(1)

    def by_standard(self, node: ir.Node) -> Sequence[Sequence[Size] | None]:
        """The shapes that the standard's inference gives for one node's outputs; formulas pass through it as names."""
        import onnx
        import onnx_ir as ir

        if any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        ):
            return []
        inputs = {value.name: value for value in node.inputs if value is not None and value.name}
        spelt: dict[str, Size] = {}
        types = {name: self.type_of(value, spelt) for name, value in inputs.items() if value.dtype is not None}
        data = {
            str(name): ir.serde.serialize_tensor(value.const_value)
            for name, value in inputs.items()
            if value.const_value is not None and value.const_value.size <= MAX_CONTENT
        }
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(node.domain, 1), node.domain)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, ir.serde.serialize_node(node), types, data, ir_version=self.ir_version,
                opset_imports=[onnx.helper.make_opsetid(*entry) for entry in self.opsets.items()],
            )  # fmt: skip
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, KeyError):
            return []  # the operator is of another domain, or an input has no known type: the graph's shape is kept
        except onnx.checker.ValidationError:
            return []  # an input is a list of tensors, of which torch says that it is one
        return [self.read(inferred.get(str(value.name)), spelt) for value in node.outputs]

    def type_of(self, value: ir.Value, spelt: dict[str, Size]) -> onnx.TypeProto:
        """A value's type for the standard's inference; adds the formulas of its dims to `spelt`, by name."""
        import onnx

        sizes = self.sizes.get(value)
        for size in sizes or ():
            spelt[str(size)] = size
        dims = None if sizes is None else [int(size) if size.is_Integer else str(size) for size in sizes]
        assert value.dtype is not None
        return onnx.helper.make_tensor_type_proto(int(value.dtype), dims)

    def read(self, inferred: onnx.TypeProto | None, spelt: dict[str, Size]) -> list[Size] | None:
        """The shape in a type that the standard's inference returned."""
        if inferred is None or not inferred.tensor_type.HasField("shape"):
            return None
        sizes = []
        for dim in inferred.tensor_type.shape.dim:
            name = dim.dim_param or next(self.fresh)
            sizes.append(self.size(dim.dim_value) if dim.HasField("dim_value") else spelt.get(name, self.symbol(name)))
        return sizes
