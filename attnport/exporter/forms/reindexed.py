"""Masks over new indices: for keys with one more in front, or for query heads as rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.forms.masks import AXES, MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.formula import Axis, Const, Expr, Op, Read, Size, axes_of, op
from attnport.exporter.fusion.mask import SCORES, Factor

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Change:
    """A new meaning of one index variable.

    Attributes:
        axis: The variable.
        old: The old index, as a formula over the new one.
        lay: Changes a tensor over the old index, along one of its axes, into a tensor over the new index.
    """

    axis: Axis
    old: Expr
    lay: Callable[[ir.Value, int], ir.Value]


def reindexed(masks: MaskWriter, attention: Attention, factor: Factor, change: Change) -> Expr:
    """A factor's condition over the new index.

    A formula of indices, and of inputs read at them, stays a formula, so that a kernel can compute it. Any other is
    written as a tensor over the old index, which is then changed to the new index.
    """
    if change.axis.name not in axes_of(factor.keep):
        return factor.keep
    sizes = {str(getattr(dim, "value", dim)) for value in masks.build.model.graph.inputs for dim in value.shape or ()}
    if _is_plain(factor.keep, sizes):
        return _substituted(masks, factor.keep, change)
    return Read(change.lay(masks.factor(factor, attention), AXES.index(change.axis.name)), SCORES)


def _is_plain(expr: Expr, sizes: Collection[str]) -> bool:
    """Whether a formula consists of indices, inputs read at them, and the inputs' own sizes."""
    if isinstance(expr, Read):
        dims = expr.value.shape
        return dims is not None and len(dims) == len(expr.index) and all(isinstance(at, Axis) for at in expr.index)
    if isinstance(expr, Op):
        known = ("And", "Or", "Not", "Equal", "Ne", "Less", "LessOrEqual", "Add", "Sub")
        return expr.name in known and all(_is_plain(arg, sizes) for arg in expr.args)
    if isinstance(expr, Size):
        return expr.dim in sizes
    return isinstance(expr, Axis | Const)


def _substituted(masks: MaskWriter, expr: Expr, change: Change) -> Expr:
    if expr == change.axis:
        return change.old
    if isinstance(expr, Read) and change.axis in expr.index:
        at = expr.index.index(change.axis)
        value = expr.value
        return Read(masks.build.once(("laid", value, at, change.old), lambda: change.lay(value, at)), expr.index)
    if isinstance(expr, Op):
        return op(expr.name, *(_substituted(masks, arg, change) for arg in expr.args))
    return expr
