"""Bundles whose model has one more output: an input as it came, or one of a shape that its file does not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bundle_forms import manifest, seal
from safetensors.numpy import load_file

from attnport.bundling import golden

NAME = "attention_mask"


def give_on(app: Path) -> None:
    """Makes the mask of a bundle's model its last output as well, which a runtime may leave in the caller's memory."""
    _add(app, NAME, ["batch", "seq"], None)


def turn(app: Path, operator: str, dims: list[str | int]) -> None:
    """Makes `turned`, an operator's output for the mask, the last output; the contract says that it has `dims`."""
    _add(app, "turned", dims, onnx.helper.make_node(operator, [NAME], ["turned"]))


def _add(app: Path, name: str, dims: list[str | int], node: Any) -> None:
    found = manifest(app)
    form = found["forms"]["ort_cpu"]
    model = onnx.load(app / form["file"], load_external_data=False)
    output = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None)
    if node is None:
        output = next(one for one in model.graph.input if one.name == name)
    else:
        model.graph.node.append(node)
    model.graph.output.append(output)
    (app / form["file"]).write_bytes(model.SerializeToString())
    form["dtypes"][name] = "int64"
    found["io"]["outputs"].append({"name": name, "dtype": "int64", "dims": dims, "high": None, "labels": []})
    arrays = load_file(app / "goldens.safetensors")
    for case in {key.partition("/")[0] for key in arrays}:
        mask = arrays[f"{case}/in/{NAME}"]
        arrays[f"{case}/out/{name}"] = mask.astype(np.float64)
        arrays[f"{case}/valid/{name}"] = np.ones(mask.shape, np.bool_)
        bound = {"case": case, "output": name, "plan": form["plan"], "rms_bound": 0.0, "max_bound": 0.0}
        found["goldens"]["bounds"].append(bound)
    golden.write(app / "goldens.safetensors", arrays)
    seal(app, found)
