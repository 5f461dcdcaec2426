"""Rewrites `reshape(s + a)`, where scores s have rows and columns as axes of their own, to `reshape(s) + reshape(a)`.

Positions relative in height and in width are added so, as by SAM's image encoder and MViTv2 (Li et al. 2021, arXiv
2112.01526): one term has a number for each row of keys, the other for each column. Then each is a term of the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.recognise import leads_to_product
from attnport.onnx_graph import dims_of, made_by, rank_of

if TYPE_CHECKING:
    import onnx_ir as ir


def apply(model: ir.Model) -> int:
    """Reshapes both sides of such sums by themselves; returns how many reshapes were rewritten."""
    import onnx_ir as ir

    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "Reshape" and node.domain == "" and _merges(node)]:
        scores, terms = _taken_apart(node.inputs[0])
        if not terms:
            continue
        build.before, build.scope = node, node.name or "terms"
        whole, dims = dims_of(scores), dims_of(node.outputs[0])
        sizes = build.op("Shape", scores, name="sizes", dtype=ir.DataType.INT64, shape=[len(whole or ())])
        total = build.op("Reshape", scores, node.inputs[1], name="scores", shape=dims)
        for term in terms:
            wide = build.op("Expand", term, sizes, name="wide", shape=whole)
            wide = build.op("Reshape", wide, node.inputs[1], name="term", shape=dims)
            total = build.op("Add", total, wide, name="sum", shape=dims)
        build.replace(node.outputs[0], total)
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _taken_apart(value: ir.Value | None) -> tuple[ir.Value, list[ir.Value]]:
    """The scores in a sum, and what is added to them, in order; no terms if it is no such sum."""
    terms: list[ir.Value] = []
    assert value is not None
    while (total := made_by(value, "Add")) is not None:
        scores = next(
            (part for part in total.inputs if leads_to_product(part) and dims_of(part) == dims_of(value)), None
        )
        term = next((part for part in total.inputs if part is not scores), None)
        if scores is None or term is None:
            return value, []
        terms.insert(0, term)
        value = scores
    return value, terms if dims_of(value) is not None else []


def _merges(node: ir.Node) -> bool:
    """Whether a reshape of five or more axes leaves four or fewer."""
    before, after = rank_of(node.inputs[0]), rank_of(node.outputs[0])
    return before is not None and after is not None and before > 4 >= after
