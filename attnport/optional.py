"""Imports optional dependencies; if one is missing, the error has the pip command that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from attnport.errors import MissingDependency

# import name -> the extra of this project that installs it
EXTRAS: dict[str, str] = {
    "cryptography": "sign",
    "onnxruntime": "cpu",
    "openvino": "openvino",
    "pynvml": "gpu-check",
    "ray": "ray",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "rtx",
    "transformers": "hf",
    "tokenizers": "hf",
    "safetensors": "hf",
}


def pip_line(name: str) -> str:
    """The command that installs the optional module `name` (an import name)."""
    extra = EXTRAS.get(name)
    return f'pip install "attnport[{extra}]"' if extra else f"pip install {name}"


def require(name: str) -> ModuleType:
    """Imports the optional module `name`.

    Raises:
        MissingDependency: it is not installed, or its import fails (the reason is in the message).
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name != name:
            raise MissingDependency(
                f"{name} cannot be imported: {err}", hint=f"Install what it needs: {pip_line(name)}"
            ) from err
        raise MissingDependency(f"{name} is not installed.", hint=pip_line(name)) from err
    except (ImportError, OSError) as err:  # OSError: a library that the package loads is missing
        raise MissingDependency(
            f"{name} is installed but cannot be imported: {err}", hint=f"Reinstall it: {pip_line(name)}"
        ) from err
