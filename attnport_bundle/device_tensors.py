"""Binds another library's tensors to a session through DLPack, without a copy.

DLPack: https://dmlc.github.io/dlpack/latest. Measured with onnxruntime 1.28 and 1.31: `OrtValue.from_dlpack` takes
contiguous, writable tensors, but no booleans; those are bound by their address. NumPy arrays are bound as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import FeedError, RuntimeMissing

_CPU, _CUDA = (1, 3), (2, 13)  # DLDeviceType: kDLCPU, kDLCUDAHost; kDLCUDA, kDLCUDAManaged


@dataclass(frozen=True)
class Described:
    """Shape and dtype, in NumPy's terms, of a tensor whose values are not read."""

    shape: tuple[int, ...]
    dtype: str


def described(name: str, tensor: Any) -> Any:
    """What is compared with the contract: an array itself, or a tensor's shape and dtype.

    Raises:
        FeedError: the value is neither an array nor a tensor with `__dlpack__`.
    """
    import numpy as np

    if isinstance(tensor, np.ndarray):
        return tensor
    if not (hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")):
        raise FeedError(f"input {name!r}: got {type(tensor).__name__}; expected an array, or a tensor with __dlpack__.")
    shape, dtype = tensor.shape, getattr(tensor, "dtype", "")
    if callable(shape):  # onnxruntime's own OrtValue
        kind = tensor.data_type().removeprefix("tensor(").removesuffix(")")
        shape, dtype = shape(), {"float": "float32", "double": "float64"}.get(kind, kind)
    return Described(tuple(int(size) for size in shape), str(dtype).rpartition(".")[2])


def bound(module: Any, session: Any, feeds: Mapping[str, Any], place: str) -> Any:
    """A binding of `session` with every input bound; the caller keeps `feeds` alive until the session has run.

    Args:
        place: Where the session computes, `cpu` or `cuda`.

    Raises:
        FeedError: a tensor is on another device, is not contiguous or carries gradients.
        RuntimeMissing: this onnxruntime is older than 1.28 and has no public DLPack.
    """
    import numpy as np

    if not hasattr(module.OrtValue, "from_dlpack"):
        raise RuntimeMissing(
            f'got onnxruntime {module.__version__}; device tensors need 1.28; pip install "onnxruntime>=1.28".'
        )
    binding = session.io_binding()
    for name, tensor in feeds.items():
        if isinstance(tensor, np.ndarray):
            binding.bind_cpu_input(name, np.ascontiguousarray(tensor).reshape(tensor.shape))
            continue
        _check(name, tensor, place)
        described_as = described(name, tensor)
        if described_as.dtype == "bool":
            binding.bind_input(name, place, _index(tensor), np.bool_, list(described_as.shape), _address(name, tensor))
        else:
            binding.bind_ortvalue_input(name, _taken(module, name, tensor))
    return binding


def through_numpy(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The feeds as arrays, for runtimes that take no other library's memory.

    Raises:
        FeedError: a tensor is not on the CPU, is not contiguous or carries gradients.
    """
    import numpy as np

    arrays = {}
    for name, tensor in feeds.items():
        if isinstance(tensor, np.ndarray):
            arrays[name] = tensor
            continue
        _check(name, tensor, "cpu")
        try:
            arrays[name] = np.from_dlpack(tensor)
        except Exception as err:  # the libraries raise exceptions of different types
            raise FeedError(f"input {name!r}: the tensor cannot be taken over: {err}") from err
    return arrays


def _check(name: str, tensor: Any, place: str) -> None:
    kind = int(tensor.__dlpack_device__()[0])
    if kind not in (_CUDA if place == "cuda" else _CPU):
        raise FeedError(f"input {name!r}: got a tensor on DLPack device {kind}; the model computes on {place}.")
    if getattr(tensor, "requires_grad", False):
        raise FeedError(f"input {name!r}: the tensor carries gradients; call .detach().")
    contiguous = getattr(tensor, "is_contiguous", None)
    if contiguous is not None and not contiguous():
        raise FeedError(f"input {name!r}: the tensor is not contiguous; call .contiguous().")


def _taken(module: Any, name: str, tensor: Any) -> Any:
    if isinstance(tensor, module.OrtValue):
        return tensor
    try:
        return module.OrtValue.from_dlpack(tensor)
    except Exception as err:  # the libraries raise exceptions of different types
        raise FeedError(f"input {name!r}: the tensor cannot be taken over: {err}") from err


def _index(tensor: Any) -> int:
    return int(tensor.__dlpack_device__()[1])


def _address(name: str, tensor: Any) -> int:
    """The address of a boolean tensor, which PyTorch and onnxruntime both give by `data_ptr`."""
    pointer = getattr(tensor, "data_ptr", None)
    if pointer is None:
        raise FeedError(f"input {name!r}: got booleans of {type(tensor).__name__}, which has no data_ptr().")
    return int(pointer()) if math.prod(described(name, tensor).shape) else 0
