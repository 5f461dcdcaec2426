"""The shared libraries that a runtime needs, and where the loader finds them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
from pathlib import Path

from attnport_bundle.runtimes.cuda import load_for_onnxruntime, needed

__all__ = ["beside", "found", "load_bundled_cuda", "load_cuda", "needed"]


def found(name: str) -> str:
    """The path from which the loader takes a library; "" if it does not find the library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return ""
    for line in _text("/proc/self/maps").splitlines():
        path = "/" + line.partition("/")[2]  # the path is last, and may hold spaces
        if Path(path).name.startswith(name):
            return path
    return name


def load_cuda() -> None:
    """Loads CUDA's and cuDNN's libraries if they are installed as wheels, such as those of PyTorch.

    The loader does not search the folders of wheels, and ONNX Runtime's providers load them by name alone. ONNX Runtime
    itself looks beside its own folder, the rest of the module path is ours. A missing library is not an error here: the
    provider reports it.
    """
    import onnxruntime as ort

    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each library that it does not find
            preload(directory="")
    load_for_onnxruntime(ort)


def load_bundled_cuda(package: str) -> None:
    """Loads the CUDA runtime that a package brings along, whose libraries need it by its short name.

    The package has it under its full name, `libcudart.so.13.4.36`, where the loader does not search; once it is loaded,
    its short name refers to it too. If it cannot be loaded, the provider reports it.
    """
    if (bundled := beside(package, "libcudart.so.*")) is not None:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(bundled), mode=ctypes.RTLD_GLOBAL)


def beside(package: str, pattern: str) -> Path | None:
    """The first file in an installed package's folder that matches a pattern; the package is not imported."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return next((path for place in places or () for path in sorted(Path(place).glob(pattern))), None)


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""
