"""The mask contract written into a graph that torch.compile captured.

Dispatch modes, by which PyTorch eager follows the contract (`_torch_modes`), keep dynamo from compiling. So what they
do around a call becomes nodes behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor, fx


def follow_contract(graph: fx.GraphModule) -> int:
    """Zeroes, behind every attention of a captured graph, the rows with no allowed key.

    Args:
        graph: As dynamo gives it to a backend: calls of torch's functions and Tensor's methods. It is changed.

    Returns:
        How many calls were followed.

    Raises:
        SpecError: an attention that cannot be reached.
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
        then: Callable[..., Tensor]
        given: tuple[Any, ...]
        if name == "scaled_dot_product_attention":
            then, given = zero_hidden_rows, (node, _given(node, 3, "attn_mask"))
            if given[1] is None:
                continue  # is_causal is aligned upper left: every query sees key 0
        elif name in SOFTMAXES:
            dim = _given(node, 1, "dim")
            then = zero_hidden_probabilities
            given = (node, _given(node, 0, "input"), -1 if dim is None else dim)
        else:
            continue
        with graph.graph.inserting_after(node):
            new = graph.graph.call_function(then, given)
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
