"""Reads the mask of an attention back into its meaning: which keys it allows, and what it adds to the scores.

A finite number added to the scores is taken for "hidden" only where the graph proves that the tensor has two values,
zero and a constant of -1e4 or less, chosen by a truth value. Anything else that is added stays a bias.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.fusion.elements import broadcast_element, scalar
from attnport.exporter.fusion.formula import (
    TRUE,
    ZERO,
    Axis,
    Const,
    Expr,
    Op,
    Read,
    conjuncts,
    is_bool,
    op,
)
from attnport.exporter.fusion.kinds import CAUSAL, plain, spec_of
from attnport.masks.spec import MaskSpec

if TYPE_CHECKING:
    import onnx_ir as ir

LARGE_NEGATIVE = -1e4
"""A score of this much below the others counts as hidden; above it, the number is a bias."""

AXES = {3: (Axis("b"), Axis("i"), Axis("j")), 4: (Axis("b"), Axis("h"), Axis("i"), Axis("j"))}
"""Index variables of the scores, by rank: batch, head, query, key."""


@dataclass(frozen=True)
class Origin:
    """The graph value that a factor was read from: allowed where it is true (`hides`: false), or zero (additive)."""

    value: ir.Value
    hides: bool = False
    additive: bool = False


@dataclass(frozen=True)
class Factor:
    """One condition that a key must meet to be allowed, over the score's index variables."""

    keep: Expr
    origin: Origin | None


@dataclass(frozen=True)
class Mask:
    """A mask read from the graph: a key is allowed where every factor holds; each bias is added to the scores."""

    factors: tuple[Factor, ...]
    biases: tuple[ir.Value, ...]
    spec: MaskSpec

    @property
    def is_causal_only(self) -> bool:
        """Whether the upper-left causal mask is all there is."""
        return not self.biases and [factor.keep for factor in self.factors] == [CAUSAL]


class MaskReader:
    """Collects the terms of one attention's scores, from the softmax up, and reads them as a mask.

    Args:
        rank: Of the scores, 3 or 4.
        declared: Names of the inputs whose MaskSpec says that they hold a keep-mask (1 keeps).
    """

    def __init__(self, rank: int, declared: Collection[str] = ()) -> None:
        self.axes = AXES[rank]
        self.declared = declared
        self.factors: list[Factor] = []
        self.biases: list[ir.Value] = []

    def where(self, condition: ir.Value, *, hides: bool) -> None:
        """Scores are replaced by a large negative constant where `condition` is true (`hides`) or false."""
        found = broadcast_element(condition, self.axes)
        self._keep(op("Not", found) if hides else found, Origin(condition, hides=hides))

    def add(self, term: ir.Value) -> None:
        """`term` is added to the scores."""
        keep = self._two_valued(broadcast_element(term, self.axes))
        if keep is not None:
            self._keep(keep, Origin(term, additive=True))
            return
        node = term.producer()
        if node is not None and node.op_type == "Add":
            for part in node.inputs:
                assert part is not None
                self.add(part)
        elif node is not None and node.op_type == "Where" and self._where_bias(node):
            pass
        elif scalar(term) != 0:
            self.biases.append(term)

    def add_mask(self, term: ir.Value, scale: float) -> bool:
        """`term` is added to the scores and scaled with them; taken, and True, where it hides keys and nothing else."""
        found = broadcast_element(term, self.axes)
        keep = self._two_valued(found)
        large = [abs(number) for number in _numbers(found) if abs(number) >= -LARGE_NEGATIVE]
        if keep is None or not scale > 0 or any(number * scale < -LARGE_NEGATIVE for number in large):
            return False
        self._keep(keep, Origin(term, additive=True))
        return True

    def causal(self) -> None:
        """The operator's own `is_causal`: query i sees keys 0..i."""
        self._keep(CAUSAL, None)

    def read(self) -> Mask:
        """The mask of all terms so far."""
        factors = tuple({factor.keep: factor for factor in self.factors}.values())
        return Mask(factors, tuple(self.biases), spec_of([factor.keep for factor in factors], biased=bool(self.biases)))

    def _keep(self, keep: Expr, origin: Origin | None) -> None:
        self.factors.extend(Factor(plain(part), origin) for part in conjuncts(keep))

    def _where_bias(self, node: ir.Node) -> bool:
        """`Where(allowed, bias, -inf)` as a term that is added: a condition and a bias."""
        condition, when_true, when_false = node.inputs
        if condition is None or when_true is None or when_false is None:
            return False
        for hides, fill, rest in ((True, when_true, when_false), (False, when_false, when_true)):
            low = scalar(fill)
            if low is not None and low <= LARGE_NEGATIVE:
                self.where(condition, hides=hides)
                self.add(rest)
                return True
        return False

    def _two_valued(self, expr: Expr) -> Expr | None:
        """The condition under which `expr` is zero, when it is a large negative constant otherwise."""
        if isinstance(expr, Const):
            return TRUE if expr.value == 0 else None
        if not isinstance(expr, Op):
            return None
        if expr.name == "Where":
            condition, when_true, when_false = expr.args
            if _is_low(when_false):
                rest = self._two_valued(when_true)
                return None if rest is None else op("And", condition, rest)
            if _is_low(when_true):
                if _is_nonzero(condition, when_false):  # `x.masked_fill(x != 0, low)`
                    return op("Not", self._truth(when_false) or condition)
                rest = self._two_valued(when_false)
                return None if rest is None else op("And", op("Not", condition), rest)
            return None
        if expr.name == "Add":
            left, right = map(self._two_valued, expr.args)
            return None if left is None or right is None else op("And", left, right)
        if expr.name == "Mul":
            for factor, number in (expr.args, expr.args[::-1]):
                if isinstance(number, Const):
                    return self._scaled(factor, float(number.value))
        return None

    def _scaled(self, factor: Expr, number: float) -> Expr | None:
        """`(1 - m) * -1e4`, `(m - 1) * 1e4` and `hidden * -1e4`, with m a truth value."""
        if not math.isfinite(number):
            return None  # 0 * -inf is NaN: such a mask hides nothing, it breaks
        if number <= LARGE_NEGATIVE:
            if isinstance(factor, Op) and factor.name == "Sub" and factor.args[0] == Const(1):
                return self._truth(factor.args[1])
            hidden = self._truth(factor)
            return None if hidden is None else op("Not", hidden)
        if number >= -LARGE_NEGATIVE and isinstance(factor, Op) and factor.name == "Sub" and factor.args[1] == Const(1):
            return self._truth(factor.args[0])
        return None

    def _truth(self, expr: Expr) -> Expr | None:
        """`expr` as a truth value, where the graph or the declared contract proves that it is one."""
        if is_bool(expr):
            return expr
        if isinstance(expr, Read) and expr.value.is_graph_input() and expr.value.name in self.declared:
            return op("Ne", expr, ZERO)
        if isinstance(expr, Op) and expr.name == "Sub" and expr.args[0] == Const(1):
            inner = self._truth(expr.args[1])
            return None if inner is None else op("Not", inner)
        return None


def _numbers(expr: Expr) -> list[float]:
    """Every constant in a formula that is a number of scores (not inside an index)."""
    if isinstance(expr, Const):
        return [float(expr.value)]
    return [number for arg in expr.args for number in _numbers(arg)] if isinstance(expr, Op) else []


def _is_nonzero(condition: Expr, expr: Expr) -> bool:
    """Whether `condition` says that `expr` is not zero."""
    return condition == op("Ne", expr, ZERO)


def _is_low(expr: Expr) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value <= LARGE_NEGATIVE
