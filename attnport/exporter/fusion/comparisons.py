"""Brings comparisons of indices into one spelling, however they were written: `j <= i`, `i - j <= w`, `j < lengths[b]`.

Comparisons of whole numbers are reduced to their difference: `Not(i < j)`, `j - i < 1` and `i + 1 > j` become equal.
Sizes of axes are formulas too: the dim of a Concat's output is the sum of its parts, `|past| + |seq|`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.exporter.fusion.formula import FALSE, TRUE, ZERO, Axis, Const, Expr, Op, Read, Size, is_bool, op
from attnport.onnx_graph import attribute, dims_of, known_size

if TYPE_CHECKING:
    import onnx_ir as ir


Linear = dict[Expr, int]
"""A whole number as a sum: coefficients by Axis, Size, Read or Abs, Max and Min of such sums; the constant by `ONE`."""

ONE: Expr = Const(1)
I, J = Axis("i"), Axis("j")  # noqa: E741 - the names that formulas use
CAUSAL: Expr = Op("LessOrEqual", (J, I))


def normal(expr: Expr) -> Expr:
    """A truth value in the one spelling; any other formula is returned as it is."""
    if not isinstance(expr, Op):
        return expr
    if expr.name == "Not":
        return _negated(normal(expr.args[0]))
    if expr.name in ("And", "Or") or (expr.name == "Where" and is_bool(expr.args[1]) and is_bool(expr.args[2])):
        args = tuple(map(normal, expr.args))
        return op(expr.name, *args) if expr.name != "Where" else _choice(*args)
    if expr.name not in ("Less", "LessOrEqual", "Equal", "Ne"):
        return expr
    truth = _of_truths(expr)
    if truth is not None:
        return truth
    bounded = at_most_zero(expr)
    if bounded is not None:
        return _comparison(bounded, expr)
    if expr.name in ("Equal", "Ne"):
        return _equality(expr)
    return expr


def _negated(expr: Expr) -> Expr:
    found = op("Not", expr)
    # A comparison that was turned round may have another spelling.
    return found if isinstance(found, Op) and found.name == "Not" else normal(found)


def linear(expr: Expr) -> Linear | None:
    """`expr` as a sum with whole coefficients, without zeros; None if it is no such sum or no whole number."""
    if isinstance(expr, Const):
        whole = not isinstance(expr.value, bool) and math.isfinite(expr.value) and expr.value == int(expr.value)
        return ({ONE: int(expr.value)} if expr.value else {}) if whole else None
    if isinstance(expr, Axis | Size):
        return {expr: 1}
    if isinstance(expr, Read):
        # Differences of unsigned numbers wrap around, and a float may be no whole number.
        return {expr: 1} if expr.value.dtype is not None and expr.value.dtype.name in ("INT32", "INT64") else None
    parts = [linear(arg) for arg in expr.args]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    if expr.name in ("Abs", "Max", "Min"):
        return {expr: 1}
    if expr.name == "Neg":
        return scaled(known[0], -1)
    if expr.name in ("Add", "Sub"):
        return plus(known[0], known[1], 1 if expr.name == "Add" else -1)
    if expr.name == "Mul":
        for number, rest in (known, known[::-1]):
            if not set(number) - {ONE}:
                return scaled(rest, number.get(ONE, 0))
    return None


def plus(left: Linear, right: Linear, times: int = 1) -> Linear:
    """`left + times * right`."""
    total = {atom: left.get(atom, 0) + times * right.get(atom, 0) for atom in {**left, **right}}
    return {atom: by for atom, by in total.items() if by}


def scaled(sum_: Linear, by: int) -> Linear:
    """`by * sum_`."""
    return {atom: by * each for atom, each in sum_.items() if by}


def at_most_zero(expr: Expr) -> Linear | None:
    """The sum that is at most zero where the comparison `expr` of whole numbers holds; None for any other formula."""
    if not isinstance(expr, Op) or expr.name not in ("Less", "LessOrEqual"):
        return None
    strict = expr.name == "Less"
    left, right = (_whole(arg, up=up is strict) for arg, up in zip(expr.args, (False, True), strict=True))
    if left is None or right is None:
        return None
    return plus(plus(left, right, -1), {ONE: 1} if strict else {})


def _whole(expr: Expr, *, up: bool) -> Linear | None:
    """As `linear`, with a fractional bound rounded to the whole number that has the same effect."""
    if isinstance(expr, Const) and isinstance(expr.value, float) and math.isfinite(expr.value):
        return linear(Const(math.ceil(expr.value) if up else math.floor(expr.value)))
    return linear(expr)


def _comparison(bounded: Linear, expr: Expr) -> Expr:
    """`bounded <= 0` in the one spelling; `expr` is the comparison as it was written."""
    if bounded.get(ONE, 0) <= 0 and all(
        by < 0 and isinstance(at, Axis | Size) for at, by in bounded.items() if at != ONE
    ):
        return TRUE  # sizes and indices are never negative
    if not set(bounded) - {ONE}:
        return FALSE
    for atom, by in bounded.items():
        if isinstance(atom, Op) and abs(by) == 1:
            rest = {other: each for other, each in bounded.items() if other != atom}
            args = atom.args if atom.name != "Abs" else (atom.args[0], op("Neg", atom.args[0]))
            every = (atom.name == "Min") is (by < 0)
            found: Expr = TRUE if every else FALSE
            for arg in args:
                known = linear(arg)
                assert known is not None  # otherwise `linear` would not have made it an atom
                found = op("And" if every else "Or", found, _comparison(plus(rest, known, by), expr))
            return found
    return _spelt(bounded) or _sums(bounded)


def _spelt(bounded: Linear) -> Expr | None:
    """A comparison of two terms in its usual spelling; None for more terms or other coefficients."""
    constant = -bounded.get(ONE, 0)
    first = [atom for atom, by in bounded.items() if by == 1 and atom != ONE]
    second = [atom for atom, by in bounded.items() if by == -1 and atom != ONE]
    if len(first) != 1 or len(second) != 1 or len(bounded) - (ONE in bounded) != 2:
        return None
    if constant in (0, -1):
        return op("Less" if constant else "LessOrEqual", first[0], second[0])
    if {first[0], second[0]} == {I, J}:
        return Op("LessOrEqual", (Op("Sub", (first[0], second[0])), Const(constant)))
    return None


def _sums(bounded: Linear) -> Expr:
    """A comparison of sums without subtraction, such as `j + 3 <= i + |past|`."""
    left, right = ({atom: by * sign for atom, by in bounded.items() if by * sign > 0} for sign in (1, -1))
    return op("LessOrEqual", written(left), written(right))


def written(sum_: Linear) -> Expr:
    """A sum as a formula."""
    total: Expr = ZERO
    for atom, by in sorted(sum_.items(), key=lambda item: (item[0] == ONE, repr(item[0]))):
        total = op("Add", total, Const(by) if atom == ONE else op("Mul", Const(by), atom))
    return total


def _equality(expr: Op) -> Expr:
    """`a - b == 0` as `a == b`, with the sides in a fixed order."""
    left, right = map(linear, expr.args)
    if left is None or right is None:
        return expr
    rest = plus(left, right, -1)
    first = [atom for atom, by in rest.items() if by == 1]
    second = [atom for atom, by in rest.items() if by == -1]
    if len(rest) != 2 or len(first) != 1 or len(second) != 1 or ONE in rest:
        return expr
    return Op(expr.name, tuple(sorted((first[0], second[0]), key=repr)))


def _of_truths(expr: Op) -> Expr | None:
    """`a + b > 0`, `a * b != 0`, `max(a, b) >= 1` and the like, of truth values, as `Or` and `And`."""
    low, high = expr.args
    if expr.name in ("Equal", "Ne"):
        found = _positive(low) if high == ZERO else _positive(high) if low == ZERO else None
        return _negated(found) if found is not None and expr.name == "Equal" else found
    for number, other, above in ((low, high, True), (high, low, False)):
        if isinstance(number, Const) and not isinstance(number.value, bool):
            strict = (expr.name == "Less") is above
            between = 0 <= number.value < 1 if strict else 0 < number.value <= 1
            found = _positive(other) if between else None
            if found is not None:
                return found if above else _negated(found)
    return None


def _positive(expr: Expr) -> Expr | None:
    """`expr > 0`, for whole numbers made of truth values that are never negative; None for anything else."""
    if is_bool(expr):
        return normal(expr)
    if isinstance(expr, Const):
        return Const(expr.value >= 1) if expr.value == 0 or expr.value >= 1 else None
    if not isinstance(expr, Op):
        return None
    if expr.name == "Sub" and expr.args[0] == ONE and is_bool(expr.args[1]):
        return _negated(normal(expr.args[1]))
    if expr.name == "Where":
        when_true, when_false = map(_positive, expr.args[1:])
        if when_true is None or when_false is None:
            return None
        return _choice(normal(expr.args[0]), when_true, when_false)
    joined = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}.get(expr.name)
    parts = [_positive(arg) for arg in expr.args]
    known_parts = [part for part in parts if part is not None]
    if joined is None or len(known_parts) != len(parts):
        return None
    total = known_parts[0]
    for part in known_parts[1:]:
        total = op(joined, total, part)
    return total


def _choice(condition: Expr, when_true: Expr, when_false: Expr) -> Expr:
    """`Where` of truth values."""
    if TRUE in (when_true, when_false):
        return op("Or", condition, when_false) if when_true == TRUE else op("Or", _negated(condition), when_true)
    return op("Or", op("And", condition, when_true), op("And", _negated(condition), when_false))


def size_along(value: ir.Value, index: Sequence[Expr], axis: Axis) -> Expr | None:
    """As `size_sum`, for the axis of `value` that has the index variable `axis` in `index`."""
    return size_sum(value, list(index).index(axis)) if axis in index else None


def size_sum(value: ir.Value | None, axis: int) -> Expr | None:
    """The size of one axis, as a sum of dims of the graph's inputs if the graph shows that; None = unknown.

    A name that no input has may be the exporter's name for a sum. The expression is lost at capture, so the sum is read
    from the first Concat whose output has the name.
    """
    return _sum(value, axis, frozenset())


def same(one: Expr | None, other: Expr | None) -> bool:
    """Whether two sizes may be taken for the same: they are, or one of them is unknown."""
    return one is None or other is None or one == other or terms(one) == terms(other)


def terms(size: Expr) -> Linear | None:
    """A size as a sum, also where an input's dim is called by one, such as `past+seq`."""
    read = linear(size)
    if read is None:
        return None
    total: Linear = {}
    for atom, by in read.items():
        terms: list[Expr] = [*map(Size, atom.dim.split("+"))] if isinstance(atom, Size) else [atom]
        for term in terms:
            total = plus(total, {term: by})
    return total


def _sum(value: ir.Value | None, axis: int, seen: frozenset[str]) -> Expr | None:
    name = known_size(value, axis)
    if isinstance(name, int):
        return Const(name)
    if value is None or name is None or name in seen:  # a dim cannot be a part of itself
        return None
    producer = value.producer()
    graph = producer.graph if producer is not None else value.graph
    if graph is None or _is_input_dim(graph, name):
        return Size(name)
    for node in graph:
        if node.op_type == "Concat" and node.domain == "":
            at = attribute(node, "axis", 0)
            if known_size(node.outputs[0], at) == name:
                parts = [_sum(part, at, seen | {name}) for part in node.inputs]
                known = [part for part in parts if part is not None]
                if len(known) == len(parts):
                    total = known[0]
                    for part in known[1:]:
                        total = op("Add", total, part)
                    return total
    return Size(name)


def _is_input_dim(graph: ir.Graph | ir.Function, name: str) -> bool:
    return any(name in (dims_of(value) or []) for value in graph.inputs)
