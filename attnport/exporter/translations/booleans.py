"""Choosing between booleans: ONNX Runtime's CPU provider has no `Where` for them.

https://github.com/microsoft/onnxruntime/issues/24127
"""

from __future__ import annotations

from typing import Any

from attnport.exporter.translations import Translation


def table() -> dict[Any, Translation]:
    """`where` and `masked_fill`."""
    import torch

    return {
        torch.ops.aten.where.self: where,
        torch.ops.aten.masked_fill.Scalar: masked_fill,
        torch.ops.aten.masked_fill.Tensor: masked_fill,
    }


def where(condition: Any, self: Any, other: Any) -> Any:
    """`self` where the condition is true, else `other`."""
    op = _opset()
    if not (_is_boolean(self) or _is_boolean(other)):
        return op.Where(condition, self, other)
    return op.Or(op.And(condition, self), op.And(op.Not(condition), other))


def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    """`value` where the mask is true, else `self`."""
    op = _opset()
    filled = op.CastLike(value, self)
    return where(mask, filled, self) if _is_boolean(self) else op.Where(mask, filled, self)


def _is_boolean(value: Any) -> bool:
    import onnx_ir as ir

    return getattr(value, "dtype", None) == ir.DataType.BOOL


def _opset() -> Any:
    from onnxscript import opset18

    return opset18
