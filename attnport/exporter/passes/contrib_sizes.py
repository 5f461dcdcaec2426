"""Sizes of what ONNX Runtime's own operators give, which the standard's inference does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnport.exporter.passes.known_sizes import KnownSizes, Sizes

if TYPE_CHECKING:
    import onnx_ir as ir


def contrib_sizes(run: KnownSizes, node: ir.Node) -> Sequence[Sizes | None]:
    """The shapes of a node's outputs; None where one is not known."""
    rule = _RULES.get(node.op_type)
    given = [run.sizes.get(value) if value is not None else None for value in node.inputs]
    return rule(run, node, given) if rule is not None and given and given[0] is not None else [None]


def _same(run: KnownSizes, node: ir.Node, given: list[Any]) -> Sequence[Sizes | None]:
    return [given[0]]


def _skipped(run: KnownSizes, node: ir.Node, given: list[Any]) -> Sequence[Sizes | None]:
    return [given[0], None, None, given[0]]


def _product(run: KnownSizes, node: ir.Node, given: list[Any]) -> Sequence[Sizes | None]:
    return [(*given[0][:-1], run.size(node.attributes["N"].as_int()))]


def _heads(run: KnownSizes, node: ir.Node, given: list[Any]) -> Sequence[Sizes | None]:
    """[B,T,E] of queries [B,T,E], or of all three as [B,T,H,3,D]; values may be of another width."""
    x, values = given[0], given[2] if len(given) > 2 else None
    if len(x) == 5:
        return [(*x[:2], x[2] * x[4])]
    if len(x) != 3:
        return [None]
    width = None
    if values is not None:
        width = values[2] if len(values) == 3 else values[1] * values[3] if len(values) == 4 else None
    elif len(given) > 1 and given[1] is not None:
        width = x[2]
    return [None if width is None else (*x[:2], width)]


def _packed(run: KnownSizes, node: ir.Node, given: list[Any]) -> Sequence[Sizes | None]:
    weight = given[1]
    if weight is None or len(given[0]) != 3:
        return [None]
    sizes = node.attributes["qkv_hidden_sizes"].as_ints() if "qkv_hidden_sizes" in node.attributes else ()
    return [(*given[0][:2], run.size(int(sizes[2])) if sizes else weight[1] / 3)]


def _groups(run: KnownSizes, node: ir.Node, given: list[Any]) -> Sequence[Sizes | None]:
    x, is_packed = given[0], node.inputs[1] is None
    if len(x) != 3:
        return [None]
    heads, groups = (node.attributes[name].as_int() for name in ("num_heads", "kv_num_heads"))
    return [(*x[:2], x[2] * heads / (heads + 2 * groups) if is_packed else x[2])]


_RULES: dict[str, Callable[[KnownSizes, Any, list[Any]], Sequence[Sizes | None]]] = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding"), _same),
    "SimplifiedLayerNormalization": _same,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skipped),
    "MatMulNBits": _product,
    "MultiHeadAttention": _heads,
    "Attention": _packed,
    "GroupQueryAttention": _groups,
}
