"""Counts the attentions of a torch graph: the number that recognition, and every report, is held against.

Nothing here is shared with recognition, so that what it does not see is missed by name and not in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnport.artifacts import SourceAttention

if TYPE_CHECKING:
    import torch

# Between a softmax and the product that uses it, these change layout, type or a few elements, not the meaning.
_LAYOUT = (
    *("view", "reshape", "unsafe_view", "view_as", "flatten", "unflatten", "as_strided", "contiguous", "clone"),
    *("transpose", "permute", "movedim", "swapaxes", "t", "unsqueeze", "squeeze", "alias", "detach", "lift_fresh_copy"),
    *("expand", "expand_as", "repeat", "slice", "select", "narrow", "getitem", "split", "split_with_sizes", "chunk"),
    *("unbind", "cat", "stack", "pad", "constant_pad_nd", "roll", "index", "index_select", "gather", "unfold"),
    *("to", "to_copy", "type", "type_as", "half", "float", "double", "dropout", "native_dropout", "feature_dropout"),
)
_ARITHMETIC = ("masked_fill", "where", "nan_to_num", "mul", "div", "add", "sub", "neg", "clamp", "tril", "triu")
_PRODUCTS = ("matmul", "bmm", "baddbmm", "addbmm", "mm", "addmm", "mv", "dot", "einsum", "tensordot")
_SOFTMAXES = ("softmax", "special_softmax", "safe_softmax", "log_softmax", "special_log_softmax")


def count_attentions(program: torch.fx.GraphModule) -> tuple[SourceAttention, ...]:
    """Every scaled_dot_product_attention call, and every softmax whose result reaches a matrix product, in order.

    Branches of control flow (`torch.cond`) are graphs inside `program` and are counted with it, after it.
    """
    import torch

    found: list[tuple[str, str]] = []
    graphs = [each.graph for each in program.modules() if isinstance(each, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        operator = _operator(node)
        if "scaled_dot_product" in operator and "attention" in operator:
            found.append((module_path(node), "scaled_dot_product_attention"))
        elif operator in _SOFTMAXES and _reaches_product(node):
            found.append((module_path(node), "softmax"))
    return named(found)


def named(found: Iterable[tuple[str, str]]) -> tuple[SourceAttention, ...]:
    """Module paths and calls, in order, as attentions of which no two have one name."""
    seen: dict[str, int] = {}
    attentions = []
    for module, call in found:
        seen[module] = seen.get(module, 0) + 1
        name = module or "module"
        attentions.append(SourceAttention(name if seen[module] == 1 else f"{name}#{seen[module] - 1}", module, call))
    return tuple(attentions)


def module_path(node: torch.fx.Node) -> str:
    """The path of the module whose forward made the call, as in `named_modules`; "" for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] if isinstance(entry, tuple) else "" for entry in stack.values()]
    return str(paths[-1]) if paths else ""


def _operator(node: Any) -> str:
    """`softmax` for `aten.softmax.int` and for `aten._softmax.default`; "" for what is no call."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0].strip("_")


def _reaches_product(softmax: Any) -> bool:
    """Whether the probabilities enter a product; those of a log-softmax are none before their exponential is taken."""
    pending = [(softmax, user, "log" in _operator(softmax), False) for user in softmax.users]
    seen = set()
    while pending:
        source, node, logarithm, changed = pending.pop()
        if (node, logarithm, changed) in seen:
            continue
        seen.add((node, logarithm, changed))
        operator = _operator(node)
        # A gate (x * softmax(x)) feeds a linear layer as well: that one counts for probabilities as they are alone.
        if not logarithm and (operator in _PRODUCTS or (operator == "linear" and not changed)):
            return True
        if operator == "exp" and logarithm:
            logarithm = False
        elif operator in _ARITHMETIC and _is_as_wide(source, node):
            changed = True
        elif operator not in _LAYOUT:
            continue
        pending.extend((node, user, logarithm, changed) for user in node.users)
    return False


def _is_as_wide(source: Any, node: Any) -> bool:
    """Whether arithmetic left the last axis its size; a gate `[B,S,1]` that scales features spreads over theirs."""
    before, after = (getattr(each.meta.get("val"), "shape", None) for each in (source, node))
    return not before or not after or str(before[-1]) == str(after[-1])
