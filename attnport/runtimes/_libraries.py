"""Shared libraries that a runtime needs, and whether the loader finds them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import re
from pathlib import Path

_NEEDED = re.compile(
    rb"\x00(lib(?:nvinfer|nvonnxparser|tensorrt|cudart|cublas|cudnn)[A-Za-z0-9_+-]*\.so\.[0-9][.0-9]*)(?=\x00)"
)


def needed(library: Path) -> tuple[str, ...]:
    """The NVIDIA libraries whose names stand in an ELF file, such as `libnvinfer.so.10`; () = no file.

    Read as text, since the file cannot be loaded where one of them is missing. A name without a version is none that it
    is linked against, but one that its code may try to load.
    """
    try:
        data = library.read_bytes()
    except OSError:
        return ()
    return tuple(sorted({match.decode() for match in _NEEDED.findall(data)}))


def found(name: str) -> str:
    """The path from which the loader takes a library; "" when it does not find it."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return ""
    for line in _text("/proc/self/maps").splitlines():
        path = line.rpartition(" ")[2]
        if Path(path).name.startswith(name):
            return path
    return name


def load_cuda() -> None:
    """Loads CUDA's and cuDNN's libraries where they came as wheels, PyTorch's among them.

    No loader looks there, and ONNX Runtime's providers ask for them by name alone. What is not there is left to the
    provider to say.
    """
    import onnxruntime as ort

    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each library that it does not find
            preload(directory="")


def load_bundled_cuda(package: str) -> None:
    """Loads CUDA's runtime where a package has it beside its own libraries, which ask for it by its short name.

    There it lies under its full name, `libcudart.so.13.4.36`, and nothing tells the loader to look there; a library
    that is loaded answers to its short name too. What cannot be loaded is left to the provider to say.
    """
    if (bundled := beside(package, "libcudart.so.*")) is not None:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(bundled), mode=ctypes.RTLD_GLOBAL)


def beside(package: str, pattern: str) -> Path | None:
    """The first file of an installed package's folder that fits a pattern; the package is not imported."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return next((path for place in places or () for path in sorted(Path(place).glob(pattern))), None)


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""
