"""Formulas over the indices of a tensor's element, such as `mask[b, j] != 0` and `j <= i`, in one spelling.

Comparisons of whole numbers are reduced to their difference: `Not(i < j)`, `j - i < 1` and `i + 1 > j` become equal.
Sizes of axes are formulas too: the dim of a Concat's output is the sum of its parts, `|past| + |seq|`.

A single condition of a mask has a meaning: a bound on positions, the length of an item, an element of an input.
Positions are those of `masks`: query i is at position i (`upper_left`) or i + T - S (`lower_right`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnport.masks import HIDES
from attnport.onnx_graph import attribute, dims_of, ir, known_size


@dataclass(frozen=True)
class Axis:
    """An index variable; never negative."""

    name: str


@dataclass(frozen=True, eq=False)
class Const:
    """A known number or truth value; True and 1 are different constants."""

    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const)
            and self.value == other.value
            and isinstance(self.value, bool) is isinstance(other.value, bool)
        )

    def __hash__(self) -> int:
        return hash((self.value, isinstance(self.value, bool)))


@dataclass(frozen=True)
class Size:
    """The size of a named dim, known at run time only."""

    dim: str


@dataclass(frozen=True, eq=False)
class Read:
    """An element of an input, or of a graph value without a formula; equal if value and index are equal."""

    value: ir.Value
    index: tuple[Expr, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Read) and self.value is other.value and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self.value), self.index))


@dataclass(frozen=True)
class Op:
    """An operation on formulas, named as in ONNX; `Cast` to bool is `Ne(x, 0)`."""

    name: str
    args: tuple[Expr, ...]


Expr = Axis | Const | Size | Read | Op

_FOLD: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Abs": abs,
    "Max": max,
    "Min": min,
    "And": lambda a, b: bool(a) and bool(b),
    "Or": lambda a, b: bool(a) or bool(b),
    "Not": operator.not_,
    "Equal": operator.eq,
    "Ne": operator.ne,
    "Xor": operator.ne,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Where": lambda c, a, b: a if c else b,
}
ELEMENTWISE = {*_FOLD, "Greater", "GreaterOrEqual", "Log"}
"""Operators whose meaning does not depend on types and attributes (that of `Div` and `Mod` does)."""
TRUE, FALSE, ZERO = Const(True), Const(False), Const(0)


def op(name: str, *args: Expr) -> Expr:
    """Builds an operation in a simple form, with constants folded and comparisons written as `<` and `<=`."""
    if name == "Greater":
        name, args = "Less", (args[1], args[0])
    elif name == "GreaterOrEqual":
        name, args = "LessOrEqual", (args[1], args[0])
    if name in _FOLD and all(isinstance(arg, Const) for arg in args):
        values: list[Any] = [arg.value for arg in args if isinstance(arg, Const)]
        return Const(values[0] if name in ("Max", "Min") and len(values) == 1 else _FOLD[name](*values))
    simple = _SIMPLIFY.get(name)
    found = simple(*args) if simple and len(args) <= 3 else None
    return found if found is not None else Op(name, args)


def _and(a: Expr, b: Expr) -> Expr | None:
    if FALSE in (a, b):
        return FALSE
    if a in (TRUE, b):
        return b
    return a if b == TRUE else None


def _or(a: Expr, b: Expr) -> Expr | None:
    if TRUE in (a, b):
        return TRUE
    if a in (FALSE, b):
        return b
    return a if b == FALSE else None


def _not(a: Expr) -> Expr | None:
    if not isinstance(a, Op):
        return None
    if a.name == "Not":
        return a.args[0]
    opposite = {"Equal": "Ne", "Ne": "Equal"}
    if a.name in opposite:
        return Op(opposite[a.name], a.args)
    if a.name in ("Less", "LessOrEqual") and not any(map(_may_be_nan, a.args)):
        return op("LessOrEqual" if a.name == "Less" else "Less", a.args[1], a.args[0])
    if a.name == "And":
        return op("Or", op("Not", a.args[0]), op("Not", a.args[1]))
    if a.name == "Or":
        return op("And", op("Not", a.args[0]), op("Not", a.args[1]))
    return None


def _may_be_nan(expr: Expr) -> bool:
    return any(read.value.dtype is None or read.value.dtype.is_floating_point() for read in reads_of(expr))


def _where(c: Expr, a: Expr, b: Expr) -> Expr | None:
    if isinstance(c, Const):
        return a if c.value else b
    if a == b:
        return a
    if isinstance(a, Const) and isinstance(b, Const) and isinstance(a.value, bool) and isinstance(b.value, bool):
        return c if a.value else op("Not", c)
    return None


def _ne(a: Expr, b: Expr) -> Expr | None:
    # `Cast(bool -> int) != 0` is the bool itself.
    if b == ZERO and is_bool(a):
        return a
    if b == ZERO and isinstance(a, Op) and a.name == "Mul" and any(map(_is_choice, a.args)):
        return op("And", op("Ne", a.args[0], ZERO), op("Ne", a.args[1], ZERO))
    return _of_choice("Ne", a, b)


def _is_choice(expr: Expr) -> bool:
    """Whether a number is one of two constants: its product with another cannot overflow to zero."""
    constants = isinstance(expr, Op) and expr.name == "Where" and all(isinstance(arg, Const) for arg in expr.args[1:])
    return is_bool(expr) or constants


def _of_choice(name: str, a: Expr, b: Expr) -> Expr | None:
    """Comparing a constant with a choice of two constants gives the condition of the choice, or its opposite."""
    for choice, number in ((a, b), (b, a)):
        if isinstance(choice, Op) and choice.name == "Where" and isinstance(number, Const):
            condition, *branches = choice.args
            if all(isinstance(branch, Const) for branch in branches):
                return op("Where", condition, *(op(name, branch, number) for branch in branches))
    return None


def _equal(a: Expr, b: Expr) -> Expr | None:
    if b == ZERO and is_bool(a):
        return op("Not", a)
    if b == Const(1) and is_bool(a):
        return a
    if b == ZERO and isinstance(a, Op) and a.name == "Mul" and any(map(_is_choice, a.args)):
        return op("Not", op("Ne", a, b))
    return _of_choice("Equal", a, b)


def _add(a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const) and a.value == 0 and not isinstance(a.value, bool):
        return b
    return a if isinstance(b, Const) and b.value == 0 else None


def _mul(a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const) and a.value == 1:
        return b
    return a if isinstance(b, Const) and b.value == 1 else None


_SIMPLIFY: dict[str, Callable[..., Expr | None]] = {
    "And": _and,
    "Or": _or,
    "Not": _not,
    # An index is never negative: the masks that transformers builds start with `index >= 0`.
    "LessOrEqual": lambda a, b: TRUE if a == ZERO and isinstance(b, Axis | Size) else None,
    "Less": lambda a, b: FALSE if b == ZERO and isinstance(a, Axis | Size) else None,
    "Where": _where,
    "Ne": _ne,
    "Equal": _equal,
    "Add": _add,
    "Sub": lambda a, b: a if isinstance(b, Const) and b.value == 0 else None,
    "Mul": _mul,
}
_BOOLEAN = {"And", "Or", "Not", "Equal", "Ne", "Less", "LessOrEqual", "Xor"}


def is_bool(expr: Expr) -> bool:
    """Whether a formula is a truth value."""
    if isinstance(expr, Const):
        return isinstance(expr.value, bool)
    if isinstance(expr, Read):
        return expr.value.dtype is not None and expr.value.dtype.name == "BOOL"
    return isinstance(expr, Op) and expr.name in _BOOLEAN


def axes_of(expr: Expr) -> frozenset[str]:
    """The index variables that a formula depends on."""
    if isinstance(expr, Axis):
        return frozenset((expr.name,))
    parts = expr.args if isinstance(expr, Op) else expr.index if isinstance(expr, Read) else ()
    return frozenset().union(*map(axes_of, parts))


def reads_of(expr: Expr) -> frozenset[Read]:
    """Every `Read` in a formula, including those inside indices."""
    parts = expr.args if isinstance(expr, Op) else expr.index if isinstance(expr, Read) else ()
    inner = frozenset().union(*map(reads_of, parts))
    return inner | {expr} if isinstance(expr, Read) else inner


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The formulas whose conjunction `expr` is."""
    if isinstance(expr, Op) and expr.name == "And":
        return tuple(dict.fromkeys(conjuncts(expr.args[0]) + conjuncts(expr.args[1])))
    return () if expr == TRUE else (expr,)


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
    if graph is None or any(name in (dims_of(value) or []) for value in graph.inputs):
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


