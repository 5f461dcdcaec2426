"""Formulas over the indices of a tensor's element, such as `mask[b, j] != 0` and `j <= i`, in a simple form."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir


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
        return Const(_fold(name, [arg.value for arg in args if isinstance(arg, Const)]))
    simple = _SIMPLIFY.get(name)
    found = simple(*args) if simple and len(args) <= 3 else None
    return found if found is not None else Op(name, args)


def _fold(name: str, values: list[Any]) -> Any:
    return values[0] if name in ("Max", "Min") and len(values) == 1 else _FOLD[name](*values)


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


def _less_equal(a: Expr, b: Expr) -> Expr | None:
    # An index is never negative: the masks that transformers builds start with `index >= 0`.
    return TRUE if a == ZERO and isinstance(b, Axis | Size) else None


def _less(a: Expr, b: Expr) -> Expr | None:
    return FALSE if b == ZERO and isinstance(a, Axis | Size) else None


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


def _sub(a: Expr, b: Expr) -> Expr | None:
    return a if isinstance(b, Const) and b.value == 0 else None


def _mul(a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const) and a.value == 1:
        return b
    return a if isinstance(b, Const) and b.value == 1 else None


_SIMPLIFY: dict[str, Callable[..., Expr | None]] = {
    "And": _and,
    "Or": _or,
    "Not": _not,
    "LessOrEqual": _less_equal,
    "Less": _less,
    "Where": _where,
    "Ne": _ne,
    "Equal": _equal,
    "Add": _add,
    "Sub": _sub,
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
