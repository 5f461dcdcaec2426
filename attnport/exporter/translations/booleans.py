"""Choosing between booleans, for which ONNX Runtime's CPU provider has no `Where`; and whether all of them are true.

https://github.com/microsoft/onnxruntime/issues/24127
"""

from __future__ import annotations

from typing import Any

import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """`where`, `masked_fill`, and what torch makes of `all` under a condition."""
    return {
        torch.ops.aten.where.self: where,
        torch.ops.aten.masked_fill.Scalar: masked_fill,
        torch.ops.aten.masked_fill.Tensor: masked_fill,
        torch.ops.aten._is_all_true.default: all_true,
    }


_INT32, _BOOL = 6, 9


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
    """Whether every element is true, as it is where there is none."""
    return op.Cast(op.ReduceMin(op.Cast(self, to=_INT32), keepdims=0), to=_BOOL)


def _is_boolean(value: Any) -> bool:
    import onnx_ir as ir

    return getattr(value, "dtype", None) == ir.DataType.BOOL