BATCH: Expr = Axis("b")


@dataclass(frozen=True)
class Lengths:
    """Query and key length, as sums of dims."""

    query: Linear
    key: Linear

    @property
    def shift(self) -> Linear:
        """T - S."""
        return plus(self.key, self.query, -1)


@dataclass(frozen=True)
class Bound:
    """A key is at most `by` positions after the query (`later`), or at most `by` positions before it."""

    later: bool
    by: int
    alignment: str


@dataclass(frozen=True)
class Held:
    """The input behind a condition, in terms of a MaskSpec; `nonzero`: the condition is that its element is not 0."""

    input: str
    carries: str
    polarity: str = "keep"
    nonzero: bool = field(default=False, compare=False)


def bound(expr: Expr, lengths: Lengths | None) -> Bound | None:
    """A condition on the distance between a key's and a query's position; None for any other."""
    below = at_most_zero(expr)
    if below is None:
        return None
    if lengths is not None and lengths.query == {ONE: 1} and I not in below:
        below = plus(below, {I: -below.get(J, 0)})  # the only query is at 0
    if {below.get(I), below.get(J)} != {1, -1}:
        return None
    later = below[J] == 1
    limit = scaled({atom: by for atom, by in below.items() if atom not in (I, J)}, -1)  # of j - i, or of i - j
    from_start = set(limit) <= {ONE}
    shift = lengths.shift if lengths is not None else {}
    from_end = plus(limit, shift, -1 if later else 1)
    # If both lengths are constants, a bound could be read from either end: only `j <= i + T - S` is read from the end.
    if shift and set(from_end) <= {ONE} and (not from_start or (later and not from_end)):
        return Bound(later, from_end.get(ONE, 0), "lower_right")
    return Bound(later, limit.get(ONE, 0), "upper_left") if from_start else None


