"""Memory of a GPU that goes from one library to another: DLPack, read and written with `ctypes`.

NumPy knows no memory but the host's, and an engine's session has no other library. Source: the DLPack specification,
https://dmlc.github.io/dlpack/latest/ (C API of DLManagedTensor, and "Python Specification").
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from ..errors import FeedError
from ..feeds import storage

CUDA_DEVICE = 2  # kDLCUDA
ALIGNMENT = 256
"""TensorRT's, in bytes."""
_NAME = b"dltensor"
_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))
_PYTHON = ctypes.pythonapi
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(("PyCapsule_New", _PYTHON))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _PYTHON))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _PYTHON))

_given: dict[int, tuple[_Managed, Any, Any]] = {}
"""By address, what other libraries hold: the structure, its shape, and the tensor that it belongs to."""


def _let_go(managed: Any) -> None:
    """Lets a tensor go that another library held."""
    _given.pop(ctypes.addressof(managed.contents), None)


def _end(capsule: int) -> None:
    """Ends a capsule; nobody holds the tensor if nobody took it over, which renames the capsule."""
    if _is_valid(capsule, _NAME):
        _given.pop(_pointer(capsule, _NAME), None)


_deleter, _destructor = _DELETER(_let_go), _DESTRUCTOR(_end)


def borrow(name: str, tensor: Any, stream: int) -> tuple[int, Any]:
    """The address of another library's tensor, whose work is over for what follows in `stream`; and what to keep alive.

    Raises:
        FeedError: the tensor's rows do not lie one after the other, or its memory begins at no multiple of `ALIGNMENT`.
    """
    try:
        capsule = tensor.__dlpack__(stream=stream)
    except TypeError:  # of a library whose tensors know no streams
        capsule = tensor.__dlpack__()
    found = ctypes.cast(_pointer(id(capsule), _NAME), ctypes.POINTER(_Managed)).contents.tensor
    shape = found.shape[: found.ndim]
    if found.strides:
        dense = [math.prod(shape[axis + 1 :]) for axis in range(found.ndim)]
        if any(size > 1 and stride != own for size, stride, own in zip(shape, found.strides, dense, strict=False)):
            raise FeedError(f"input {name!r}: the tensor is not contiguous; call .contiguous().")
    address = (found.data or 0) + found.byte_offset
    if address % ALIGNMENT:
        raise FeedError(
            f"input {name!r}: the tensor's memory is not aligned to {ALIGNMENT} bytes, as TensorRT asks for; "
            "that of a copy is."
        )
    # Not renamed, so that the capsule frees what it holds when it goes.
    return address, capsule


class DeviceTensor:
    """A tensor on a GPU, which other libraries take by `from_dlpack`; it is complete.

    Attributes:
        shape, dtype: In NumPy's terms; the dtype may be bfloat16.
        address: Where it lies.
    """

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, free: Callable[[], None]) -> None:
        """`free` is called when nobody holds the tensor any more."""
        self.address, self.shape, self.dtype = address, shape, dtype
        self._free = free

    def __del__(self) -> None:
        self._free()

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device's kind, and that it is the first one."""
        return CUDA_DEVICE, 0

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule of the tensor; there is nothing to wait for, whatever the stream."""
        import numpy as np

        kind = self.dtype.rstrip("0123456789")
        sizes = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        bits = 8 * np.dtype(storage(self.dtype)).itemsize
        shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        tensor = _Tensor(
            self.address, *self.__dlpack_device__(), len(self.shape), _KINDS[kind], bits, 1, shape, None, 0
        )
        managed = _Managed(tensor, None, _deleter)
        address = ctypes.addressof(managed)
        _given[address] = managed, sizes, self
        return _new(address, _NAME, _destructor)
