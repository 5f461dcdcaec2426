"""Functions of a number that ONNX lacks, or that torch's exporter writes with a loss of digits; choices of booleans.

`expm1` and `log1p` have the point to be accurate near zero; the exporter writes `exp(x) - 1` and `log(1 + x)`
(https://github.com/microsoft/onnxscript/blob/main/onnxscript/function_libs/torch_lib/ops/core.py, `aten_expm1`).
`erfinv` is written by the polynomials of https://people.maths.ox.ac.uk/gilesm/files/gems_erfinv.pdf, which are as
accurate as float32, and `lgamma` by Stirling's series from 3 on (https://dlmf.nist.gov/5.11.E1). Of booleans, ONNX
Runtime's CPU provider has no `Where` (https://github.com/microsoft/onnxruntime/issues/24127).
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    aten = torch.ops.aten
    return {
        aten.expm1.default: expm1,
        aten.log1p.default: log1p,
        aten.erfinv.default: erfinv,
        aten.lgamma.default: lgamma,
        aten.where.self: where,
        aten.masked_fill.Scalar: masked_fill,
        aten.masked_fill.Tensor: masked_fill,
        aten._is_all_true.default: all_true,
    }


def expm1(self: Any) -> Any:
    """`tanh(x / 2) * (exp(x) + 1)`, which is the same without a difference of near numbers."""
    half = op.Mul(self, op.CastLike(op.Constant(value_float=0.5), self))
    one = op.CastLike(op.Constant(value_float=1.0), self)
    return op.Mul(op.Tanh(half), op.Add(op.Exp(self), one))


def log1p(self: Any) -> Any:
    """`2 * atanh(x / (2 + x))` near zero; `log(1 + x)` elsewhere."""
    one, two = (op.CastLike(op.Constant(value_float=value), self) for value in (1.0, 2.0))
    near = op.Less(op.Abs(self), op.CastLike(op.Constant(value_float=0.5), self))
    small = op.Where(near, self, op.Sub(self, self))  # so that atanh of the others is not asked for
    accurate = op.Mul(two, op.Atanh(op.Div(small, op.Add(two, small))))
    return op.Where(near, accurate, op.Log(op.Add(one, self)))


_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def erfinv(self: Any) -> Any:
    """The number of which `erf` is `self`, from -1 to 1; both ends are infinite."""

    def number(value: float) -> Any:
        return op.CastLike(op.Constant(value_float=value), self)

    def polynomial(coefficients: tuple[float, ...], at: Any) -> Any:
        result = number(coefficients[0])
        for coefficient in coefficients[1:]:
            result = op.Add(op.Mul(result, at), number(coefficient))
        return result

    one = number(1.0)
    w = op.Neg(op.Log(op.Mul(op.Sub(one, self), op.Add(one, self))))
    middle = polynomial(_MIDDLE, op.Sub(w, number(2.5)))
    tail = polynomial(_TAIL, op.Sub(op.Sqrt(w), number(3.0)))
    found = op.Mul(op.Where(op.Less(w, number(5.0)), middle, tail), self)
    ends = op.Equal(op.Abs(self), one)
    return op.Where(ends, op.Div(self, op.Sub(one, one)), found)


_INT32, _BOOL = 6, 9


_STIRLING = (1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
"""Of the odd powers of `1 / x`, the highest first."""


def lgamma(self: Any) -> Any:
    """`log(abs(gamma(x)))`: of small numbers that of `x + 3` without the logarithms of what is between, of those below
    a half by reflection, as `gamma(x) * gamma(1 - x)` is `pi / sin(pi * x)`."""

    def number(value: float) -> Any:
        return op.CastLike(op.Constant(value_float=value), self)

    one, half, few = number(1.0), number(0.5), number(3.0)
    reflected = op.Less(self, half)
    x = op.Where(reflected, op.Sub(one, self), self)
    small = op.Less(x, few)
    low = op.Where(small, x, few)  # a product of large numbers would overflow
    between = low
    for step in range(1, 3):
        between = op.Mul(between, op.Add(low, number(float(step))))
    far = op.Where(small, op.Add(x, few), x)
    inverse = op.Div(one, far)
    square = op.Mul(inverse, inverse)
    series = number(_STIRLING[0])
    for coefficient in _STIRLING[1:]:
        series = op.Add(op.Mul(series, square), number(coefficient))
    series = op.Add(op.Mul(series, inverse), number(0.5 * math.log(2 * math.pi)))
    above = op.Add(op.Sub(op.Mul(op.Sub(far, half), op.Log(far)), far), series)
    found = op.Where(small, op.Sub(above, op.Log(between)), above)
    sine = op.Abs(op.Sin(op.Mul(number(math.pi), op.Sub(self, op.Floor(self)))))
    return op.Where(reflected, op.Sub(op.Log(op.Div(number(math.pi), sine)), found), found)


def where(condition: Any, self: Any, other: Any) -> Any:
    """`self` where the condition is true, else `other`."""
    if not (_is_boolean(self) or _is_boolean(other)):
        return op.Where(condition, self, other)
    return op.Or(op.And(condition, self), op.And(op.Not(condition), other))


def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    """`value` where the mask is true, else `self`."""
    filled = op.CastLike(value, self)
    return where(mask, filled, self) if _is_boolean(self) else op.Where(mask, filled, self)


def all_true(self: Any) -> Any:
    """Whether every element is true, as it is where there is none; torch makes it of `all` under a condition."""
    return op.Cast(op.ReduceMin(op.Cast(self, to=_INT32), keepdims=0), to=_BOOL)


def _is_boolean(value: Any) -> bool:
    return getattr(value, "dtype", None) == ir.DataType.BOOL
