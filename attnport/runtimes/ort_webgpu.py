"""ONNX Runtime in the browser, on a GPU: the package onnxruntime-web by WebGPU, in Chromium."""

from __future__ import annotations

from attnport.runtimes._javascript import JavaScriptRuntime


class OrtWebGpu(JavaScriptRuntime):
    """WebGPU, where Chromium gives an adapter."""

    name = "ort_webgpu"
    form = "ort_cpu"
    plans = ("fp32", "fp16", "int4_fp16")
    npm = "onnxruntime-web"
    provider = "webgpu"
    entry = "ort.webgpu.min.mjs"
    flags = ("--enable-unsafe-webgpu", "--enable-features=Vulkan")


RUNTIME = OrtWebGpu()
