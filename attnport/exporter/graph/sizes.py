"""Infers shapes as formulas of the graph's named dims, through the arithmetic that exporters do on shapes.

The standard's inference stops where a shape is computed (`Shape`, `Gather`, `Concat`, `Where`, `Reshape`): it then
knows neither the head count nor that two lengths are equal. Here each size is a formula (`batch`, `4*batch`, 16), so
that constant sizes become numbers and equal sizes get one name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from attnport.exporter.contrib import sizes_of
from attnport.exporter.graph.size_rules import CONTENTS, MAX_CONTENT, SHAPES, KnownSizes, Size
from attnport.onnx_graph import CONTRIB, ir, passes

_BROADCAST = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater"),
    *("GreaterOrEqual", "Min", "Max", "Sum", "Mean", "PRelu", "BitwiseAnd", "BitwiseOr"),
)


def infer_sizes(model: ir.Model) -> int:
    """Gives every value a shape in which equal sizes have equal names, and turns known integers into constants.

    Returns how many integer tensors became constants. Values inside control flow keep their shapes. A size that no rule
    gives gets a new name.
    """
    return Inference(model).run()


def settle_sizes(model: ir.Model) -> int:
    """Gives every value its type and shape, in place; returns how many integer tensors became constants."""
    shapes = {value: value.shape for node in model.graph for value in node.outputs if value.shape is not None}
    passes.ShapeInferencePass(data_prop=False)(model)  # for the types; it renames dims, so the shapes are put back
    for value, shape in shapes.items():
        value.shape = shape
    constants = infer_sizes(model)
    passes.RemoveUnusedNodesPass()(model)
    return constants


class Inference(KnownSizes):
    """Visits the nodes in graph order, infers sizes and contents, and writes them into the graph."""

    def run(self) -> int:
        """Visits every node in order and writes the results; returns how many integer tensors became constants."""
        for value in (*self.graph.inputs, *self.graph.initializers.values()):
            if value.shape is not None:
                self.sizes[value] = tuple(map(self.size, value.shape))
            tensor = value.const_value
            if tensor is not None and tensor.dtype.is_integer() and tensor.size <= MAX_CONTENT:
                self.contents[value] = self.exact(tensor.numpy())
        for node in self.graph:
            self.visit(node)
        return self.write()

    def visit(self, node: ir.Node) -> None:
        """Infers the contents and the shapes of one node's outputs."""
        if node.domain == "" and node.op_type in CONTENTS:
            content = CONTENTS[node.op_type](self, node)
            if content is not None and content.size <= MAX_CONTENT:
                self.contents[node.outputs[0]] = content
        shapes: Sequence[Sequence[Size] | None] = [None]
        if node.domain == "" and node.op_type in SHAPES:
            shapes = [SHAPES[node.op_type](self, node)]
        elif node.domain == "" and node.op_type in _BROADCAST:
            known = [self.sizes.get(value) for value in node.inputs if value is not None]
            shapes = [self.broadcast([sizes for sizes in known if sizes is not None]) if None not in known else None]
        elif node.domain == CONTRIB:
            shapes = sizes_of(self, node)
        if shapes == [None]:
            shapes = self.by_standard(node)
        for value, sizes in itertools.zip_longest(node.outputs, shapes):
            if value is not None:
                self.learn(value, sizes)

    def learn(self, value: ir.Value, sizes: Sequence[Size] | None) -> None:
        """Records the inferred sizes; an unknown size is taken from the graph's own shape."""
        graph = tuple(map(self.size, value.shape)) if value.shape is not None else None
        if sizes is not None and graph is not None and len(sizes) == len(graph):
            sizes = [ours if self.has_name(ours) else theirs for ours, theirs in zip(sizes, graph, strict=True)]
            for ours, theirs in zip(sizes, graph, strict=True):
                # A name that the exporter gave stands for one size, wherever it occurs.
                if theirs != ours and theirs.is_Symbol and self.has_name(theirs) and theirs.name not in self.given:
                    self.meaning[theirs.name] = ours
                    if not ours.is_Integer and not ours.is_Symbol:
                        self.names.setdefault(ours, theirs.name)
        best = sizes if sizes is not None else graph
        if best is not None:
            self.sizes[value] = tuple(best)

    def write(self) -> int:
        """Writes the sizes into the graph, and replaces integer tensors whose elements are all known by constants."""
        constants = 0
        # Earlier runs of this pass and other exporters gave names of their own; ONNX Runtime reuses memory by names.
        self.taken |= {symbol.name for sizes in self.sizes.values() for size in sizes for symbol in size.free_symbols}
        for value, sizes in self.sizes.items():
            if not value.is_graph_input() and value.const_value is None:
                meant: list[Size] = [self.meaning.get(str(size), size) for size in sizes]
                value.shape = ir.Shape([int(size) if size.is_Integer else self.name(size) for size in meant])
        for value, content in self.contents.items():
            known = all(getattr(size, "is_Integer", False) for size in content.reshape(-1))
            if value.const_value is None and not value.is_graph_output() and known and value.dtype is not None:
                array = np.asarray([int(size) for size in content.reshape(-1)], value.dtype.numpy())
                name = f"{value.name}/known"
                while name in self.graph.initializers:  # an earlier run named another value so
                    name = f"{name}_"
                constant = ir.Value(name=name, const_value=ir.tensor(array.reshape(content.shape)))
                constant.shape, constant.type = ir.Shape(content.shape), value.type
                self.graph.register_initializer(constant)
                ir.convenience.replace_all_uses_with(value, constant)
                constants += 1
        return constants

    def name(self, size: Size) -> str:
        """The name of a size in the graph; equal sizes have equal names."""
        if size.is_Symbol and self.has_name(size) and size.name not in self.meaning:
            return str(size.name)
        if size not in self.names:
            taken = self.taken | set(self.names.values()) | self.meaning.keys()
            self.names[size] = next(name for number in itertools.count() if (name := f"size{number}") not in taken)
        return self.names[size]
