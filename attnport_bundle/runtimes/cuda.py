"""The few calls of the CUDA driver that an engine needs, what identifies a GPU, and the libraries that wheels bring.

No CUDA build of PyTorch is needed: the driver's library is installed with every GPU, and its C interface is stable.
Source: CUDA Driver API reference, https://docs.nvidia.com/cuda/cuda-driver-api/; the driver's release comes from NVML,
https://docs.nvidia.com/deploy/nvml-api/. pip lays CUDA's and cuDNN's libraries in `nvidia/*/lib` of a folder on the
module path.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RuntimeMissing
from . import Machine

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_MANAGEMENT = ("libnvidia-ml.so.1", "nvml.dll")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{MAJOR,MINOR}
_HINT = "Run on a machine with an NVIDIA GPU and driver."
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no hidden wait for the default stream


def load_driver() -> Any:
    """The driver's library.

    Raises:
        RuntimeMissing: it cannot be loaded.
    """
    library = _library(_LIBRARIES)
    if library is None:
        raise RuntimeMissing(f"no NVIDIA driver: {_LIBRARIES[0]} cannot be loaded.", hint=_HINT)
    return library


def driver_release() -> str:
    """The driver's release, such as `580.65.06`; "" if NVML does not tell."""
    library, text = _library(_MANAGEMENT), ctypes.create_string_buffer(81)
    if library is None or library.nvmlInit_v2() != 0:
        return ""
    try:
        failed = library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text)))
    finally:
        library.nvmlShutdown()
    return "" if failed else text.value.decode(errors="replace")


