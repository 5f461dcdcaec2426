"""`Softplus` in the form for OpenVINO has the digits of PyTorch's, where numbers are far below zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from running import on_openvino, on_ort

from attnport.exporter.targets.openvino import write_out_softplus

X = np.array([-80.0, -40.0, -20.0, -12.0, -5.0, -1e-3, 0.0, 1e-3, 5.0, 20.0, 90.0], np.float32)
RIGHT = np.logaddexp(0, X.astype(np.float64))


def model() -> ir.Model:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    node = ir.node("Softplus", [x], name="dt")
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = "y", x.type, x.shape
    return ir.Model(ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 23}, name="g"), ir_version=10)


@pytest.mark.parametrize("run_on", [on_ort, on_openvino])
def test_every_digit_is_right(run_on: Callable[..., Any]) -> None:
    made = model()
    assert write_out_softplus(made) == 1
    np.testing.assert_allclose(run_on(made)({"x": X})[0], RIGHT, rtol=1e-6)


def test_openvinos_own_loses_them() -> None:
    """Where it no longer does, the pass can go."""
    assert np.max(np.abs(on_openvino(model())({"x": X})[0] / RIGHT - 1)[X > -15]) > 1e-3
