"""`expm1` and `log1p`, whose point is to be accurate near zero.

torch's exporter writes them as `exp(x) - 1` and `log(1 + x)`, which lose all digits there
(https://github.com/microsoft/onnxscript/blob/main/onnxscript/function_libs/torch_lib/ops/core.py, `aten_expm1`).
"""

from __future__ import annotations

from typing import Any

from attnport.exporter.translations import Translation, opset


def table() -> dict[Any, Translation]:
    """Both operators."""
    import torch

    return {torch.ops.aten.expm1.default: expm1, torch.ops.aten.log1p.default: log1p}


def expm1(self: Any) -> Any:
    """`tanh(x / 2) * (exp(x) + 1)`, which is the same without a difference of near numbers."""
    op = opset()
    half = op.Mul(self, op.CastLike(op.Constant(value_float=0.5), self))
    one = op.CastLike(op.Constant(value_float=1.0), self)
    return op.Mul(op.Tanh(half), op.Add(op.Exp(self), one))


def log1p(self: Any) -> Any:
    """`2 * atanh(x / (2 + x))` near zero; `log(1 + x)` elsewhere."""
    op = opset()
    one, two = (op.CastLike(op.Constant(value_float=value), self) for value in (1.0, 2.0))
    near = op.Less(op.Abs(self), op.CastLike(op.Constant(value_float=0.5), self))
    small = op.Where(near, self, op.Sub(self, self))  # so that atanh of the others is not asked for
    accurate = op.Mul(two, op.Atanh(op.Div(small, op.Add(two, small))))
    return op.Where(near, accurate, op.Log(op.Add(one, self)))