def _library(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class Device:
    """The first GPU, its primary context (shared with every other CUDA library in the process) and one stream.

    Attributes:
        name: As the driver calls it.
        sm: Compute capability; `86` is 8.6.
        uuid: 32 hex digits, different for every GPU.
        stream: The stream's handle.
    """

    def __init__(self) -> None:
        self._driver = load_driver()
        count = ctypes.c_int()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise RuntimeMissing("the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it.", hint=_HINT)
        device, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDeviceGetName", text, ctypes.c_int(len(text)), device)
        self.name = text.value.decode(errors="replace")
        self.sm = 10 * self._attribute(device, _CAPABILITY_MAJOR) + self._attribute(device, _CAPABILITY_MINOR)
        uuid = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid", ctypes.byref(uuid), device)
        self.uuid = bytes(uuid).hex()
        self._device = device
        self._context: ctypes.c_void_p | None = None
        self.stream = 0

    def open(self) -> None:
        """Takes the context and creates the stream; `close` releases both. Nothing is held if this fails."""
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._context = context
        try:
            self.bind()
            self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        except BaseException:
            self.close()
            raise
        self.stream = stream.value or 0

    def bind(self) -> None:
        """Makes the context current in the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context current in the calling thread for a block. Then the caller's is again, which may be another
        GPU's."""
        before = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(before))
        self.bind()
        try:
            yield
        finally:
            self._call("cuCtxSetCurrent", before)

    def close(self) -> None:
        """Releases stream and context; closing twice is fine."""
        if self._context is None:
            return
        if self.stream:
            with self.current():
                self._call("cuStreamDestroy_v2", ctypes.c_void_p(self.stream))
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)
        self._context, self.stream = None, 0

    def allocate(self, size_bytes: int) -> int:
        """Address of new device memory of at least one byte."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size_bytes, 1)))
        return address.value

    def free(self, address: int) -> None:
        """Frees memory from `allocate`."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address: int, array: Any) -> None:
        """Copies a C-contiguous array to the device, in stream order."""
        self._copy("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(array.ctypes.data), array.nbytes)

    def download(self, array: Any, address: int) -> None:
        """Copies device memory into a C-contiguous array; the copy is complete after `synchronize`."""
        self._copy("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(address), array.nbytes)

    def _copy(self, function: str, target: Any, source: Any, size_bytes: int) -> None:
        self._call(function, target, source, ctypes.c_size_t(size_bytes), ctypes.c_void_p(self.stream))

    def synchronize(self) -> None:
        """Waits for everything in the stream."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def _attribute(self, device: ctypes.c_int, which: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(which), device)
        return value.value

    def _call(self, function: str, *args: Any) -> None:
        """Calls a function of the driver. Raises RuntimeMissing with the driver's own name of the error."""
        status = getattr(self._driver, function)(*args)
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            name = text.value.decode() if text.value else f"error {status}"
            raise RuntimeMissing(f"the NVIDIA driver answers {function} with {name}.", hint=_HINT)


def gpu(device: Device) -> Machine:
    """The GPU and its driver; the compiled kernels depend on both."""
    return Machine(device.name, device.uuid, device.sm, driver_release())


CUDNN = "libcudnn.so.9"
OWN_ATTENTION = 90
"""The compute capability from which ONNX Runtime takes cuDNN's attention by itself (read in its source, 1.31.1)."""
FLASH, EFFICIENT, CUDNN_FLASH, UNFUSED = 1, 2, 8, 16
"""Kernels of attention, as bits of the option `sdpa_kernel`."""


def cudnn_version() -> str:
    """The version of cuDNN that the loader finds, such as `9.13.1`; "" if it finds none, or it does not tell."""
    try:
        number = int(ctypes.CDLL(CUDNN).cudnnGetVersion())
    except (OSError, AttributeError):
        return ""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def provider_options(sm: int) -> dict[str, str]:
    """Options of ONNX Runtime's CUDA provider for a GPU; what is proved and what an application runs has the same ones.

    TF32 keeps 10 of float32's 23 bits of mantissa: it is a precision of its own, not fp32. An exhaustive search for the
    algorithm of a convolution is begun anew at every new size. Below SM 90, ONNX Runtime takes cuDNN's attention only
    if it is asked for, and without it an attention with a bias is mostly several kernels; cuDNN has none below SM 80.

    Args:
        sm: Compute capability; `86` is 8.6.
    """
    options = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    if 80 <= sm < OWN_ATTENTION and _loads(CUDNN):
        options["sdpa_kernel"] = str(FLASH | EFFICIENT | CUDNN_FLASH | UNFUSED)
    return options


def require_options(session: Any, provider: str, asked: Mapping[str, str]) -> None:
    """Raises RuntimeMissing if a session of ONNX Runtime says that it has other options than were asked for."""
    got = session.get_provider_options().get(provider, {})
    if other := [f"{name}={got[name]}" for name, value in asked.items() if got.get(name, value) != value]:
        raise RuntimeMissing(f"{provider} was asked for {dict(asked)}; it has {', '.join(other)}.")


_NEEDED = re.compile(
    rb"\x00(lib(?:nvinfer|nvonnxparser|tensorrt|cudart|cublas|cudnn|cufft|curand|nvrtc)[A-Za-z0-9_+-]*"
    rb"\.so\.[0-9][.0-9]*)(?=\x00)"
)
_PROVIDER = "capi/libonnxruntime_providers_cuda.so"
_OPENED_LATER = ("libcudnn*.so.*", "libnvrtc*.so.*")
"""What cuDNN opens by name when it is used: its own parts, and the compiler of kernels."""


@functools.cache
def needed(library: Path) -> tuple[str, ...]:
    """The NVIDIA libraries that an ELF file names, such as `libnvinfer.so.10`; () if there is no such file.

    The file is searched for names, since it cannot be loaded if a library is missing. Names without a version are left
    out: the file is not linked against those, its code only may try to load them.
    """
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return tuple(sorted({match.decode() for match in _NEEDED.findall(data)}))
    except (OSError, ValueError):  # ValueError: an empty file
        return ()


def load_for_onnxruntime(module: Any) -> None:
    """Loads what ONNX Runtime's CUDA provider needs, if the loader does not find it by itself.

    The loader does not search the folders of wheels. A missing library is no error here: the provider reports it.

    Args:
        module: The module `onnxruntime`.
    """
    file = getattr(module, "__file__", None)
    linked = needed(Path(file).parent / _PROVIDER) if file else ()
    # The provider opens cuDNN by name when it uses it, so that it is not linked against it.
    missing = [name for name in (*linked, *((CUDNN,) if linked else ())) if not _loads(name)]
    if not missing:
        return
    folders = [lib for entry in dict.fromkeys(sys.path) if entry for lib in sorted(Path(entry).glob("nvidia/*/lib"))]
    for name in missing:
        _load(name, folders, set())
    for folder in folders:
        for later in sorted(path for pattern in _OPENED_LATER for path in folder.glob(pattern)):
            if not _loads(later.name):
                _loads(later)


def _load(name: str, folders: Sequence[Path], begun: set[str]) -> None:
    """Loads a library from the first folder from which it can be, after what it needs if it does not find that."""
    begun.add(name)
    for library in (folder / name for folder in folders if (folder / name).is_file()):
        if _loads(library):
            return
        for other in needed(library):
            if other not in begun and not _loads(other):
                _load(other, folders, begun)
        if _loads(library):
            return


def _loads(library: str | Path) -> bool:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
