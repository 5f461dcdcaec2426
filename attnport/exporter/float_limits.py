"""The range of ONNX float types, including bfloat16, which NumPy's finfo does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def lowest(dtype: ir.DataType) -> float:
    """The most negative finite number."""
    return -largest(dtype)


def largest(dtype: ir.DataType) -> float:
    """The largest finite number."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
