"""Casts between a contract's dtypes and those of a file in half precision.

NumPy has no bfloat16, which is the upper half of a float32; here it is stored as uint16. Rounding is to nearest, ties
to even, as in ml_dtypes and PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BFLOAT16 = "bfloat16"


def storage(dtype: str) -> str:
    """The NumPy dtype that stores an array of `dtype`."""
    return "uint16" if dtype == BFLOAT16 else dtype


def to_file(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """An array of the contract's dtype in the file's dtype; the array itself if they are the same."""
    if dtype == BFLOAT16:
        return _rounded(array)
    return array.astype(dtype, copy=False)


def from_file(array: np.ndarray[Any, Any], dtype: str, wanted: str) -> np.ndarray[Any, Any]:
    """An output of the file, of `dtype`, in the contract's dtype `wanted`."""
    if dtype == BFLOAT16:
        import numpy as np

        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(wanted, copy=False)


def _rounded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes Inf
        bits = np.ascontiguousarray(array, np.float32).reshape(array.shape).view(np.uint32)
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    quiet = upper | np.uint32(0x40)  # a NaN must not be rounded to Inf
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
