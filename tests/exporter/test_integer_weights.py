"""Weights in few bits, as an engine reads them: near the whole ones, and with scales that float16 has."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from attnport.exporter.precision.integers import widen_fp4, write_weights


def graph(array_KN: np.ndarray, half: type = np.float16) -> ir.Model:
    text = '<ir_version: 10, opset_import: ["" : 23]> g (TYPE[B,256] x) => (TYPE[B,32] y) { y = MatMul(x, w) }'
    model = ir.from_onnx_text(text.replace("TYPE", np.dtype(half).name))
    tensor = ir.Tensor(array_KN.astype(half), name="w")
    value = next(node for node in model.graph).inputs[1]
    assert value is not None
    value.const_value, value.shape, value.dtype = tensor, tensor.shape, tensor.dtype
    model.graph.register_initializer(value)
    return model


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y.astype(np.float32)


def by_standard(model: ir.Model, x: np.ndarray) -> np.ndarray:
    """What the evaluator of the ONNX standard computes, which has all its types."""
    (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    return np.asarray(y).astype(np.float32)


@pytest.mark.parametrize(("form", "most"), [("int8", 0.012), ("int4", 0.2), ("fp8", 0.04), ("fp4", 0.15)])
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_weights_in_few_bits_are_near_the_whole_ones(form: str, most: float, half: type) -> None:
    random = np.random.default_rng(0)
    array, x = random.standard_normal((256, 32)), random.standard_normal((5, 256)).astype(np.float16)
    expected = x.astype(np.float32) @ array.astype(np.float16).astype(np.float32)
    model = graph(array, half)
    write_weights(model, int(form[-1]), floats="fp" in form)
    assert [node.op_type for node in model.graph] == ["DequantizeLinear"] * (1 + (form == "fp4")) + ["MatMul"]
    error = np.abs(by_standard(model, x.astype(half)) - expected).max() / np.abs(expected).max()
    assert most / 20 < error < most


def test_fp4_is_judged_by_the_numbers_that_the_standard_gives_it() -> None:
    random = np.random.default_rng(0)
    array, x = random.standard_normal((256, 32)), np.eye(256, dtype=np.float16)
    array[:16, 0], array[16:32, 1] = 0, 1e-7
    model = graph(array)
    write_weights(model, 4, floats=True)
    expected = by_standard(model, x)
    widen_fp4(model)
    assert [node.op_type for node in model.graph] == ["MatMul"]
    np.testing.assert_array_equal(run(model, x), expected)
    assert not expected[:16, 0].any()
    assert len(np.unique(np.abs(expected[32:48, 5]))) <= 8  # magnitudes of one block


@pytest.mark.parametrize("floats", [False, True])
def test_a_row_that_no_block_divides_has_eight_bits(floats: bool) -> None:
    model = graph(np.ones((256, 32)))
    (node,) = model.graph
    assert node.inputs[1] is not None
    node.inputs[1].const_value = ir.Tensor(np.ones((200, 32), np.float16), name="w")
    write_weights(model, 4, floats=floats)
    read = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    assert read.inputs[0] is not None
    assert read.inputs[0].const_value is not None
    assert read.inputs[0].const_value.dtype == (ir.DataType.FLOAT8E4M3FN if floats else ir.DataType.INT8)


def test_weights_without_a_scale_in_float16_are_zero() -> None:
    array = np.random.default_rng(0).standard_normal((256, 32))
    array[:, 0], array[:, 1] = 0, 1e-7
    for bits, floats in itertools.product((8, 4), (False, True)):
        model = graph(array)
        write_weights(model, bits, floats=floats)
        got = by_standard(model, np.ones((1, 256), np.float16))
        assert np.isfinite(got).all()
        assert np.abs(got[:, :2]).max() < 1e-3
