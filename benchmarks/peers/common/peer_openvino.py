"""Compiled models of OpenVINO, for peers. NumPy and openvino alone: it is used in their environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def refuse_bf16(precision: str) -> None:
    """Raises RuntimeError for `bf16` where the processor does not compute in it: OpenVINO then computes in float32."""
    import openvino

    if precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise RuntimeError("this processor does not compute in bf16; OpenVINO would compute in float32")


def compiled_run(file: Path, threads: int, precision: str) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Runs a file, ONNX or OpenVINO's own, with those inputs that it has."""
    import openvino

    refuse_bf16(precision)
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    model = openvino.Core().compile_model(str(file), "CPU", settings)
    request = model.create_infer_request()
    inputs = {name for port in model.inputs for name in port.get_names()}

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        request.infer({name: array for name, array in feeds.items() if name in inputs}, share_inputs=True)
        return {name: request.get_tensor(port).data.copy() for port in model.outputs for name in port.get_names()}

    return run
