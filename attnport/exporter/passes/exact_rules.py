"""Makes onnxscript's rewrite rules exact."""

from __future__ import annotations

import math
import types

from attnport.patches import Patch


def exact_rules() -> tuple[Patch, ...]:
    """Patches with which a rule of onnxscript matches a constant only if both are the same float32 number.

    By default, 1e-8 matches 0 and 1.00001 matches 1: `x + 1e-8` becomes `x`, so that a normalisation with that epsilon
    divides zeros by zero, and `x * 1.00001` becomes `x`.
    """
    from onnxscript.rewriter import _matcher

    def isclose(value: float, of_rule: float, *, rel_tol: float, abs_tol: float) -> bool:
        return math.isclose(value, of_rule, rel_tol=min(rel_tol, 1e-7), abs_tol=0.0)

    return (Patch(_matcher, "math", types.SimpleNamespace(isclose=isclose)),)
