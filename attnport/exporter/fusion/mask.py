"""Reads the meaning of an attention's mask: which keys it allows, and what it adds to the scores.

A finite number added to the scores means "hidden" only if the graph proves that the tensor has two values, zero and a
constant of -1e4 or less, chosen by a truth value. Anything else that is added is a bias.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from attnport.exporter.fusion.elements import element
from attnport.exporter.fusion.formula import (
    CAUSAL,
    FALSE,
    TRUE,
    ZERO,
    Axis,
    Const,
    Expr,
    Op,
    Read,
    conjuncts,
    is_bool,
    normal,
    op,
    size_along,
)
from attnport.exporter.fusion.indices import Index, Layout, Located, broadcast_index, relaid
from attnport.exporter.fusion.kinds import Rows, last_sees_all, rows_without_key, spec_of
from attnport.masks import ABSORBS, HIDDEN, HIDES, MaskSpec
from attnport.onnx_graph import ir, scalar

SCORES = (Axis("b"), Axis("h"), Axis("i"), Axis("j"))
"""Index variables of the scores: batch, head, query, key."""


@dataclass(frozen=True)
class Origin:
    """The graph value of a factor: keys are allowed where it is true (`hides`: false), or zero if it is `added`.

    Attributes:
        added: What its elements are multiplied with before they are added to the scores; 0 = it is a truth value.
    """

    at: Located
    hides: bool = False
    added: float = 0.0


@dataclass(frozen=True)
class Factor:
    """One condition that a key must meet to be allowed, over the axes of `SCORES`."""

    keep: Expr
    origin: Origin | None


@dataclass(frozen=True)
class Bias:
    """A tensor that is added to the scores, times a number."""

    at: Located
    times: float = 1.0


@dataclass(frozen=True)
class Mask:
    """A mask read from the graph: a key is allowed if every factor holds; each bias is added to the scores.

    Attributes:
        empty: The rows that may have no allowed key though their item has keys: none, those of padding alone, or any.
        gives: What the graph itself gives in a row with no allowed key: zero (or NaN, for which zero stands), the mean
            of all values, or anything else.
        last: Whether the last query has a key in every item that has keys.
    """

    factors: tuple[Factor, ...]
    biases: tuple[Bias, ...]
    spec: MaskSpec
    empty: Rows
    gives: Literal["zero", "mean", "other"]
    last: bool = False

    @property
    def is_causal_only(self) -> bool:
        """Whether the mask is the upper-left causal mask and nothing else."""
        return not self.biases and [factor.keep for factor in self.factors] == [CAUSAL]


class MaskReader:
    """Collects the terms of one attention's scores, from the softmax up, and reads them as a mask."""

    def __init__(self, layout: Layout, masks: Collection[MaskSpec] = ()) -> None:
        self.layout = layout
        self.declared = {spec.input: spec for spec in masks if spec.input}
        self.factors: list[Factor] = []
        self.biases: list[Bias] = []
        self.lows: list[float] = []
        """The numbers that hide keys, one for each step that does."""
        self.floor = -math.inf
        """The lowest score that a clamp lets through; -inf = there is no clamp."""
        self.uniform = True
        """Whether all scores of a row with no allowed key are equal, as far as the first of these steps tells."""
        self.filled = True
        """Whether each of these steps replaces the scores, so that several of them with one number are as one."""
        self.zeroed = False

    def element(self, at: Located) -> Expr:
        """The formula of a value's element, over the axes of `SCORES`."""
        return self._unwrapped(element(at.value, self.layout.canonical(at.index)))

    def _unwrapped(self, expr: Expr) -> Expr:
        """Removes casts to narrower integers from inputs that hold only ones and zeros by contract."""
        if not isinstance(expr, Op):
            return expr
        args = tuple(map(self._unwrapped, expr.args))
        if expr.name == "Wrapped" and isinstance(args[0], Read) and self._truth(args[0]) is not None:
            return args[0]
        return op(expr.name, *args) if args != expr.args else expr

    def where(self, condition: Located, low: float, *, hides: bool) -> None:
        """Scores are replaced by the large negative `low` where `condition` is true (`hides`) or false."""
        found = self.element(condition)
        self.uniform = self.uniform and not self.biases
        self.lows.append(low)
        self._keep(op("Not", found) if hides else found, Origin(condition, hides=hides))

    def add(self, term: Located, times: float = 1.0) -> None:
        """`term` times a number is added to the scores."""
        found = self.element(term)
        keep = self._two_valued(found, times)
        if keep is None:
            keep = self._declared_additive(found) if times > 0 else None
        if keep is not None:
            lows = [max(low, self.floor) for low in _lows(found, times)]
            self.uniform = self.uniform and all(low <= ABSORBS for low in lows)
            self.lows += lows if keep != TRUE else []
            self.filled = self.filled and keep == TRUE
            self._keep(keep, Origin(term, added=times))
        elif not self._parts(term, times) and scalar(term.value) != 0:
            self.biases.append(Bias(term, times))

    def causal(self) -> None:
        """The operator's own `is_causal`: query i sees keys 0..i."""
        self.lows.append(-math.inf)
        self._keep(CAUSAL, None)

    def implies(self, condition: Located, *, hides: bool) -> bool:
        """Whether every key that the mask so far allows has `condition` true (`hides`: false)."""
        found = self.element(condition)
        return self._implies(op("Not", found) if hides else found)

    def keeps(self, number: Located) -> bool:
        """As `implies`, for a number that is one or zero: whether it is one for every allowed key."""
        truth = self._truth(self.element(number))
        return truth is not None and self._implies(truth)

    def zeroes(self, condition: Located, *, hides: bool, number: bool = False) -> bool:
        """As `implies`, or with `number` as `keeps`, for a condition without which a probability is zero."""
        kept = self.keeps(condition) if number else self.implies(condition, hides=hides)
        found = self.element(condition)
        truth = self._truth(found) if number else op("Not", found) if hides else found
        hidden = {factor.keep for factor in self.factors}
        self.zeroed = self.zeroed or (kept and truth is not None and hidden.issubset(conjuncts(normal(truth))))
        return kept

    def _implies(self, truth: Expr) -> bool:
        return {factor.keep for factor in self.factors}.issuperset(conjuncts(normal(truth)))

    def read(self, q: Located, k: Located) -> Mask:
        """The mask of all terms so far, over the queries of `q` and the keys of `k`."""
        factors = _resolved(tuple({factor.keep: factor for factor in self.factors}.values()))
        lengths = [size_along(q.value, q.index, Axis("i")), size_along(k.value, k.index, Axis("j"))]
        spec = spec_of([factor.keep for factor in factors], biased=bool(self.biases), lengths=lengths)
        keeps = [factor.keep for factor in factors]
        empty, last = rows_without_key(keeps, lengths), last_sees_all(keeps, lengths)
        return Mask(factors, tuple(self.biases), spec, empty, self._gives(), last)

    def _gives(self) -> Literal["zero", "mean", "other"]:
        if self.zeroed or all(low == -math.inf for low in self.lows):
            return "zero"
        one = len(self.lows) == 1 or (self.filled and len(set(self.lows)) == 1)
        return "mean" if one and self.uniform else "other"

    def _keep(self, keep: Expr, origin: Origin | None) -> None:
        self.factors.extend(Factor(part, origin) for part in conjuncts(normal(keep)))

    def _declared_additive(self, found: Expr) -> Expr | None:
        """The condition of a float input that, by its contract, only hides keys: a comparison with `HIDDEN`."""
        spec = self.declared.get(str(found.value.name)) if isinstance(found, Read) else None
        if spec is None or spec.polarity != "additive" or {"bias", "none"} & set(spec.kinds):
            return None
        return op("Less", Const(HIDDEN), found)

    def _parts(self, term: Located, times: float) -> bool:
        """Reads the parts of a sum, or of `Where(allowed, bias, -inf)`; False if the term is a single tensor."""
        at: tuple[ir.Value, Index] | None = (term.value, term.index)
        while at is not None:
            value, index = at
            node = value.producer()
            if node is not None and node.domain == "" and node.op_type in ("Add", "Sub", "Where", "Cast"):
                return self._sum(node, index, times)
            at = relaid(value, index)
        return False

    def _sum(self, node: ir.Node, index: Index, times: float) -> bool:
        parts = [self._located(value, index) for value in node.inputs]
        if any(part is None for part in parts):
            return False
        known = [part for part in parts if part is not None]
        if node.op_type == "Cast":
            floats = known[0].value.dtype is not None and known[0].value.dtype.is_floating_point()
            return floats and self._parts(known[0], times)
        if node.op_type == "Where":
            return self._where_bias(known, times)
        before = len(self.factors), len(self.biases)
        self.add(known[0], times)
        self.add(known[1], times if node.op_type == "Add" else -times)
        if len(self.factors) == before[0]:  # no part is a mask: one bias is simpler than two
            del self.biases[before[1] :]
            return False
        return True

    def _located(self, value: ir.Value | None, index: Index) -> Located | None:
        own = broadcast_index(value, index) if value is not None else None
        return Located(value, own) if value is not None and own is not None else None

    def _where_bias(self, parts: list[Located], times: float) -> bool:
        """`Where(allowed, bias, -inf)`, added to the scores, as a condition and a bias."""
        condition, when_true, when_false = parts
        for hides, fill, rest in ((True, when_true, when_false), (False, when_false, when_true)):
            low = scalar(fill.value)
            if low is not None and low * times <= HIDES:
                self.where(condition, low * times, hides=hides)
                self.filled = False
                self.uniform = self.uniform and low * times <= ABSORBS
                self.add(rest, times)
                return True
        return False

    def _two_valued(self, expr: Expr, times: float) -> Expr | None:
        """The condition under which `expr` is zero, if `times * expr` is a large negative constant otherwise."""
        if isinstance(expr, Const):
            return TRUE if expr.value == 0 else None
        if not isinstance(expr, Op):
            return None
        if expr.name == "Where":
            return self._chosen(expr, times)
        if expr.name == "Add":
            left, right = (self._two_valued(arg, times) for arg in expr.args)
            return None if left is None or right is None else op("And", left, right)
        if expr.name == "Log" and times > 0:  # of one and zero
            return self._truth(expr.args[0])
        if expr.name == "Neg":
            return self._two_valued(expr.args[0], -times)
        if expr.name == "Mul":
            for factor, number in (expr.args, expr.args[::-1]):
                if isinstance(number, Const):
                    return self._scaled(factor, float(number.value) * times)
        return None

    def _chosen(self, expr: Op, times: float) -> Expr | None:
        """As `_two_valued`, for `Where(condition, a, b)`."""
        condition, when_true, when_false = expr.args
        if _is_low(when_false, times):
            rest = self._two_valued(when_true, times)
            return None if rest is None else op("And", condition, rest)
        if _is_low(when_true, times):
            if condition == op("Ne", when_false, ZERO):  # `x.masked_fill(x != 0, low)`
                return op("Not", self._truth(when_false) or condition)
            rest = self._two_valued(when_false, times)
            return None if rest is None else op("And", op("Not", condition), rest)
        return None

    def _scaled(self, factor: Expr, number: float) -> Expr | None:
        """`(1 - m) * -1e4`, `(m - 1) * 1e4` and `hidden * -1e4`, with m a truth value."""
        if not math.isfinite(number):
            return None  # 0 * -inf is NaN, so this is no working mask
        if number <= HIDES:
            if isinstance(factor, Op) and factor.name == "Sub" and factor.args[0] == Const(1):
                return self._truth(factor.args[1])
            hidden = self._truth(factor)
            return None if hidden is None else op("Not", hidden)
        if number >= -HIDES and isinstance(factor, Op) and factor.name == "Sub" and factor.args[1] == Const(1):
            return self._truth(factor.args[0])
        return None

    def _truth(self, expr: Expr) -> Expr | None:
        """`expr` as a truth value, if the graph or the declared contract proves that it is one."""
        if is_bool(expr):
            return expr
        if isinstance(expr, Read) and expr.value.is_graph_input():
            spec = self.declared.get(str(expr.value.name))
            two_valued = spec is not None and spec.carries in ("mask", "marks") and spec.polarity in ("keep", "hide")
            return op("Ne", expr, ZERO) if two_valued else None
        if isinstance(expr, Op) and expr.name == "Sub" and expr.args[0] == Const(1):
            inner = self._truth(expr.args[1])
            return None if inner is None else op("Not", inner)
        return None


def _lows(expr: Expr, times: float) -> list[float]:
    """The large negative numbers that `times * expr` may be the sum of."""
    if isinstance(expr, Const):
        low = float(expr.value) * times
        return [low] if low <= HIDES else []
    if not isinstance(expr, Op) or expr.name == "Log":
        return [-math.inf]  # an additive mask of the user's, which holds 0 and -inf
    if expr.name == "Where":
        return [low for part in expr.args[1:] for low in _lows(part, times)]
    if expr.name == "Neg":
        return _lows(expr.args[0], -times)
    if expr.name == "Mul":
        return [-abs(float(part.value) * times) for part in expr.args if isinstance(part, Const)][:1]
    return [low for part in expr.args for low in _lows(part, times)]


def _resolved(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Factors without alternatives that another factor excludes: `a` and (`not a` or `b`) become `a` and `b`."""
    never = {normal(op("Not", factor.keep)) for factor in factors}

    def left(expr: Expr) -> Expr:
        if isinstance(expr, Op) and expr.name == "Or":
            return op("Or", *(FALSE if arg in never else left(arg) for arg in expr.args))
        return expr

    return tuple(Factor(left(factor.keep), factor.origin) for factor in factors)


def _is_low(expr: Expr, times: float) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value * times <= HIDES
