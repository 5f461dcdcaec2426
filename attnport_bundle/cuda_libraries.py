"""CUDA's and cuDNN's libraries where pip lays them: in `nvidia/*/lib` of a folder on the module path."""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    missing = [name for name in (needed(Path(file).parent / _PROVIDER) if file else ()) if not _loads(name)]
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
