"""Imports optional dependencies; if one is missing, the error has the pip command that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from attnport.errors import MissingDependency

PACKAGES: dict[str, str] = {
    "cryptography": "cryptography",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "pynvml": "nvidia-ml-py",
    "ray": "ray",
    "tensorrt": "tensorrt-cu13",
    "tensorrt_rtx": "tensorrt-rtx",
    "transformers": "transformers tokenizers safetensors",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
}
"""By import name, what pip is to install. The extras of attnport bring the same, where pip finds attnport itself."""


def pip_line(name: str) -> str:
    """The command that installs the optional module `name` (an import name)."""
    return f"pip install {PACKAGES.get(name, name)}"


def require(name: str, packages: str = "") -> ModuleType:
    """Imports the optional module `name`.

    Args:
        packages: What pip is to install, if it is not what `pip_line` says.

    Raises:
        MissingDependency: it is not installed, or its import fails (the reason is in the message).
    """
    line = f"pip install {packages}" if packages else pip_line(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name != name:
            raise MissingDependency(f"{name} cannot be imported: {err}", hint=f"Install what it needs: {line}") from err
        raise MissingDependency(f"{name} is not installed.", hint=line) from None
    except (ImportError, OSError) as err:  # OSError: a library that the package loads is missing
        raise MissingDependency(
            f"{name} is installed but cannot be imported: {err}", hint=f"Reinstall it: {line}"
        ) from err
