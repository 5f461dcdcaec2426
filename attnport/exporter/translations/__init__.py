"""What torch's exporter cannot translate to ONNX, or translates wrongly: one file for each kind of operator.

Each file defines `table()`, from torch operators to functions that write them in ONNX, and names the upstream thread.
An operator goes when the exporter can do it itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxscript import opset18

from attnport.registry import all_of

Translation = Callable[..., Any]
op: Any = opset18  # its types know no constants
"""The operators that translations are written in; a call adds a node to the graph that is being exported."""


def tables() -> dict[Any, Translation]:
    """The translations of all files, as `torch.onnx.export` takes them."""
    found: dict[Any, Translation] = {}
    for file in all_of(__name__):
        found.update(file.table())
    return found
