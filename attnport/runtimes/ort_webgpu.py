"""ONNX Runtime in the browser, on a GPU: the package onnxruntime-web by WebGPU, in Chromium."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attnport.runtimes._javascript import Chromium, JavaScriptRuntime, Process, package


class OrtWebGpu(JavaScriptRuntime):
    """WebGPU, where Chromium gives an adapter."""

    name = "ort_webgpu"
    form = "ort_cpu"
    plans = ("fp32",)
    npm = "onnxruntime-web"
    provider = "webgpu"

    def started(self, files: Mapping[str, Path]) -> Process:
        """A page in Chromium that may use WebGPU."""
        flags = ("--enable-unsafe-webgpu", "--enable-features=Vulkan")
        return Chromium(package(self.npm)[0], "ort.webgpu.min.mjs", files, flags)


RUNTIME = OrtWebGpu()
