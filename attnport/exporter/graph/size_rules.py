"""The known sizes of a graph's values, as formulas of its named dims, and the rules of single operators.

The rules are for the contents of short integer tensors, and the shapes that depend on them. A rule takes what is known
so far and a node, and returns None if it cannot tell.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.naming import MAY_BE_EMPTY
from attnport.exporter.output_sizes import formula

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

FAR = 2**31 - 1
"""A bound of a slice at or above this means "to the end"."""
_TRIED = 130
"""Sizes below this are tried to see whether a quotient is one number: some of every rest of a window."""
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


def _of_shape(run: KnownSizes, node: ir.Node) -> Content | None:
    sizes = run.sizes.get(node.inputs[0]) if node.inputs[0] is not None else None
    if sizes is None:
        return None
    start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
    return _array(sizes[start:end])


def _of_size(run: KnownSizes, node: ir.Node) -> Content | None:
    sizes = run.sizes.get(node.inputs[0]) if node.inputs[0] is not None else None
    return None if sizes is None else _array(reduce(operator.mul, sizes, run.sympy.Integer(1)))


def _of_gather(run: KnownSizes, node: ir.Node) -> Content | None:
    data, indices = run.content(node, 0), run.ints(node, 1)
    if data is None or indices is None or data.ndim != 1:
        return None
    shape = run.contents[node.inputs[1]].shape if node.inputs[1] is not None else ()
    return data[np.asarray(indices, int).reshape(shape)] if shape else _array(data[indices[0]])


def _of_concat(run: KnownSizes, node: ir.Node) -> Content | None:
    parts = [run.content(node, at) for at in range(len(node.inputs))]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) and all(part.ndim == 1 for part in known) else None


def _of_same(run: KnownSizes, node: ir.Node) -> Content | None:
    """The content after a cast, or after axes of size 1 are added or removed."""
    content, kind = run.content(node, 0), node.outputs[0].dtype
    sizes = run.sizes.get(node.outputs[0]) or _shape_of(run, node)
    if content is None or kind is None or not (kind.is_integer() or node.op_type != "Cast"):
        return None
    if node.op_type in ("Cast", "Identity"):
        return content
    if sizes is None or not all(size.is_Integer for size in sizes):
        return None
    return content.reshape([int(size) for size in sizes])


def _shape_of(run: KnownSizes, node: ir.Node) -> Sizes | None:
    if node.op_type == "Reshape":
        return _reshape(run, node)
    shapes = run.by_standard(node)
    return tuple(shapes[0]) if shapes and shapes[0] is not None else None


def _of_slice(run: KnownSizes, node: ir.Node) -> Content | None:
    data = run.content(node, 0)
    starts, ends, steps = run.ints(node, 1), run.ints(node, 2), run.ints(node, 4)
    if data is None or data.ndim != 1 or starts is None or ends is None or (steps is None and len(node.inputs) > 4):
        return None
    return data[slice(starts[0], ends[0], steps[0] if steps else 1)]


def _of_constant_of_shape(run: KnownSizes, node: ir.Node) -> Content | None:
    shape = run.ints(node, 0)
    fill = node.attributes["value"].as_tensor().numpy().reshape(-1)[0] if "value" in node.attributes else np.float32(0)
    if shape is None or not np.issubdtype(fill.dtype, np.integer):
        return None
    return run.exact(np.full(shape, fill)) if np.prod(shape) <= MAX_CONTENT else None


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[KnownSizes, ir.Node], Content | None]:
    def rule(run: KnownSizes, node: ir.Node) -> Content | None:
        left, right = run.content(node, 0), run.content(node, 1)
        return None if left is None or right is None else _array(function(left, right))

    return rule


def _divided(run: KnownSizes, node: ir.Node) -> Content | None:
    """Integer division rounds towards zero; since sizes are not negative, that is the floor."""
    left, right = run.content(node, 0), run.content(node, 1)
    if left is None or right is None or any(size.is_nonnegative is not True for size in (*left.flat, *right.flat)):
        return None

    def quotient(size: Size, by: Size) -> Size:
        found = run.sympy.floor(size / by)
        symbols = found.free_symbols
        if by.is_Integer or len(symbols) != 1:
            return found
        # What is padded to whole windows of 4 has 4 rows in each: torch writes `size // (size // 4)` for them.
        values = {found.subs(dict.fromkeys(symbols, number)) for number in range(1, _TRIED)}
        return next(iter(values)) if len(values) == 1 else found

    return _array(np.frompyfunc(quotient, 2, 1)(left, right))


def _rest(run: KnownSizes, node: ir.Node) -> Content | None:
    """The rest of a division by positive numbers, which is not negative."""
    left, right = run.content(node, 0), run.content(node, 1)
    if left is None or right is None or any(size.is_positive is not True for size in right.flat):
        return None
    if "fmod" in node.attributes and node.attributes["fmod"].as_int():  # whose sign is that of what is divided
        return None
    return _array(np.frompyfunc(run.sympy.Mod, 2, 1)(left, right))


def _extreme(name: str) -> Callable[[KnownSizes, ir.Node], Content | None]:
    def rule(run: KnownSizes, node: ir.Node) -> Content | None:
        parts = [run.content(node, at) for at in range(len(node.inputs))]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return _array(reduce(np.frompyfunc(getattr(run.sympy, name), 2, 1), known))

    return rule


def _of_equal(run: KnownSizes, node: ir.Node) -> Content | None:
    left, right = run.content(node, 0), run.content(node, 1)
    if left is None or right is None:
        return None
    answers = np.frompyfunc(lambda a, b: (a - b).is_zero, 2, 1)(left, right)
    decided = _array(answers)
    return None if any(answer is None for answer in decided.flat) else decided


def _of_where(run: KnownSizes, node: ir.Node) -> Content | None:
    parts = [run.content(node, at) for at in range(3)]
    condition, left, right = parts
    if condition is None or left is None or right is None:
        return None
    return _array(np.where(condition.astype(bool), left, right))


def _of_product(run: KnownSizes, node: ir.Node) -> Content | None:
    content = run.content(node, 0)
    keeps = "keepdims" not in node.attributes or bool(node.attributes["keepdims"].as_int())
    if content is None or content.ndim != 1:
        return None
    if "noop_with_empty_axes" in node.attributes and node.attributes["noop_with_empty_axes"].as_int():
        axes = run.ints(node, 1)
        if not axes:
            return content if axes == [] or len(node.inputs) < 2 or node.inputs[1] is None else None
    product = reduce(operator.mul, content, run.sympy.Integer(1))
    return _array([product]) if keeps else _array(product)


def _reshape(run: KnownSizes, node: ir.Node) -> Sizes | None:
    before = run.sizes.get(node.inputs[0]) if node.inputs[0] is not None else None
    target = run.content(node, 1)
    if target is None:
        rank = run.sizes.get(node.inputs[1]) if node.inputs[1] is not None else None
        known = rank is not None and rank[0].is_Integer
        return tuple(run.unknown() for _ in range(int(rank[0]))) if rank is not None and known else None
    zero = bool(node.attributes["allowzero"].as_int()) if "allowzero" in node.attributes else False
    after = [before[at] if size == 0 and not zero and before is not None and at < len(before) else size
             for at, size in enumerate(target)]  # fmt: skip
    open_axes = [at for at, size in enumerate(after) if size == -1]
    if open_axes:
        rest = reduce(operator.mul, (size for size in after if size != -1), run.sympy.Integer(1))
        whole = reduce(operator.mul, before or (), run.sympy.Integer(1))
        after[open_axes[0]] = run.sympy.cancel(whole / rest) if before is not None and rest != 0 else run.unknown()
    return tuple(after)


def _expand(run: KnownSizes, node: ir.Node) -> Sizes | None:
    before = run.sizes.get(node.inputs[0]) if node.inputs[0] is not None else None
    target = run.content(node, 1)
    return None if before is None or target is None else run.broadcast([before, tuple(target)])


def _slice(run: KnownSizes, node: ir.Node) -> Sizes | None:
    sizes = run.sizes.get(node.inputs[0]) if node.inputs[0] is not None else None
    given = [value is not None for value in (*node.inputs[3:5], None, None)]
    axes, steps = run.ints(node, 3), run.ints(node, 4)
    starts, ends = run.content(node, 1), run.content(node, 2)
    if sizes is None:
        return None
    if given[0] and axes is None:
        return tuple(run.unknown() for _ in sizes)
    bounds = next((bound for bound in (starts, ends) if bound is not None), None)
    axes = list(range(len(bounds) if bounds is not None else len(sizes))) if axes is None else axes
    after = list(sizes)
    for at, axis in enumerate(axes):
        length = None
        if starts is not None and ends is not None and (steps is not None or not given[1]):
            length = _slice_size(run, sizes[axis], starts[at], ends[at], steps[at] if steps else 1)
        after[axis] = run.unknown() if length is None else length
    return tuple(after)


def _slice_size(run: KnownSizes, size: Size, start: Size, end: Size, step: int) -> Size | None:
    start, end = (_bound(run, size, bound) for bound in (start, end))
    if start is None or end is None or step < 1:
        return None
    length = run.sympy.simplify(end - start)
    if step > 1:
        length = run.sympy.ceiling(length / step)
    return length if length.is_nonnegative else None


def _bound(run: KnownSizes, size: Size, bound: Size) -> Size | None:
    """A bound of a slice as a position counted from the start and within the axis; None if its sign is unknown."""
    if bound.is_Integer and abs(int(bound)) >= FAR:
        return size if bound > 0 else run.sympy.Integer(0)
    if bound.is_negative:
        bound = size + bound
        if bound.is_negative:
            return run.sympy.Integer(0)
    return run.sympy.Min(bound, size) if bound.is_nonnegative else None


def _range(run: KnownSizes, node: ir.Node) -> Sizes | None:
    start, limit, delta = (run.content(node, at) for at in range(3))
    if start is None or limit is None or delta is None or not delta.item().is_positive:
        return (run.unknown(),)
    length = run.sympy.ceiling((limit.item() - start.item()) / delta.item())
    return (length,) if length.is_nonnegative else (run.unknown(),)


def _constant_of_shape(run: KnownSizes, node: ir.Node) -> Sizes | None:
    content = run.content(node, 0)
    return None if content is None else tuple(content)


def _tile(run: KnownSizes, node: ir.Node) -> Sizes | None:
    sizes, times = run.sizes.get(node.inputs[0]) if node.inputs[0] is not None else None, run.content(node, 1)
    return None if sizes is None or times is None else tuple(a * b for a, b in zip(sizes, times, strict=True))


def _matmul(run: KnownSizes, node: ir.Node) -> Sizes | None:
    left, right = (run.sizes.get(value) if value is not None else None for value in node.inputs[:2])
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    return (*run.broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def _array(values: Any) -> Content:
    """An array of objects, which NumPy does not convert to another type."""
    if isinstance(values, np.ndarray):
        return values.astype(object)
    if isinstance(values, tuple | list):
        array = np.empty(len(values), object)
        array[:] = values
        return array
    array = np.empty((), object)
    array[()] = values
    return array


CONTENTS: dict[str, Callable[[KnownSizes, ir.Node], Content | None]] = {
    "Add": _arithmetic(operator.add),
    "Cast": _of_same,
    "Concat": _of_concat,
    "ConstantOfShape": _of_constant_of_shape,
    "Div": _divided,
    "Mod": _rest,
    "Equal": _of_equal,
    "Gather": _of_gather,
    "Identity": _of_same,
    "Max": _extreme("Max"),
    "Min": _extreme("Min"),
    "Mul": _arithmetic(operator.mul),
    "ReduceProd": _of_product,
    "Reshape": _of_same,
    "Shape": _of_shape,
    "Size": _of_size,
    "Slice": _of_slice,
    "Squeeze": _of_same,
    "Sub": _arithmetic(operator.sub),
    "Unsqueeze": _of_same,
    "Where": _of_where,
}
SHAPES: dict[str, Callable[[KnownSizes, ir.Node], Sizes | None]] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "MatMul": _matmul,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Tile": _tile,
}
