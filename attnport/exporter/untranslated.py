"""Rewrites the torch graph where torch's exporter fails before it asks for a translation, or writes what few runtimes
take."""

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


def choose_by_masks(program: torch.export.ExportedProgram) -> int:
    """Writes `x[mask] = value` of a bool mask as a choice between both, in place; returns how many there were.

    The exporter writes it with `NonZero`, which TensorRT-RTX does not have, and whose size no runtime knows beforehand.
    It is left where the value has another element for each place at which the mask is true, unless that is `y[mask]`.
    """
    import torch

    aten, graph = torch.ops.aten, program.graph
    changed = 0
    for node in list(graph.nodes):
        in_place = node.target is aten.index_put_.default
        if not (in_place or node.target is aten.index_put.default) or (*node.args[3:], False)[0]:
            continue
        x, indices, value = node.args[:3]
        *before, mask = indices
        if any(index is not None for index in before) or mask.meta["val"].dtype != torch.bool:
            continue
        behind = x.meta["val"].dim() - len(before) - mask.meta["val"].dim()
        with graph.inserting_before(node):
            value = _at_each_place(node, value, behind)
            if value is None:
                continue
            for _ in range(behind):
                mask = _made(graph, aten.unsqueeze.default, mask, -1)
            if value.meta["val"].dtype != x.meta["val"].dtype:
                value = _made(graph, aten.to.dtype, value, x.meta["val"].dtype)
            chosen = _made(graph, aten.where.self, mask, value, x)
            if in_place:
                chosen = _made(graph, aten.copy_.default, x, chosen)
        chosen.meta |= {key: kept for key, kept in node.meta.items() if key != "val"}
        node.replace_all_uses_with(chosen)
        graph.erase_node(node)
        changed += 1
    return changed


def _at_each_place(put: torch.fx.Node, value: torch.fx.Node, behind: int) -> torch.fx.Node | None:
    """The value of `x[indices] = value` in a form that broadcasts over `x`; None if it has none.

    Args:
        put: The call.
        behind: The axes of `x` behind those of the mask.
    """
    import torch

    aten, sizes = torch.ops.aten, value.meta["val"].shape
    x, indices = _arguments(put)
    if value.target is aten.index.Tensor and _equal(value.args[1], indices):
        source: torch.fx.Node
        source, same = _arguments(value)
        order = {node: at for at, node in enumerate(put.graph.nodes)}
        first = min(order[node] for node in (value, *same, *indices) if node is not None)
        written = any(_writes(node) for node in list(order)[first : order[put]])
        if not written and _unwritten(source) and _equal_sizes(source, x):
            return source
    if len(sizes) <= behind or all(isinstance(size, int) and size == 1 for size in sizes[: len(sizes) - behind]):
        while len(value.meta["val"].shape) > behind:
            value = _made(value.graph, aten.squeeze.dim, value, 0)
        return value
    return None


def _arguments(node: torch.fx.Node) -> tuple[Any, Any]:
    """The tensor that is indexed, and the indices."""
    return node.args[0], node.args[1]


def _equal_sizes(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two tensors have the same sizes, as the graph knows them."""
    return [str(size) for size in one.meta["val"].shape] == [str(size) for size in other.meta["val"].shape]


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments are the same value, computed twice or once."""
    import torch

    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node):
        return bool(type(one) is type(other) and one == other)
    if not _unwritten(one) or not _unwritten(other):
        return False
    same = one.op == other.op == "call_function" and one.target is other.target
    return one is other or (same and one.kwargs == other.kwargs and _equal(one.args, other.args))


def _unwritten(node: torch.fx.Node) -> bool:
    """Whether nothing writes into a node's result in place, nor is it a random number or a result in place itself."""
    import torch

    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    written = any(_writes(user) and user.args[0] is node for user in node.users)
    return not (written or random or _writes(node))


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _made(graph: torch.fx.Graph, target: Any, *args: Any) -> torch.fx.Node:
    """A call at the graph's place of insertion, with the shape and type of its result."""
    import torch

    values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
    return _call(graph, target, args, target(*values))


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
