"""Attention of one head, without a head axis, given one: torch's exporter takes queries of rank 4 only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def add_head_axis(program: torch.export.ExportedProgram) -> int:
    """Rewrites `sdpa(q_BSD, k_BTD, v_BTD)` as `sdpa` over one head, in place; returns how many there were."""
    import torch

    attention = torch.ops.aten.scaled_dot_product_attention.default
    changed = 0
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=attention):
            if node.args[0].meta["val"].dim() == 3:
                _rewrite(module.graph, node)
                changed += 1
        module.recompile()
    return changed


def _rewrite(graph: torch.fx.Graph, node: Any) -> None:
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
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
    back.meta = {**node.meta, "val": whole}
    node.meta["val"] = whole.unsqueeze(1)
