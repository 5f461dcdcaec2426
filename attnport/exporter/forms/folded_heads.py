"""`MultiHeadAttention` with fewer heads of keys than of queries, behind a cache: no key is repeated.

The query heads that share a key head become further queries of it, `[B,S*R,G*D]`, and keys and values go in as the
cache holds them, `[B,G,T,D]`. A step of several texts is many times as fast so; a prompt is slower by a third, and is
run once (benchmarks/cuda_forms.json).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder, node_name
from attnport.exporter.forms.bias_and_rows import attention_bias, guarded, heads_first
from attnport.exporter.forms.contrib import contrib
from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.moves import known_size

if TYPE_CHECKING:
    import onnx_ir as ir

_GROUPS_LAST = (0, 1, 3, 2, 4)
"""A permutation that swaps groups and the heads of a group in `[B,S,G,R,D]`."""


def can_fold(attention: Attention) -> bool:
    """Whether heads are grouped and keys have another length than queries: with as many, repeated keys are quicker."""
    heads, groups = attention.head_counts()
    if heads is None or groups is None or groups >= heads or attention.k is None:
        return False
    depths = {known_size(value, 3) for value in (attention.q, attention.k, attention.v)}
    lengths = known_size(attention.q, 2), known_size(attention.v, 2)
    return len(depths) == 1 and isinstance(depths.pop(), int) and (None in lengths or lengths[0] != lengths[1])


def folded_attention(build: Builder, masks: MaskWriter, attention: Attention) -> tuple[ir.Value, tuple[str, ...]]:
    """Writes an attention for which `why_not_multi_head` returned "" and `can_fold` is true.

    Returns:
        The output, `[B,H,S,D]`, and the operator's node name.
    """
    import onnx_ir as ir

    heads, groups = attention.head_counts()
    depth = known_size(attention.q, 3)
    assert heads is not None
    assert groups is not None
    assert isinstance(depth, int)
    each = heads // groups
    bias = attention_bias(build, masks, attention)
    if bias is not None:
        bias = _bias_of_rows(build, attention, bias, heads, groups, masks.may_vary_by_head(attention))
    rows = _queries(build, attention.q, groups, each, depth)
    output = contrib(
        build, "MultiHeadAttention", rows, attention.k, attention.v, None, None, bias,
        num_heads=groups, scale=attention.scale,
    )  # fmt: skip
    output.shape = ir.Shape([known_size(attention.q, 0), None, groups * depth])
    anchor = node_name(output)
    apart = _reshaped(build, output, [0, -1, each, groups, depth], "out_BSRGD")
    apart = build.op("Transpose", apart, name="out_BSGRD", perm=_GROUPS_LAST)
    rows = guarded(build, masks, attention, _reshaped(build, apart, [0, 0, heads * depth], "out_rows"), rows=True)
    return heads_first(build, attention, rows), (anchor,)


def _queries(build: Builder, q: ir.Value, groups: int, each: int, depth: int) -> ir.Value:
    """`[B,H,S,D]` as `[B,S*R,G*D]`, the R heads of a group one after the other."""
    node, perm = q.producer(), None
    if node is not None and node.op_type == "Transpose" and "perm" in node.attributes:
        perm = list(node.attributes["perm"].as_ints())
    if node is not None and perm == [0, 2, 1, 3] and node.inputs[0] is not None:
        apart = _reshaped(build, node.inputs[0], [0, 0, groups, each, depth], "q_BSGRD")
        apart = build.op("Transpose", apart, name="q_BSRGD", perm=_GROUPS_LAST)
    else:
        apart = _reshaped(build, q, [0, groups, each, -1, depth], "q_BGRSD")
        apart = build.op("Transpose", apart, name="q_BSRGD", perm=[0, 3, 2, 1, 4])
    return _reshaped(build, apart, [0, -1, groups * depth], "q_rows")


def _bias_of_rows(
    build: Builder, attention: Attention, bias: ir.Value, heads: int, groups: int, of_heads: bool
) -> ir.Value:
    """A bias `[B|1,H|1,S,T]` as `[B|1,G|1,S*R,T]`."""
    keys = build.size(attention.v, 2)

    def write() -> ir.Value:
        each = heads // groups
        if of_heads:
            every = build.op("Expand", bias, build.const([1, heads, 1, 1], np.int64), name="mask/bias_BHST")
            numbers = build.const([0, groups, each], np.int64)
            shape = build.op("Concat", numbers, build.size(attention.q, 2), keys, name="mask/bias_shape", axis=0)
            apart = build.op("Reshape", every, shape, name="mask/bias_BGRST")
            apart = build.op("Transpose", apart, name="mask/bias_BGSRT", perm=_GROUPS_LAST)
        else:
            apart = build.op("Unsqueeze", bias, build.const([3], np.int64), name="mask/bias_BHS1T")
            apart = build.op("Expand", apart, build.const([1, 1, 1, each, 1], np.int64), name="mask/bias_BHSRT")
        numbers = build.const([0, groups if of_heads else 1, -1], np.int64)
        shape = build.op("Concat", numbers, keys, name="mask/rows_shape", axis=0)
        return build.op("Reshape", apart, shape, name="mask/bias_of_rows")

    return build.once(("bias of rows", bias, heads, groups), write)


def _reshaped(build: Builder, value: ir.Value, shape: list[int], name: str) -> ir.Value:
    return build.op("Reshape", value, build.const(shape, np.int64), name=name)