def always(expr: Expr, lengths: Lengths | None) -> bool:
    """Whether a condition holds for every query and key, as `j < |T|` does."""
    below = at_most_zero(expr)
    if below is None or lengths is None:
        return False
    most = below
    for axis, length in ((I, lengths.query), (J, lengths.key)):
        by = most.get(axis, 0)
        most = plus(most, {axis: -by})
        if by > 0:  # the largest value is that of the last position; else of the first, which is zero
            most = plus(plus(most, length, by), {ONE: -by})
    return set(most) <= {ONE} and most.get(ONE, 0) <= 0


def length_of(expr: Expr, at: Expr, lengths: Lengths | None) -> tuple[str, str] | None:
    """The input and the alignment of `at < input[b]`, with `at` a key's or a query's position; None for any other."""
    below = at_most_zero(expr)
    reads = [atom for atom in below or () if isinstance(atom, Read)]
    if below is None or len(reads) != 1 or below[reads[0]] != -1 or below.get(at) != 1:
        return None
    read, rest = reads[0], plus(below, {at: -1, reads[0]: 1, ONE: -1})
    if not read.value.is_graph_input() or read.index not in ((BATCH,), (ZERO,)):
        return None
    if not rest:
        return str(read.value.name), "upper_left"
    return (str(read.value.name), "lower_right") if lengths and at == I and rest == lengths.shift else None


