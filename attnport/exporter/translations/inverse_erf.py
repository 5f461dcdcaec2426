"""`erfinv`, which ONNX does not have, by the polynomials of https://people.maths.ox.ac.uk/gilesm/files/gems_erfinv.pdf.

They are as accurate as float32.
"""

from __future__ import annotations

from typing import Any

from attnport.exporter.translations import Translation

_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def table() -> dict[Any, Translation]:
    """The operator."""
    import torch

    return {torch.ops.aten.erfinv.default: erfinv}


def erfinv(self: Any) -> Any:
    """The number of which `erf` is `self`, from -1 to 1; both ends are infinite."""
    from onnxscript import opset18

    op: Any = opset18

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
