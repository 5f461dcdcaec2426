"""A graph of two linear layers, and what ONNX Runtime computes with one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

Array = np.ndarray[Any, Any]
WIDTH, TOKENS = 32, 200


@pytest.fixture
def weights() -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        "w": random.normal(size=(WIDTH, 48)).astype(np.float32),
        "bias": random.normal(size=48).astype(np.float32),
        "gemm": random.normal(size=(24, 48)).astype(np.float32),
        "shift": random.normal(size=24).astype(np.float32),
    }


def graph(weights: Mapping[str, Array], *, alpha: float = 1.0) -> ir.Model:
    """`relu(x w + bias)`, then a `Gemm` with its weight transposed."""
    x = ir.Value(name="x", shape=ir.Shape(["tokens", WIDTH]), type=ir.TensorType(ir.DataType.FLOAT))
    stored = {
        name: ir.Value(
            name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        for name, array in weights.items()
    }  # fmt: skip
    product = ir.node("MatMul", [x, stored["w"]], name="first")
    added = ir.node("Add", [product.outputs[0], stored["bias"]], name="add")
    active = ir.node("Relu", [added.outputs[0]], name="relu")
    last = ir.node(
        "Gemm", [active.outputs[0], stored["gemm"], stored["shift"]], {"transB": 1, "alpha": alpha}, name="last"
    )
    for at, node in enumerate((product, added, active, last)):
        node.outputs[0].name, node.outputs[0].dtype = f"value{at}", ir.DataType.FLOAT
    last.outputs[0].name = "y"
    nodes = [product, added, active, last]
    made = ir.Graph([x], [last.outputs[0]], nodes=nodes, initializers=list(stored.values()), opset_imports={"": 21})
    return ir.Model(made, ir_version=10)


def run(model: ir.Model, tokens: Array, folder: Path) -> dict[str, Array]:
    import onnxruntime as ort

    path = folder / "model.onnx"
    ir.save(model, path)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": tokens}), strict=True))
