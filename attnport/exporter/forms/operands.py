"""q, k and v as the forms need them: q scaled, k as it is or transposed, with as few nodes as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.moves import perm_of

if TYPE_CHECKING:
    import onnx_ir as ir


ForEachHead = Callable[[Builder, Attention, "ir.Value"], "ir.Value"]
"""Gives keys or values for every query head."""


def operands(
    build: Builder, attention: Attention, compute: ir.DataType, factor: float, for_each_head: ForEachHead
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The operands of a form's products: q times a factor, k transposed, and v, each cast to `compute`."""
    q = build.cast(scaled(build, attention.q, factor), compute, "q_cast")
    k_transposed = build.cast(for_each_head(build, attention, transposed_key_of(build, attention)), compute, "k_cast")
    v = build.cast(for_each_head(build, attention, attention.v), compute, "v_cast")
    return q, k_transposed, v


def scaled(build: Builder, q: ir.Value, factor: float) -> ir.Value:
    """q times a factor in the dtype of q, before a cast to half precision, so that the factor is not rounded."""
    return q if factor == 1.0 else build.op("Mul", q, build.like(factor, q), name="scale_q")


def key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., T, D]`; if the graph only has it transposed, the transposition is undone."""
    if attention.k is not None:
        return attention.k
    transposed = attention.k_transposed
    assert transposed is not None
    node = transposed.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        perm = perm_of(node, 4)
        perm[-1], perm[-2] = perm[-2], perm[-1]
        if perm == sorted(perm):
            return node.inputs[0]
        return build.op("Transpose", node.inputs[0], name="k", perm=perm)
    return build.op("Transpose", transposed, name="k", perm=[0, 1, 3, 2])


def transposed_key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., D, T]`; if k is itself the result of a transposition, the two become one."""
    if attention.k_transposed is not None:
        return attention.k_transposed
    assert attention.k is not None
    perm = [0, 1, 3, 2]
    node = attention.k.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        before = perm_of(node, 4)
        return build.op("Transpose", node.inputs[0], name="k_transposed", perm=[before[at] for at in perm])
    return build.op("Transpose", attention.k, name="k_transposed", perm=perm)
