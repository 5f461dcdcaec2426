"""ONNX Runtime in the browser, on the processor: the package onnxruntime-web, as WebAssembly with SIMD and threads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attnport.runtimes._javascript import Chromium, JavaScriptRuntime, Process, package


class OrtWeb(JavaScriptRuntime):
    """WebAssembly in Chromium."""

    name = "ort_web"
    form = "ort_cpu"
    plans = ("fp32", "int8", "int4")
    npm = "onnxruntime-web"
    provider = "wasm"

    def started(self, files: Mapping[str, Path]) -> Process:
        """A page in Chromium."""
        return Chromium(package(self.npm)[0], "ort.wasm.min.mjs", files)


RUNTIME = OrtWeb()
