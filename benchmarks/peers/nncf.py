"""NNCF's static int8 of the plain export in OpenVINO, calibrated on 200 sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = "nncf"
FROM = "openvino"
"""The peer whose export it takes."""
VARIANTS = {"int8": "int8", "int8 and bf16": "int8"}


def imports() -> None:
    """What is imported before memory counts."""
    import openvino  # noqa: F401


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Quantises the export that OpenVINO's own side made, as a transformer."""
    import nncf
    import numpy as np
    import openvino

    source = folder.parents[1] / FROM / "f32" / "model.onnx"
    if not source.exists():
        raise FileNotFoundError("the plain export of the side openvino f32 is not there")
    with np.load(model["calibration"]) as stored:
        names = sorted({key.partition("/")[2] for key in stored.files})
        count = len(stored.files) // len(names)
        batches = [{name: stored[f"{at}/{name}"] for name in names} for at in range(count)]
    graph = openvino.Core().read_model(str(source))
    inputs = {name for port in graph.inputs for name in port.get_names()}
    data = nncf.Dataset([{name: array for name, array in one.items() if name in inputs} for one in batches])
    made = nncf.quantize(graph, data, subset_size=count, model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(made, str(folder / "model.xml"), compress_to_fp16=False)


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """What is not quantised is computed in float32, or in bfloat16 where the name says so."""
    from peer_openvino import compiled_run

    run, name = compiled_run(folder / "model.xml", threads, "bf16" if "bf16" in variant else "f32"), model["output"]
    return lambda feeds: run(feeds)[name]
