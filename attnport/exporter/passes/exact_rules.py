"""Makes onnxscript's rewrite rules exact."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Iterator


@contextlib.contextmanager
def exact_rules() -> Iterator[None]:
    """Has a rule of onnxscript match a constant only if both are the same float32 number.

    By default, 1e-8 matches 0 and 1.00001 matches 1: `x + 1e-8` becomes `x`, so that a normalisation with that epsilon
    divides zeros by zero, and `x * 1.00001` becomes `x`.
    """
    from onnxscript.rewriter import _matcher

    def isclose(value: float, of_rule: float, *, rel_tol: float, abs_tol: float) -> bool:
        return math.isclose(value, of_rule, rel_tol=min(rel_tol, 1e-7), abs_tol=0.0)

    names = vars(_matcher)
    before = names["math"]
    names["math"] = types.SimpleNamespace(isclose=isclose)
    try:
        yield
    finally:
        names["math"] = before
