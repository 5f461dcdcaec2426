"""Counts the attentions of a torch graph or an ONNX graph: every report is compared with this number.

The count shares no code with recognition, so that an attention that recognition overlooks is reported by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnport.artifacts import SourceAttention
from attnport.exporter.naming import module_of
from attnport.onnx_graph import CONTRIB
from attnport.user_code import module_path

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch


@dataclass(frozen=True)
class _Vocabulary:
    """The operators that one kind of graph has between a softmax and the product that uses it.

    Attributes:
        operator: Returns a node's operator, as it is written in the sets below.
        users: Returns the nodes that use a node's result.
        width: Returns the size of a result's last axis as text; "" if it is unknown.
        layout: Operators that change layout, type or a few elements, but not the meaning.
        arithmetic: Operators that change the numbers element by element.
        products: Products of two computed tensors.
        linear: Products with a weight.
        exponential: The operator that turns a log-softmax into probabilities.
    """

    operator: Callable[[Any], str]
    users: Callable[[Any], Iterable[Any]]
    width: Callable[[Any], str]
    layout: frozenset[str]
    arithmetic: frozenset[str]
    products: frozenset[str]
    linear: frozenset[str]
    exponential: str


def count_attentions(program: torch.fx.GraphModule) -> tuple[SourceAttention, ...]:
    """Every scaled_dot_product_attention call, and every softmax whose result reaches a matrix product, in order.

    Branches of control flow (`torch.cond`) are graphs inside `program`; they are counted after it.
    """
    import torch

    calls: list[tuple[str, str]] = []
    graphs = [submodule.graph for submodule in program.modules() if isinstance(submodule, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        operator = _call(node)
        if "scaled_dot_product" in operator and "attention" in operator:
            calls.append((module_path(node), "scaled_dot_product_attention"))
            continue
        is_softmax = operator.removeprefix("special_") in _SOFTMAXES or (operator == "exp" and _is_normalised(node))
        if is_softmax and _reaches_product(node, _TORCH, "log" in operator):
            calls.append((module_path(node), "softmax"))
    return _named(calls)


def _is_normalised(exponential: Any) -> bool:
    """Whether exponentials are the numerators of a softmax that is written out.

    Either a logsumexp was subtracted before, or they are summed over their last axis, perhaps after some of them were
    replaced by zero. Features of a linear attention, which may be exponentials too, are summed over the positions.
    """
    difference = exponential.args[0]
    if _call(difference) == "sub" and any(_call(_behind_layout(of)) == "logsumexp" for of in difference.args):
        return True
    pending, seen = [exponential], set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        for user in node.users:
            if _call(user) == "sum" and user.args[0] is node and _is_over_last_axis(user):
                return True
            if _call(user) in ("masked_fill", "where", "to", "clone") or (_call(user) == "mul" and _is_masked(user)):
                pending.append(user)
    return False


def _behind_layout(value: Any) -> Any:
    while _call(value) in ("unsqueeze", "expand", "view", "reshape"):
        value = value.args[0]
    return value


def _is_over_last_axis(total: Any) -> bool:
    axes = total.args[1] if len(total.args) > 1 else total.kwargs.get("dim")
    rank = total.args[0].meta["val"].dim()
    return axes is not None and [axis % rank for axis in axes] == [rank - 1]


def _is_masked(product: Any) -> bool:
    """Whether a factor of a product is a mask of booleans, cast to numbers."""
    import torch

    casts = [of for of in product.args if _call(of) in ("to", "to_copy", "float", "type_as")]
    return any(of.args[0].meta["val"].dtype == torch.bool for of in casts)


def count_in_graph(model: ir.Model) -> tuple[SourceAttention, ...]:
    """The same for an ONNX graph from another exporter: attention operators, and softmaxes that reach a product.

    Args:
        model: Without functions of its own (see `imported.prepare`); branches are counted after the main graph.
            The names are the module paths that the exporter left in the nodes' metadata or names.
    """
    import onnx_ir as ir

    calls: list[tuple[str, str]] = []
    main = list(model.graph)
    inner = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.graph is not model.graph]
    for node in (*main, *inner):
        if counts(node):
            softmax = node.domain == "" and node.op_type in SOFTMAX_NODES
            calls.append((module_of(node) or "", "softmax" if softmax else "scaled_dot_product_attention"))
    return _named(calls)


def counts(node: ir.Node) -> bool:
    """Whether a node of an ONNX graph is an attention by the rules of the count."""
    if node.op_type in _ATTENTIONS.get(node.domain, ()):
        return True
    return _onnx_call(node) in SOFTMAX_NODES and _reaches_product(node, ONNX, "Log" in node.op_type)


def _named(calls: Iterable[tuple[str, str]]) -> tuple[SourceAttention, ...]:
    """Attentions with unique names, from module paths and calls in order."""
    seen: dict[str, int] = {}
    attentions = []
    for module, operator in calls:
        seen[module] = seen.get(module, 0) + 1
        name = module or "module"
        attentions.append(
            SourceAttention(name if seen[module] == 1 else f"{name}#{seen[module] - 1}", module, operator)
        )
    return tuple(attentions)


def _reaches_product(softmax: Any, spelt: _Vocabulary, logarithm: bool) -> bool:
    """Whether the probabilities enter a product; the result of a log-softmax first has to pass its exponential."""
    pending = [(softmax, user, logarithm, False) for user in spelt.users(softmax)]
    seen = set()
    while pending:
        source, node, logarithm, changed = pending.pop()
        if (node, logarithm, changed) in seen:
            continue
        seen.add((node, logarithm, changed))
        operator = spelt.operator(node)
        # A gate (x * softmax(x)) feeds a linear layer too, so a linear layer counts only for unchanged probabilities.
        if not logarithm and (operator in spelt.products or (operator in spelt.linear and not changed)):
            return True
        if operator == spelt.exponential and logarithm:
            logarithm = False
        elif operator in spelt.arithmetic and _is_as_wide(source, node, spelt):
            changed = True
        elif operator not in spelt.layout:
            continue
        pending.extend((node, user, logarithm, changed) for user in spelt.users(node))
    return False


def _is_as_wide(source: Any, node: Any, spelt: _Vocabulary) -> bool:
    """Whether arithmetic kept the size of the last axis; a gate `[B,S,1]` on features is broadcast to their size."""
    before, after = spelt.width(source), spelt.width(node)
    return not before or not after or before == after


def _call(node: Any) -> str:
    """`softmax` for `aten.softmax.int` and for `aten._softmax.default`; "" for a node that is no call."""
    if getattr(node, "op", "") != "call_function":
        return ""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0].strip("_")


def _fx_width(node: Any) -> str:
    shape = getattr(node.meta.get("val"), "shape", None)
    return str(shape[-1]) if shape else ""


def _onnx_call(node: ir.Node) -> str:
    """The operator of a node, where a product with a weight is called `linear`."""
    if node.domain != "":
        return ""
    weighted = node.op_type in ("MatMul", "Gemm") and any(map(_is_weight, node.inputs[:2]))
    return "linear" if weighted else node.op_type


def _is_weight(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("Transpose", "Cast", "Identity", "Reshape"):
        value, node = node.inputs[0], node.inputs[0].producer() if node.inputs[0] is not None else None
    return (value is not None and value.const_value is not None) or (node is not None and node.op_type == "Constant")


def _onnx_users(node: ir.Node) -> list[ir.Node]:
    return [user for value in node.outputs for user in value.consumers()]


def _onnx_width(node: ir.Node) -> str:
    shape = node.outputs[0].shape
    dim = shape[-1] if shape is not None and len(shape) else None
    return str(dim if isinstance(dim, int) else dim.value or "") if dim is not None else ""


_SOFTMAXES = frozenset(("softmax", "safe_softmax", "log_softmax"))
SOFTMAX_NODES = frozenset(("Softmax", "LogSoftmax"))
_ATTENTIONS = {
    "": ("Attention",),
    CONTRIB: ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"),
}
_TORCH = _Vocabulary(
    _call,
    lambda node: node.users,
    _fx_width,
    layout=frozenset(
        (
            *("view", "reshape", "unsafe_view", "view_as", "flatten", "unflatten", "as_strided", "contiguous", "clone"),
            *("transpose", "permute", "movedim", "swapaxes", "t", "unsqueeze", "squeeze", "alias", "detach", "expand"),
            *("expand_as", "repeat", "slice", "select", "narrow", "getitem", "split", "split_with_sizes", "chunk"),
            *("unbind", "cat", "stack", "pad", "constant_pad_nd", "roll", "index", "index_select", "gather", "unfold"),
            *("to", "to_copy", "type", "type_as", "half", "float", "double", "lift_fresh_copy"),
            *("dropout", "native_dropout", "feature_dropout"),
        )
    ),
    arithmetic=frozenset(
        (
            *("masked_fill", "where", "nan_to_num", "mul", "div", "add", "sub", "neg", "clamp", "tril", "triu"),
            *("pow", "square", "sqrt", "abs", "log", "exp", "relu", "maximum", "minimum", "cumsum", "round"),
        )
    ),
    products=frozenset(("matmul", "bmm", "baddbmm", "addbmm", "mm", "mv", "dot", "einsum", "tensordot")),
    linear=frozenset(("linear", "addmm")),
    exponential="exp",
)
ONNX = _Vocabulary(
    _onnx_call,
    _onnx_users,
    _onnx_width,
    layout=frozenset(
        (
            *("Reshape", "Transpose", "Flatten", "Unsqueeze", "Squeeze", "Expand", "Tile", "Slice", "Split", "Concat"),
            *("Pad", "Gather", "GatherElements", "GatherND", "Cast", "CastLike", "Identity", "Dropout"),
        )
    ),
    arithmetic=frozenset(
        (
            *("Where", "Mul", "Div", "Add", "Sub", "Sum", "Neg", "Clip", "Trilu"),
            *("Pow", "Sqrt", "Abs", "Log", "Exp", "Relu", "Max", "Min", "CumSum", "Round"),
        )
    ),
    products=frozenset(("MatMul", "Gemm", "Einsum")),
    linear=frozenset(("linear",)),
    exponential="Exp",
)
