"""ONNX Runtime on the graph of torch.onnx.export: at torch's own opset, and at 23, where attention is one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = ""
VARIANTS = {"default opset": "fp32", "opset 23": "fp32"}


def imports() -> None:
    """What is imported before memory counts."""
    import onnxruntime  # noqa: F401


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Exports."""
    from peer_module import exported

    exported(model, folder / "model.onnx", 23 if variant == "opset 23" else None)


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """A session with all optimisations."""
    from peer_ort import session_run

    run, name = session_run(folder / "model.onnx", threads), model["output"]
    return lambda feeds: run(feeds)[name]
