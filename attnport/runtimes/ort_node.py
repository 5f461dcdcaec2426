"""ONNX Runtime in node: the package onnxruntime-node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnport.runtimes._javascript import JavaScriptRuntime, Node, Process, package


class OrtNode(JavaScriptRuntime):
    """The native library, with its CPU provider; it reads the file and its weights by itself."""

    name = "ort_node"
    form = "ort_cpu"
    plans = ("fp32", "fp16", "int8", "int4", "int4_fp16")
    npm = "onnxruntime-node"
    provider = "cpu"

    def started(self, files: Mapping[str, Path]) -> Process:
        """A process of node."""
        return Node(package(self.npm)[0])

    def opened(self, process: Process, path: Path, external: Sequence[str], threads: int) -> Any:
        """By the path of the file."""
        return process.ask(
            "open", model=str(path.resolve()), external=[], provider=self.provider, threads=threads, options={}
        )[0]


RUNTIME = OrtNode()
