"""ONNX Runtime in the browser, on the processor: the package onnxruntime-web, as WebAssembly with SIMD and threads."""

from __future__ import annotations

from attnport.runtimes._javascript import JavaScriptRuntime


class OrtWeb(JavaScriptRuntime):
    """WebAssembly in Chromium."""

    name = "ort_web"
    form = "ort_cpu"
    plans = ("fp32", "fp16", "int8", "int4", "int4_fp16")
    npm = "onnxruntime-web"
    provider = "wasm"
    entry = "ort.wasm.min.mjs"


RUNTIME = OrtWeb()
