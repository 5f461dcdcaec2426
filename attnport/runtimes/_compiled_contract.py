"""Makes a graph captured by torch.compile follow the mask contract.

In PyTorch eager, dispatch modes do this (`_torch_modes`), but dynamo does not compile under them. So the graph gets
nodes that do the same after each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor, fx


def follow_contract(graph: fx.GraphModule) -> int:
    """Adds nodes that set rows with no allowed key to zero after every attention of a captured graph.

    Args:
        graph: The graph that dynamo gives to a backend: calls of torch's functions and Tensor's methods. It is changed.

    Returns:
        The number of calls that got such a node.

    Raises:
        SpecError: the module calls an attention that the graph does not show.
    """
    from attnport.runtimes._torch_modes import OPAQUE, SOFTMAXES, zero_hidden_probabilities, zero_hidden_rows

    followed = 0
    for node in list(graph.graph.nodes):
        name = _name(node)
        if name in OPAQUE or name == "multi_head_attention_forward":
            raise SpecError(
                f"the module calls {name}, whose attention cannot be reached.",
                hint="Run attention through scaled_dot_product_attention.",
            )
        function: Callable[..., Tensor]
        arguments: tuple[Any, ...]
        if name == "scaled_dot_product_attention":
            function, arguments = zero_hidden_rows, (node, _given(node, 3, "attn_mask"))
            if arguments[1] is None:
                continue  # is_causal is aligned upper left: every query sees key 0
        elif name in SOFTMAXES:
            dim = _given(node, 1, "dim")
            function = zero_hidden_probabilities
            arguments = (node, _given(node, 0, "input"), -1 if dim is None else dim)
        else:
            continue
        with graph.graph.inserting_after(node):
            new = graph.graph.call_function(function, arguments)
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
        followed += 1
    graph.recompile()
    return followed


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def _given(node: fx.Node, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)
