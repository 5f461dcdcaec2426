"""Masks as formulas: for each kind the spellings that mean it, and conditions that are nearly one."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, I, J, Read, Size, op
from attnport.masks import MaskSpec

B = Axis("b")
S, T, PAST = Size("S"), Size("T"), Size("past")
INPUTS = {
    "m": "int64[B,T]", "ok": "bool[B,1,1,T]", "x": "float[B,T]", "n": "int64[B]", "p": "int32[B]", "seg": "int64[B,T]",
    "g": "bool[B,T]", "gi": "int64[B,T]", "pairs": "bool[B,1,S,T]", "w": "uint8[B]",
}  # fmt: skip
GRAPH = ir.from_proto(
    onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 23]> f ({", ".join(f"{kind} {name}" for name, kind in INPUTS.items())})'
        " => (bool[B,T] y) { y = Identity(g) }"
    )
).graph
VALUES = {str(value.name): value for value in GRAPH.inputs}


def read(name: str, *index: Expr) -> Expr:
    return Read(VALUES[name], index)


def le(a: Expr, b: Expr) -> Expr:
    return op("LessOrEqual", a, b)


def lt(a: Expr, b: Expr) -> Expr:
    return op("Less", a, b)


def all_of(*parts: Expr) -> Expr:
    total = parts[0]
    for part in parts[1:]:
        total = op("And", total, part)
    return total


def any_of(*parts: Expr) -> Expr:
    total = parts[0]
    for part in parts[1:]:
        total = op("Or", total, part)
    return total


def minus(a: Expr, b: Expr) -> Expr:
    return op("Sub", a, b)


def number(truth: Expr) -> Expr:
    """A truth value as 0 or 1: a Cast of it reads as itself."""
    return truth


C = Const
AT_END = op("Add", I, minus(T, S))
N, P, M, X = read("n", B), read("p", B), read("m", B, J), read("x", B, J)
SEG_I, SEG_J = read("seg", B, I), read("seg", B, J)
G_I, G_J, GI_I, GI_J = read("g", B, I), read("g", B, J), read("gi", B, I), read("gi", B, J)
NEAR = all_of(le(minus(I, J), C(2)), le(minus(J, I), C(2)))
LOWER = "lower_right"

CAUSAL_SPELLINGS = (
    le(J, I), op("Not", lt(I, J)), lt(J, op("Add", I, C(1))), le(minus(J, I), ZERO), lt(minus(J, I), C(1)),
    op("GreaterOrEqual", minus(I, J), ZERO), op("Greater", op("Add", I, C(1)), J), le(ZERO, minus(I, J)),
    op("Not", le(op("Add", I, C(1)), J)), lt(minus(J, I), C(0.5)), le(op("Mul", C(-1), I), op("Neg", J)),
    op("Where", lt(I, J), C(False), C(True)), le(op("Max", minus(J, I), C(-3)), ZERO),
    op("Ne", number(le(J, I)), ZERO), op("Equal", number(lt(I, J)), ZERO),
)  # fmt: skip
WINDOW_SPELLINGS = (
    NEAR, le(op("Abs", minus(I, J)), C(2)), lt(op("Abs", minus(J, I)), C(3)),
    op("Not", lt(C(2), op("Abs", minus(I, J)))),
    op("Not", any_of(lt(C(2), minus(I, J)), lt(C(2), minus(J, I)))), le(ZERO, minus(C(2), op("Abs", minus(I, J)))),
    le(op("Max", minus(I, J), minus(J, I)), C(2)), all_of(le(minus(I, C(2)), J), lt(J, op("Add", I, C(3)))),
    lt(op("Abs", minus(I, J)), C(2.5)),
    lt(op("Add", number(lt(C(2), minus(I, J))), number(lt(C(2), minus(J, I)))), C(1)),
    lt(ZERO, op("Mul", number(le(minus(I, J), C(2))), number(le(J, op("Add", I, C(2)))))),
)  # fmt: skip
PREFIX_SPELLINGS = (
    any_of(le(J, I), lt(J, P)), any_of(lt(J, P), le(J, I)), op("Not", all_of(lt(I, J), le(P, J))),
    any_of(le(J, I), all_of(lt(I, P), lt(J, P))), lt(ZERO, op("Add", number(le(J, I)), number(lt(J, P)))),
    op("Where", lt(J, P), C(True), le(J, I)), any_of(le(J, I), le(op("Add", J, C(1)), P)),
    op("Ne", op("Max", number(le(J, I)), number(le(ZERO, minus(minus(P, J), C(1))))), ZERO),
    le(op("Min", minus(J, I), minus(op("Add", J, C(1)), P)), ZERO),
)  # fmt: skip
GLOBAL_SPELLINGS = (
    any_of(NEAR, G_I, G_J), any_of(G_J, le(op("Abs", minus(I, J)), C(2)), G_I),
    op("Not", all_of(any_of(lt(C(2), minus(I, J)), lt(C(2), minus(J, I))), op("Not", G_I), op("Not", G_J))),
    lt(ZERO, op("Add", op("Add", number(NEAR), number(G_I)), number(G_J))),
    all_of(any_of(le(minus(I, J), C(2)), G_I, G_J), any_of(le(minus(J, I), C(2)), G_J, G_I)),
    op("Where", G_I, C(True), any_of(NEAR, G_J)),
)  # fmt: skip


def lengths_spec(kind: str, name: str, **more: Any) -> MaskSpec:
    kinds = ("causal", "prefix") if kind == "prefix" else (kind,)
    return MaskSpec(kinds, name, carries="lengths", **more)


WIDE_GLOBAL = MaskSpec(("window", "global"), "g", window=2, carries="marks")
CASES: dict[str, tuple[tuple[Expr, ...], MaskSpec]] = {
    "nothing": ((C(True), lt(J, T), le(minus(I, S), ZERO)), MaskSpec()),
    "causal": (CAUSAL_SPELLINGS, MaskSpec(("causal",))),
    "causal from the end": (
        (le(J, AT_END), le(minus(J, I), minus(T, S)), op("Not", lt(op("Add", I, T), op("Add", J, S)))),
        MaskSpec(("causal",), alignment=LOWER),
    ),
    "window": (WINDOW_SPELLINGS, MaskSpec(("window",), window=2)),
    "causal window": (
        (all_of(le(J, I), le(minus(I, J), C(2))), all_of(le(J, I), WINDOW_SPELLINGS[1]),
         all_of(lt(minus(I, C(3)), J), le(J, I))),
        MaskSpec(("causal", "window"), window=2),
    ),
    "causal window from the end": (
        (all_of(le(J, AT_END), le(minus(AT_END, J), C(4))), all_of(le(J, AT_END), lt(minus(AT_END, C(5)), J))),
        MaskSpec(("causal", "window"), window=4, alignment=LOWER),
    ),
    "window from the end": ((le(op("Abs", minus(AT_END, J)), C(1)),), MaskSpec(("window",), window=1, alignment=LOWER)),
    "mask that keeps": (
        (op("Ne", M, ZERO), op("Not", op("Equal", M, ZERO)), lt(ZERO, M), le(C(1), M)), MaskSpec(("padding",), "m"),
    ),
    "bool that keeps": ((read("ok", B, ZERO, ZERO, J),), MaskSpec(("padding",), "ok")),
    "float that keeps": ((lt(C(0.5), X),), MaskSpec(("padding",), "x")),
    "mask that hides": (
        (op("Equal", M, ZERO), lt(M, C(1)), op("Not", op("Ne", M, ZERO))), MaskSpec(("padding",), "m", "hide"),
    ),
    "bool that hides": ((op("Not", read("ok", B, ZERO, ZERO, J)),), MaskSpec(("padding",), "ok", "hide")),
    "float that hides": ((op("Not", lt(C(0.5), X)), lt(X, C(0.5))), MaskSpec(("padding",), "x", "hide")),
    "float that is added": ((lt(C(-5000.0), X),), MaskSpec(("padding",), "x", "additive")),
    "a computed padding mask": ((op("Ne", M, C(1)), op("Not", op("Equal", M, C(1)))), MaskSpec(("padding",))),
    "lengths": (
        (lt(J, N), op("Not", le(N, J)), le(op("Add", J, C(1)), N), lt(ZERO, minus(N, J)), lt(minus(J, N), ZERO)),
        lengths_spec("padding", "n"),
    ),
    "unsigned lengths, whose difference wraps around": ((lt(ZERO, minus(read("w", B), J)),), MaskSpec(("padding",))),
    "prefix that is all of an item": (
        (all_of(PREFIX_SPELLINGS[0], lt(J, P)),), MaskSpec(("causal", "prefix", "padding")),
    ),
    "pairs": ((read("pairs", B, ZERO, I, J),), MaskSpec(("explicit",), "pairs")),
    "pairs that are hidden": ((op("Not", read("pairs", B, ZERO, I, J)),), MaskSpec(("explicit",), "pairs", "hide")),
    "prefix": (PREFIX_SPELLINGS, lengths_spec("prefix", "p")),
    "prefix from the end": ((any_of(le(J, AT_END), lt(J, P)), any_of(le(J, AT_END), all_of(lt(AT_END, P), lt(J, P)))),
        lengths_spec("prefix", "p", alignment=LOWER)),
    "prefix of a window": (
        (all_of(PREFIX_SPELLINGS[0], NEAR),),
        MaskSpec(("causal", "prefix", "window"), "p", window=2, carries="lengths"),
    ),
    "prefix of a causal mask": ((all_of(le(J, I), PREFIX_SPELLINGS[0]),), MaskSpec(("causal",))),
    "documents": (
        (op("Equal", SEG_I, SEG_J), op("Equal", SEG_J, SEG_I), op("Equal", minus(SEG_I, SEG_J), ZERO),
         op("Not", op("Ne", SEG_I, SEG_J))),
        MaskSpec(("documents",), "seg", carries="ids"),
    ),
    "documents from the end": (
        (op("Equal", read("seg", B, AT_END), SEG_J),), MaskSpec(("documents",), "seg", alignment=LOWER, carries="ids"),
    ),
    "documents and padding": (
        (all_of(op("Equal", SEG_I, SEG_J), op("Ne", SEG_J, ZERO)),),
        MaskSpec(("documents", "padding"), "seg", carries="ids"),
    ),
    "documents and a computed padding mask": (
        (all_of(op("Equal", SEG_I, SEG_J), op("Ne", SEG_J, C(7))), all_of(op("Equal", SEG_I, SEG_J), lt(ZERO, SEG_J))),
        MaskSpec(("documents", "padding")),
    ),
    "global": (GLOBAL_SPELLINGS, WIDE_GLOBAL),
    "global of integers": (
        (any_of(NEAR, op("Ne", GI_I, ZERO), op("Ne", GI_J, ZERO)),),
        MaskSpec(("window", "global"), "gi", window=2, carries="marks"),
    ),
    "computed global tokens": (
        (any_of(NEAR, lt(I, C(1)), lt(J, C(1))), any_of(NEAR, op("Not", G_I), op("Not", G_J)),
         any_of(lt(J, C(3)), NEAR, lt(I, C(3))), any_of(NEAR, all_of(G_I, lt(I, C(2))), all_of(G_J, lt(J, C(2))))),
        MaskSpec(("window", "global"), window=2),
    ),
    "global from the end": (
        (any_of(le(op("Abs", minus(AT_END, J)), C(2)), read("g", B, AT_END), G_J),),
        MaskSpec(("window", "global"), "g", window=2, alignment=LOWER, carries="marks"),
    ),
    "global and causal": (
        (all_of(le(J, I), GLOBAL_SPELLINGS[0]), all_of(le(J, I), any_of(le(minus(I, J), C(2)), G_I, G_J))),
        MaskSpec(("causal", "window", "global"), "g", window=2, carries="marks"),
    ),
    "causal and lengths": ((all_of(le(J, I), lt(J, N)),), MaskSpec(("causal", "padding"), "n", carries="lengths")),
    "several inputs": ((all_of(op("Ne", M, ZERO), lt(J, N)),), MaskSpec(("padding",))),
    "prefix and padding": (
        (all_of(PREFIX_SPELLINGS[0], op("Ne", M, ZERO)),), MaskSpec(("causal", "prefix", "padding")),
    ),
}  # fmt: skip
EXPLICIT: dict[str, Expr] = {
    "strictly before": lt(J, I),
    "one side of a window": le(minus(I, J), C(2)),
    "another side": le(minus(J, I), C(2)),
    "unequal sides": all_of(le(minus(I, J), C(2)), le(minus(J, I), C(3))),
    "two alignments": all_of(le(J, AT_END), le(minus(I, J), C(2))),
    "later keys only": le(I, J),
    "shifted by a dim that is not T - S": le(J, op("Add", I, PAST)),
    "shifted by S - T": le(J, op("Add", I, minus(S, T))),
    "prefix that is one too long": any_of(le(J, I), le(J, P)),
    "prefix of queries": any_of(le(J, I), lt(I, P)),
    "prefix of two lengths": any_of(le(J, I), lt(J, P), lt(J, N)),
    "prefix beside strictly before": any_of(lt(J, I), lt(J, P)),
    "other documents": op("Ne", SEG_I, SEG_J),
    "later documents": le(SEG_I, SEG_J),
    "documents of two inputs": op("Equal", SEG_I, M),
    "documents or causal": any_of(op("Equal", SEG_I, SEG_J), le(J, I)),
    "global keys only": any_of(NEAR, G_J),
    "global queries only": any_of(NEAR, G_I),
    "no window": any_of(G_I, G_J),
    "both global": any_of(NEAR, all_of(G_I, G_J)),
    "global from two inputs": any_of(NEAR, G_I, op("Ne", GI_J, ZERO)),
    "global by two conditions": all_of(any_of(NEAR, lt(I, C(1)), lt(J, C(1))), any_of(NEAR, lt(I, C(2)), lt(J, C(2)))),
    "global by other conditions": any_of(NEAR, G_I, all_of(G_J, lt(J, C(2)))),
    "global by other conditions, from the end": any_of(
        le(op("Abs", minus(AT_END, J)), C(2)), read("g", B, AT_END), all_of(G_J, lt(J, C(2)))
    ),
    "global in a causal window": any_of(all_of(le(J, I), le(minus(I, J), C(2))), G_I, G_J),
    "global in two windows": all_of(GLOBAL_SPELLINGS[0], le(op("Abs", minus(I, J)), C(4))),
    "a query's padding": op("Ne", read("m", B, I), ZERO),
    "a sum of positions": all_of(le(minus(I, J), C(3)), le(op("Add", I, J), C(3))),
    "twice a position": all_of(le(minus(J, I), C(4)), le(minus(op("Mul", C(2), I), J), C(4))),
    "global beside a causal window": all_of(le(J, I), le(minus(I, J), C(4)), GLOBAL_SPELLINGS[0]),
    "one in three": le(op("Mul", C(3), J), I),
}
