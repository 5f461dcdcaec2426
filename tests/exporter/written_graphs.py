"""Graphs in ONNX's text form, with the constants of a test, names for their nodes, and the shapes that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx


def written(
    body: str, inputs: str, outputs: str = "float[N] y", *, opset: int = 23, infer: bool = True, **consts: Any
) -> onnx.ModelProto:
    """A graph of one function `g`; of the constants, those that `body` reads. Nodes are called node_0, node_1, ...

    Args:
        infer: Work out every shape; an error where the graph contradicts itself.
    """
    imports = f'"": {opset}, "com.microsoft": 1, "stranger": 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{imports}]> g ({inputs}) => ({outputs}) {{ {body} }}"
    )
    for domain in ("com.microsoft", "stranger"):
        if domain not in body:
            model.opset_import.remove(next(each for each in model.opset_import if each.domain == domain))
    read = {name for node in model.graph.node for name in node.input}
    arrays = {name: np.asarray(array) for name, array in consts.items() if name in read}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    if not infer:
        return model
    return onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True)
