"""The kind of a mask that was read as formulas: padding, causal, window, ... as a MaskSpec names them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnport.exporter.fusion.formula import Axis, Const, Expr, Op, Size, axes_of, op, reads_of
from attnport.masks.spec import MaskSpec

CAUSAL: Expr = Op("LessOrEqual", (Axis("j"), Axis("i")))


def plain(keep: Expr) -> Expr:
    """Comparisons of indices as `j <= i`, `i - j <= w` and `j - i <= w`, however they were spelt."""
    if not isinstance(keep, Op) or keep.name not in ("Less", "LessOrEqual") or reads_of(keep):
        return keep
    difference = linear(op("Sub", keep.args[0], keep.args[1]))
    if difference is None or (set(difference) != {"", "i", "j"} and set(difference) != {"i", "j"}):
        return keep
    bound = -difference.get("", 0.0) - (1.0 if keep.name == "Less" else 0.0)
    if not bound.is_integer() or {difference["i"], difference["j"]} != {1.0, -1.0}:
        return keep
    if difference["j"] == 1.0 and bound == 0:
        return CAUSAL
    first, second = (Axis("i"), Axis("j")) if difference["i"] == 1.0 else (Axis("j"), Axis("i"))
    return Op("LessOrEqual", (Op("Sub", (first, second)), Const(int(bound))))


def linear(expr: Expr) -> dict[str, float] | None:
    """`expr` as coefficients by index variable (`Size` dims by name, the constant under ""), or None if it is not."""
    if isinstance(expr, Axis):
        return {expr.name: 1.0}
    if isinstance(expr, Size):
        return {f"|{expr.dim}|": 1.0}
    if isinstance(expr, Const):
        return {"": float(expr.value)}
    if not isinstance(expr, Op) or expr.name not in ("Add", "Sub", "Neg", "Mul"):
        return None
    parts = [linear(arg) for arg in expr.args]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if expr.name == "Neg":
        return {name: -by for name, by in known[0].items()}
    if expr.name == "Mul":
        left, right = known
        if set(left) - {""} and set(right) - {""}:
            return None
        number, rest = (left.get("", 0.0), right) if not set(left) - {""} else (right.get("", 0.0), left)
        return {name: by * number for name, by in rest.items()}
    sign = 1.0 if expr.name == "Add" else -1.0
    total = dict(known[0])
    for name, by in known[1].items():
        total[name] = total.get(name, 0.0) + sign * by
    return {name: by for name, by in total.items() if by or not name}


def spec_of(keeps: Sequence[Expr], *, biased: bool) -> MaskSpec:
    """The MaskSpec of a mask that allows a key where every formula of `keeps` holds."""
    kinds: dict[str, None] = {}
    source: str | None = None
    alignment, window = "upper_left", 0
    for keep in keeps:
        kind, detail = _kind(keep)
        kinds[kind] = None
        if kind == "causal" and detail:
            alignment = "lower_right"
        if kind == "window":
            window = detail
        names = sorted({read.value.name or "" for read in reads_of(keep) if read.value.is_graph_input()})
        source = source or (names[0] if names else None)
    if biased:
        kinds["bias"] = None
    return MaskSpec(tuple(kinds) or ("none",), source, "keep", alignment, window)


def _kind(keep: Expr) -> tuple[str, int]:
    """The kind of one factor, with 1 for a causal mask that is aligned lower right, or the window's width."""
    axes = axes_of(keep)
    if reads_of(keep):
        return ("padding", 0) if axes <= {"b", "j"} else ("explicit", 0)
    if isinstance(keep, Op) and keep.name in ("Less", "LessOrEqual"):
        difference = linear(op("Sub", keep.args[0], keep.args[1]))
        if difference is not None:
            constant = difference.get("", 0.0) + (1.0 if keep.name == "Less" else 0.0)
            sizes = [name for name in difference if name.startswith("|")]
            lower_right = sorted(difference[name] for name in sizes) == [-1.0, 1.0]
            if difference.get("j") == 1.0 and difference.get("i") == -1.0 and constant == 0.0:
                return ("causal", int(bool(sizes))) if lower_right or not sizes else ("explicit", 0)
            if not sizes and {difference.get("i"), difference.get("j")} == {1.0, -1.0} and -math.inf < constant <= 0:
                return "window", int(-constant)
    return "explicit", 0
