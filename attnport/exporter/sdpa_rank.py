"""scaled_dot_product_attention of any rank, at rank 4: torch's exporter takes no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def to_rank_4(program: torch.export.ExportedProgram) -> int:
    """Rewrites each `sdpa` of rank 3 over one head, and of rank 5 and more over one batch axis, in place.

    Returns how many there were. One whose leading axes broadcast is left, for the exporter to refuse.
    """
    import torch

    attention = torch.ops.aten.scaled_dot_product_attention.default
    changed = 0
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=attention):
            rank = node.args[0].meta["val"].dim()
            if rank == 3:
                _add_head_axis(module.graph, node)
            elif rank > 4 and _have_equal_leading_axes(node.args[:3]):
                _merge_leading_axes(module.graph, node)
            else:
                continue
            changed += 1
        module.recompile()
    return changed


def _have_equal_leading_axes(values: Any) -> bool:
    first, *others = (list(each.meta["val"].shape[:-3]) for each in values)
    return all(len(other) == len(first) and all(map(_same, other, first)) for other in others)


def _same(size: Any, other: Any) -> bool:
    """Whether two sizes are one, without a guard where they are only so at the traced sizes."""
    return str(size) == str(other)


def _add_head_axis(graph: torch.fx.Graph, node: Any) -> None:
    import torch

    unsqueeze, squeeze = torch.ops.aten.unsqueeze.default, torch.ops.aten.squeeze.dim

    def head(value: Any) -> Any:
        # A mask of rank 2 broadcasts over heads as it does over the batch.
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dim() != 3:
            return value
        made = graph.call_function(unsqueeze, (value, 1))
        made.meta = {**node.meta, "val": value.meta["val"].unsqueeze(1)}
        return made

    whole = node.meta["val"]
    with graph.inserting_before(node):
        node.args = tuple(head(each) for each in node.args)
        node.kwargs = {name: head(each) for name, each in node.kwargs.items()}
    with graph.inserting_after(node):
        back = graph.call_function(squeeze, (node, 1))
    _put_behind(node, back, whole, whole.unsqueeze(1))


def _merge_leading_axes(graph: torch.fx.Graph, node: Any) -> None:
    """`[A,B,H,S,D]` as `[A B,H,S,D]`; a mask that has leading axes of its own is spread over all of them."""
    import torch

    q, whole = node.args[0], node.meta["val"]
    rank = q.meta["val"].dim()

    def sizes(value: Any, axes: range) -> list[Any]:
        found = []
        for axis in axes:
            size = value.meta["val"].shape[axis]
            if not isinstance(size, int):
                made = graph.call_function(torch.ops.aten.sym_size.int, (value, axis))
                made.meta = {**node.meta, "val": size}
                size = made
            found.append(size)
        return found

    def made(target: Any, value: Any, *arguments: Any, val: Any) -> Any:
        call = graph.call_function(target, (value, *arguments))
        call.meta = {**node.meta, "val": val}
        return call

    def merged(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dim() < 4:
            return value
        val = value.meta["val"]
        lead = q.meta["val"].shape[: rank - 3]
        if len(val.shape) != rank or not all(map(_same, val.shape[:-3], lead)):
            whole_val = val.expand(*lead, *val.shape[-3:])
            wanted = [*sizes(q, range(rank - 3)), *[-1] * 3]
            value, val = made(torch.ops.aten.expand.default, value, wanted, val=whole_val), whole_val
        return made(torch.ops.aten.flatten.using_ints, value, 0, rank - 4, val=val.flatten(0, rank - 4))

    with graph.inserting_before(node):
        shape = [*sizes(q, range(rank - 1)), *sizes(node.args[2], range(rank - 1, rank))]
        node.args = tuple(merged(each) for each in node.args)
        node.kwargs = {name: merged(each) for name, each in node.kwargs.items()}
    with graph.inserting_after(node):
        back = graph.call_function(torch.ops.aten.reshape.default, (node, shape))
    _put_behind(node, back, whole, whole.flatten(0, rank - 4))


def _put_behind(node: Any, back: Any, whole: Any, own: Any) -> None:
    """Gives `back` to the users of `node`, with the value `whole`; the node's own is `own` now."""
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
    back.meta = {**node.meta, "val": whole}
    node.meta["val"] = own
