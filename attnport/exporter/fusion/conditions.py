"""The meaning of a single condition of a mask: a bound on positions, the length of an item, an element of an input.

Positions are those of `masks`: query i is at position i (`upper_left`) or i + T - S (`lower_right`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from attnport.exporter.fusion.comparisons import ONE, I, J, Linear, at_most_zero, linear, normal, plus, scaled
from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, Read, axes_of, is_bool, op, reads_of

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
        if above and -1e4 < other.value < 0:
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
