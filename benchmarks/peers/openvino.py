"""OpenVINO on the graph of torch.onnx.export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = ""
VARIANTS = {"f32": "fp32", "bf16": "half"}


def imports() -> None:
    """What is imported before memory counts."""
    import openvino  # noqa: F401


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Exports at torch's own opset."""
    from peer_module import exported

    exported(model, folder / "model.onnx", None)


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """Compiled for latency in the precision asked for."""
    from peer_openvino import compiled_run

    run, name = compiled_run(folder / "model.onnx", threads, variant), model["output"]
    return lambda feeds: run(feeds)[name]
