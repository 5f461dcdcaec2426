"""Builds nodes into a graph, one per call, each named, typed and placed; and removes what a graph does not use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from attnport.onnx_graph import dims_of, ir, known_size, passes


class CannotLower(Exception):
    """An attention has no form that can be written; the message says why, and it stays as exported."""


class Builder:
    """Adds nodes to `model`'s main graph. Constants of equal value are shared, and names are made unique.

    Attributes:
        sizes: The usual size of each named dim, where the model's contract gives one; may be empty.
        before: The node before which new nodes are inserted; None = they are added at the end.
        scope: The prefix of new names.
    """

    def __init__(self, model: ir.Model, sizes: Mapping[str, int] | None = None) -> None:
        self.model = model
        self.sizes = dict(sizes or {})
        self.before: ir.Node | None = None
        self.scope = ""
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._once: dict[Hashable, ir.Value] = {}
        self._names = {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            self._names |= {node.name, *(value.name for value in node.outputs)}
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    branch = attribute.as_graph()
                    self._names |= {value.name for value in (*branch.inputs, *branch.initializers.values())}

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        name: str = "",
        dtype: ir.DataType | None = None,
        shape: Sequence[int | str | None] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """Adds one node and returns its output.

        Args:
            name: Of the node; the scope is put before it, and a number after it if it is taken.
            dtype: Of the output; by default that of the first input.
            shape: Of the output, if known.
        """
        node = ir.node(op_type, list(inputs), attributes=attributes or None, domain=domain)
        node.name = self._unique(f"{self.scope}/{name or op_type}" if self.scope else name or op_type)
        output = node.outputs[0]
        output.name = self._unique(f"{node.name}/output")
        dtype = dtype or next((value.dtype for value in inputs if value is not None), None)
        if dtype is not None:
            output.dtype = dtype
        if shape is not None:
            output.shape = ir.Shape(list(shape))
        if self.before is None:
            self.model.graph.append(node)
        else:
            node.metadata_props.update(self.before.metadata_props)
            self.model.graph.insert_before(self.before, node)
        return output

    def const(self, value: Any, dtype: np.dtype[Any] | type[Any] | None = None) -> ir.Value:
        """A constant, as an initializer."""
        array = np.array(value, dtype=dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.stored(f"const/{array.dtype}/{len(self._constants)}", array)
        return self._constants[key]

    def stored(self, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant of its own, as an initializer, for arrays too large to be compared with others."""
        name = self._unique(name)
        constant = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        constant.dtype, constant.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        self.model.graph.register_initializer(constant)
        return constant

    def like(self, number: float, value: ir.Value) -> ir.Value:
        """A scalar constant of `value`'s dtype."""
        assert value.dtype is not None
        return self.const(number, value.dtype.numpy())

    def cast(self, value: ir.Value, dtype: ir.DataType, name: str = "cast") -> ir.Value:
        """`value` in `dtype`; `value` itself if it already has that type."""
        if value.dtype == dtype:
            return value
        return self.op("Cast", value, name=name, dtype=dtype, shape=dims_of(value), to=dtype)

    def without_nan(self, value: ir.Value, name: str = "guard") -> ir.Value:
        """A value with zero in place of NaN, as in a row without an allowed key; `name` is that of the last node."""
        empty = self.op("IsNaN", value, name="no_key", dtype=ir.DataType.BOOL)
        return self.op("Where", empty, self.like(0.0, value), value, name=name, dtype=value.dtype)

    def once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """The value that `make` writes, or that it wrote when it was first called for `key`."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def usual_size(self, value: ir.Value, axis: int) -> int | None:
        """The size of one axis, or the usual size of its named dim; None if neither is known."""
        size = known_size(value, axis)
        return self.sizes.get(size) if isinstance(size, str) else size

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of one axis, as int64[1]."""
        return self.op("Shape", value, name=f"size{axis}", dtype=ir.DataType.INT64, shape=[1], start=axis, end=axis + 1)

    def named_size(self, dim: str) -> ir.Value | None:
        """The size of a named dim, as int64[1], from the first value before `before` that has it; None if none has."""
        outputs = (value for node in self.model.graph for value in node.outputs)
        for value in (*self.model.graph.inputs, *outputs):
            if value.producer() is not None and value.producer() is self.before:
                return None
            if dim in (dims := dims_of(value) or []):
                return self.size(value, dims.index(dim))
        return None

    def replace(self, old: ir.Value, made: ir.Value) -> None:
        """Replaces every use of `old` by `made`, which takes over its type, its shape and a graph output's name."""
        if old.dtype is not None:
            made.dtype = old.dtype
        made.shape = old.shape
        if old.is_graph_output():
            name = old.name
            old.name = f"{name}/replaced"
            made.name = name
        ir.convenience.replace_all_uses_with(old, made, replace_graph_outputs=True)

    def _unique(self, name: str) -> str:
        unique, number = name, 0
        while unique in self._names:
            number += 1
            unique = f"{name}_{number}"
        self._names.add(unique)
        return unique


def node_name(value: ir.Value) -> str:
    """The name of the node that computes a value."""
    node = value.producer()
    assert node is not None
    return str(node.name)


def clean_up(model: ir.Model) -> None:
    """Removes unused nodes, initializers and opsets; sorts; infers types."""
    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.TopologicalSortPass()(model)
    passes.ShapeInferencePass(data_prop=False)(model)


def inline_functions(model: ir.Model) -> None:
    """Inlines the model's own functions, so that every pass sees every node."""
    if model.functions:
        passes.InlinePass()(model)
        passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]  # its __init__ has no types
        clean_up(model)
