"""The benchmark of engines with weights in few bits writes the weights that it says, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "engine_weights.py"
_spec = importlib.util.spec_from_file_location("engine_weights", FILE)
assert _spec is not None
assert _spec.loader is not None
weights = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(weights)


def graph(array_KN: np.ndarray) -> ir.Model:
    text = '<ir_version: 10, opset_import: ["" : 23]> g (float16[B,256] x) => (float16[B,32] y) { y = MatMul(x, w) }'
    model = ir.from_onnx_text(text)
    tensor = ir.Tensor(array_KN.astype(np.float16), name="w")
    value = next(node for node in model.graph).inputs[1]
    assert value is not None
    value.const_value, value.shape, value.dtype = tensor, tensor.shape, tensor.dtype
    model.graph.register_initializer(value)
    return model


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y.astype(np.float32)


@pytest.mark.parametrize(("bits", "most"), [(8, 0.012), (4, 0.2)])
def test_weights_in_few_bits_are_near_the_whole_ones(bits: int, most: float) -> None:
    random = np.random.default_rng(0)
    array, x = random.standard_normal((256, 32)), random.standard_normal((5, 256)).astype(np.float16)
    expected = x.astype(np.float32) @ array.astype(np.float16).astype(np.float32)
    model = graph(array)
    assert weights.in_bits(model, bits) == 1
    assert [node.op_type for node in model.graph] == ["DequantizeLinear", "MatMul"]
    error = np.abs(run(model, x) - expected).max() / np.abs(expected).max()
    assert most / 20 < error < most


def test_a_weight_that_no_block_fits_stays_whole_in_four_bits() -> None:
    model = graph(np.zeros((256, 32)))
    (node,) = model.graph
    assert node.inputs[1] is not None
    node.inputs[1].const_value = ir.Tensor(np.zeros((200, 32), np.float16), name="w")
    assert weights.in_bits(model, 4) == 0
