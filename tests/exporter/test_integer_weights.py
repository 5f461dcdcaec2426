"""Weights in integers, as an engine reads them: near the whole ones, and with scales that float16 has."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from attnport.exporter.precision.integers import write_weights


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
    write_weights(model, bits)
    assert [node.op_type for node in model.graph] == ["DequantizeLinear", "MatMul"]
    error = np.abs(run(model, x) - expected).max() / np.abs(expected).max()
    assert most / 20 < error < most


def test_a_row_that_no_block_divides_has_eight_bits() -> None:
    model = graph(np.ones((256, 32)))
    (node,) = model.graph
    assert node.inputs[1] is not None
    node.inputs[1].const_value = ir.Tensor(np.ones((200, 32), np.float16), name="w")
    write_weights(model, 4)
    read = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    assert read.inputs[0] is not None
    assert read.inputs[0].const_value is not None
    assert read.inputs[0].const_value.dtype == ir.DataType.INT8


def test_weights_without_a_scale_in_float16_are_zero() -> None:
    array = np.random.default_rng(0).standard_normal((256, 32))
    array[:, 0], array[:, 1] = 0, 1e-7
    for bits in (8, 4):
        model = graph(array)
        write_weights(model, bits)
        got = run(model, np.ones((1, 256), np.float16))
        assert np.isfinite(got).all()
        assert np.abs(got[:, :2]).max() < 1e-3
