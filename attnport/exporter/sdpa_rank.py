"""Rewrites scaled_dot_product_attention so that torch's exporter and ONNX Runtime take it.

torch's exporter accepts rank 4 alone. ONNX Runtime's `Attention` refuses a mask that broadcasts over the queries or the
keys, such as `[B,1,1,T]`, which the standard and torch allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def to_rank_4(program: torch.export.ExportedProgram) -> int:
    """Rewrites each `sdpa` of rank 3 to one head, and of rank 5 or more to one batch axis, in place.

    Returns how many were rewritten. A call whose leading axes broadcast is left, and the exporter refuses it.
    """
    changed = 0
    for node in _calls(program):
        rank = node.args[0].meta["val"].dim()
        if rank == 3:
            _add_head_axis(node.graph, node)
        elif rank > 4 and _have_equal_leading_axes(node.args[:3]):
            _merge_leading_axes(node.graph, node)
        else:
            continue
        changed += 1
    return changed


def share_heads(program: torch.export.ExportedProgram) -> int:
    """Marks each `sdpa` of rank 4 whose keys and values have one head for all queries, in place; returns how many.

    torch broadcasts such a head without being told (Falcon's do); the exporter takes it only as grouped heads.
    """
    changed = 0
    for node in _calls(program):
        q, k, v = (value.meta["val"] for value in node.args[:3])
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or node.kwargs.get("enable_gqa"):
            continue
        if _same(k.shape[1], 1) and _same(v.shape[1], 1) and not _same(q.shape[1], 1) and _same(q.shape[0], k.shape[0]):
            node.kwargs = {**node.kwargs, "enable_gqa": True}
            changed += 1
    return changed


def widen_masks(program: torch.export.ExportedProgram) -> int:
    """Expands each mask of `sdpa` that broadcasts over queries or keys to `[...,S,T]`, in place; returns how many."""
    import torch

    changed = 0
    for node in _calls(program):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if mask is None:
            continue
        q, k, *_ = node.args
        val = mask.meta["val"]
        lengths = (q.meta["val"].shape[-2], k.meta["val"].shape[-2])
        if all(map(_same, val.shape[-2:], lengths)):
            continue
        lead = [-1] * (val.dim() - 2)
        with node.graph.inserting_before(node):
            sizes = [*lead, *(size for of in (q, k) for size in _sizes(node, of, (of.meta["val"].dim() - 2,)))]
            wide = node.graph.call_function(torch.ops.aten.expand.default, (mask, sizes))
        wide.meta = {**node.meta, "val": val.expand(*lead, *lengths)}
        node.replace_input_with(mask, wide)
        changed += 1
    return changed


def _calls(program: torch.export.ExportedProgram) -> list[Any]:
    """The calls of `sdpa` in the graph and its branches; what is done to them needs no recompiling."""
    import torch

    attention = torch.ops.aten.scaled_dot_product_attention.default
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    return [node for graph in graphs for node in graph.find_nodes(op="call_function", target=attention)]


def _sizes(near: Any, value: Any, axes: Iterable[int]) -> list[Any]:
    """Sizes of a value, as numbers or as nodes that read them where the graph is being changed."""
    import torch

    result: list[Any] = []
    for axis in axes:
        size = value.meta["val"].shape[axis]
        if not isinstance(size, int):
            read = near.graph.call_function(torch.ops.aten.sym_size.int, (value, axis))
            read.meta = {**near.meta, "val": size}
            size = read
        result.append(size)
    return result


def _have_equal_leading_axes(values: Any) -> bool:
    first, *others = (list(value.meta["val"].shape[:-3]) for value in values)
    return all(len(other) == len(first) and all(map(_same, other, first)) for other in others)


def _same(size: Any, other: Any) -> bool:
    """Whether two sizes are the same expression; comparing the sizes themselves would add a guard to the trace."""
    return str(size) == str(other)


def _add_head_axis(graph: torch.fx.Graph, node: Any) -> None:
    import torch

    unsqueeze, squeeze = torch.ops.aten.unsqueeze.default, torch.ops.aten.squeeze.dim

    def head(value: Any) -> Any:
        # A mask of rank 2 broadcasts over heads as it does over the batch.
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dim() != 3:
            return value
        unsqueezed = graph.call_function(unsqueeze, (value, 1))
        unsqueezed.meta = {**node.meta, "val": value.meta["val"].unsqueeze(1)}
        return unsqueezed

    whole = node.meta["val"]
    with graph.inserting_before(node):
        node.args = tuple(head(argument) for argument in node.args)
        node.kwargs = {name: head(argument) for name, argument in node.kwargs.items()}
    with graph.inserting_after(node):
        back = graph.call_function(squeeze, (node, 1))
    _replace_result(node, back, whole, whole.unsqueeze(1))


def _merge_leading_axes(graph: torch.fx.Graph, node: Any) -> None:
    """`[A,B,H,S,D]` as `[A B,H,S,D]`; a mask with leading axes of other sizes is broadcast to all of them."""
    import torch

    q, whole = node.args[0], node.meta["val"]
    rank = q.meta["val"].dim()

    def call(target: Any, value: Any, *arguments: Any, val: Any) -> Any:
        result = graph.call_function(target, (value, *arguments))
        result.meta = {**node.meta, "val": val}
        return result

    def merged(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dim() < 4:
            return value
        val = value.meta["val"]
        lead = q.meta["val"].shape[: rank - 3]
        if len(val.shape) != rank or not all(map(_same, val.shape[:-3], lead)):
            whole_val = val.expand(*lead, *val.shape[-3:])
            wanted = [*_sizes(node, q, range(rank - 3)), *[-1] * 3]
            value, val = call(torch.ops.aten.expand.default, value, wanted, val=whole_val), whole_val
        return call(torch.ops.aten.flatten.using_ints, value, 0, rank - 4, val=val.flatten(0, rank - 4))

    with graph.inserting_before(node):
        shape = [*_sizes(node, q, range(rank - 1)), *_sizes(node, node.args[2], range(rank - 1, rank))]
        node.args = tuple(merged(argument) for argument in node.args)
        node.kwargs = {name: merged(argument) for name, argument in node.kwargs.items()}
    with graph.inserting_after(node):
        back = graph.call_function(torch.ops.aten.reshape.default, (node, shape))
    _replace_result(node, back, whole, whole.flatten(0, rank - 4))


def _replace_result(node: Any, back: Any, whole: Any, own: Any) -> None:
    """Makes the users of `node` read `back`, whose value is `whole`; the node itself now has the value `own`."""
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
    back.meta = {**node.meta, "val": whole}
    node.meta["val"] = own
