"""Rewrites the torch graph where torch's exporter fails before it asks for a translation."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def promote(program: torch.export.ExportedProgram) -> int:
    """Casts integers before a float is added to them or taken from them, in place; returns how many were cast.

    torch 2.13 cannot decompose `1.0 - mask` of an integer mask (https://github.com/pytorch/pytorch/issues/194381).
    """
    import torch

    aten = torch.ops.aten
    changed = 0
    for node in list(program.graph.nodes):
        if node.target not in (aten.rsub.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.add.Scalar):
            continue
        value, scalar = node.args[0], node.args[1] if len(node.args) > 1 else None
        if not isinstance(scalar, float) or not isinstance(value, torch.fx.Node):
            continue
        before, after = value.meta["val"], node.meta["val"]
        if before.dtype.is_floating_point or not after.dtype.is_floating_point:
            continue
        with program.graph.inserting_before(node):
            cast = program.graph.call_function(aten._to_copy.default, (value,), {"dtype": after.dtype})
        cast.meta = {**node.meta, "val": before.to(after.dtype)}
        node.replace_input_with(value, cast)
        changed += 1
    return changed


def slice_splits(program: torch.export.ExportedProgram) -> int:
    """Writes `split` and `chunk` of a dynamic size as slices, in place; returns how many there were.

    The exporter's own form is a sequence that its optimizer cannot fold
    (https://github.com/microsoft/onnxscript/pull/2434 is about the same of `chunk`).
    """
    import torch

    aten, graph = torch.ops.aten, program.graph
    changed = 0
    for node in list(graph.nodes):
        chunks = node.target is aten.chunk.default
        if not chunks and not (node.target is aten.split.Tensor and isinstance(node.args[1], torch.fx.Node)):
            continue
        value, dim = node.args[0], node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        total = value.meta["val"].shape[dim]
        parts = [user for user in node.users if user.target is operator.getitem]
        if isinstance(total, int) or len(parts) != len(node.users):
            continue
        with graph.inserting_before(node):
            size = node.args[1]
            if chunks:
                # Parts are of the size rounded up, the last one of what is left.
                whole = _call(graph, aten.sym_size.int, (value, dim), total)
                more = _call(graph, operator.add, (whole, node.args[1] - 1), total + node.args[1] - 1)
                size = _call(graph, operator.floordiv, (more, node.args[1]), (total + node.args[1] - 1) // node.args[1])
        for part in parts:
            at, known = part.args[1], size.meta["val"]
            with graph.inserting_before(part):
                begin = _call(graph, operator.mul, (size, at), known * at)
                end = _call(graph, operator.mul, (size, at + 1), known * (at + 1))
                slice_ = graph.call_function(aten.slice.Tensor, (value, dim, begin, end))
            slice_.meta = dict(part.meta)
            part.replace_all_uses_with(slice_)
            graph.erase_node(part)
        graph.erase_node(node)
        changed += 1
    return changed


def _call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], value: Any) -> torch.fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = value
    return node
