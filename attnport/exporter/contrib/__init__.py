"""ONNX Runtime's own operators in graphs: written where they are the fastest form, and expanded in imported files.

What an operator computes, and its inputs, is in `attnport.contrib`; each file here has, for a family of operators, how
they are written, what they are expanded to, and the sizes of what they give; `o` are the operands of one by their
names. To be read in this order: `parts`, `group_query`, `multi_head`, `layers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnport.contrib import SCHEMAS, operands
from attnport.exporter.builder import Builder
from attnport.exporter.contrib import group_query, layers, multi_head
from attnport.exporter.contrib.parts import Operator
from attnport.exporter.graph.size_rules import KnownSizes, Sizes
from attnport.onnx_graph import CONTRIB, attributes_of, ir

OPERATORS: dict[str, Operator] = {**group_query.OPERATORS, **layers.OPERATORS, **multi_head.OPERATORS}


def expand_all(model: ir.Model) -> None:
    """Replaces the operators that have a form in ONNX's own, so that every runtime has them.

    An operator that cannot be expanded is left as it is.

    Args:
        model: At the opset of exports, with known sizes, without functions of its own.
    """
    build = Builder(model)
    for node in list(model.graph):
        if node.domain != CONTRIB or node.op_type not in OPERATORS:
            continue
        build.before, build.scope = node, node.name or node.op_type
        for value in node.inputs:
            if value is not None and value.dtype is None:
                value.dtype = ir.DataType.FLOAT  # inference stops at operators that are not ONNX's
        try:
            made = OPERATORS[node.op_type].expand(build, operands(node.op_type, node.inputs, attributes_of(node)))
        except NotImplementedError:  # `operands` or `expand` does not know this use: the operator stays
            continue
        pairs = list(zip(node.outputs, [*made, *[None] * len(node.outputs)], strict=False))
        if any(new is None and (old.uses() or old.is_graph_output()) for old, new in pairs):
            continue
        for old, new in pairs:
            if new is not None:
                build.replace(old, new)
        model.graph.remove(node, safe=True)


def sizes_of(run: KnownSizes, node: ir.Node) -> Sequence[Sizes | None]:
    """The sizes of the outputs of an operator of com.microsoft; None where one is not known."""
    sizes = [run.sizes.get(value) if value is not None else None for value in node.inputs]
    if node.op_type not in OPERATORS or not sizes or sizes[0] is None:
        return [None]
    try:
        known = operands(node.op_type, sizes[: len(SCHEMAS[node.op_type].inputs)], attributes_of(node))
    except NotImplementedError:
        return [None]
    return OPERATORS[node.op_type].shape(run, known, node)