def truth_of(expr: Expr) -> tuple[Read, str] | None:
    """The element of an input whose truth is the condition, and the input's polarity; None for any other."""
    if isinstance(expr, Op) and expr.name == "Not":
        inner = truth_of(expr.args[0])
        turned = {"keep": "hide", "hide": "keep"}.get(inner[1]) if inner is not None else None
        return (inner[0], turned) if inner is not None and turned else None
    if isinstance(expr, Read) and is_bool(expr):
        return (expr, "keep") if expr.value.is_graph_input() else None
    if not isinstance(expr, Op) or len(expr.args) != 2:
        return None
    low, high = expr.args
    for read, other, above in ((low, high, False), (high, low, True)):
        if not isinstance(read, Read) or not read.value.is_graph_input() or not isinstance(other, Const):
            continue
        if expr.name in ("Ne", "Equal"):
            return (read, "keep" if expr.name == "Ne" else "hide") if other == ZERO else None
        if expr.name not in ("Less", "LessOrEqual"):
            continue
        # A threshold between zero and one separates the two values of a mask; one between zero and the numbers that
        # hide separates those of an additive mask.
        at_zero = expr.name == ("Less" if above else "LessOrEqual")
        if 0 <= other.value < 1 if at_zero else 0 < other.value <= 1:
            return read, "keep" if above else "hide"
        if above and HIDES < other.value < 0:
            return read, "additive"
    return None


def position(index: Sequence[Expr], lengths: Lengths | None) -> tuple[Expr, str] | None:
    """The position at which `[B,T]` is read: `J`, or `I` with its alignment; None for any other index."""
    if len(index) != 2 or index[0] not in (BATCH, ZERO):
        return None
    if index[1] == J:
        return J, ""
    if index[1] == I:
        return I, "upper_left"
    at = linear(index[1])
    if at is not None and lengths is not None and at == plus({I: 1}, lengths.shift):
        return I, "lower_right"
    return None


def same_at_query(of_key: Expr, of_query: Expr, lengths: Lengths | None) -> str | None:
    """The alignment with which `of_query` is for a query's position what `of_key` is for a key's, or None."""
    if normal(moved(of_key, I)) == normal(of_query):
        return "upper_left"
    key_reads, query_reads = reads_of(of_key), reads_of(of_query)
    if lengths is None or len(key_reads) != 1 or len(query_reads) != 1:
        return None
    (key,), (query,) = key_reads, query_reads
    at_key, at_query = position(key.index, lengths), position(query.index, lengths)
    same = key.value is query.value and at_key is not None and at_key[0] == J and at_query is not None
    place = Axis("p")
    same = same and moved(of_key, place) == _with(of_query, query, Read(key.value, (key.index[0], place)))
    return at_query[1] if same and at_query is not None and at_query[0] == I else None


def moved(expr: Expr, to: Expr, axis: Expr = J) -> Expr:
    """A condition on key j (or on another index) as the same condition on `to`."""
    return _with(expr, axis, to)


def _with(expr: Expr, old: Expr, new: Expr) -> Expr:
    if expr == old:
        return new
    if isinstance(expr, Read):
        return Read(expr.value, tuple(_with(at, old, new) for at in expr.index))
    return op(expr.name, *(_with(arg, old, new) for arg in expr.args)) if isinstance(expr, Op) else expr


def is_of_keys(expr: Expr) -> bool:
    """Whether a condition depends only on the item and the key."""
    return axes_of(expr) <= {"b", "j"}


def disjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The formulas whose disjunction `expr` is."""
    if isinstance(expr, Op) and expr.name == "Or":
        return tuple(dict.fromkeys(disjuncts(expr.args[0]) + disjuncts(expr.args[1])))
    return (expr,)
