"""A sum and its RMS norm are one operator of ONNX Runtime where nothing is broadcast, and the sum stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common
import pytest
from onnx import numpy_helper, parser
from running import on_ort, on_reference

from attnport.exporter.contrib.layers import with_skip

pytest.importorskip("onnxruntime")
D = 8
WEIGHT = np.linspace(0.5, 2, D, dtype=np.float32)


def model(norm: str = "n = RMSNormalization<axis=-1, epsilon=0.01>(s, w)", skip: str = "float[N,S,8] b") -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : 23]> g (float[N,S,8] a, {skip}) => (float[N,S,8] n, float[N,S,8] y)
        {{ s = Add(a, b) {norm} y = Mul(s, s) }}"""
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    made = ir.from_proto(proto)
    ir.passes.common.ShapeInferencePass()(made)
    return made


def test_it_is_one_operator_and_the_sum_is_its_output() -> None:
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((2, 3, D)).astype(np.float32) for name in "ab"}
    before = on_ort(model())(given)
    made = model()
    assert with_skip(made) == 1
    assert [node.op_type for node in made.graph] == ["SkipSimplifiedLayerNormalization", "Mul"]
    for run in (on_ort, on_reference):
        for got, expected in zip(run(made)(given), before, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(model(skip="float[1,S,8] b"), id="a sum that broadcasts"),
        pytest.param(model("n = RMSNormalization<axis=1>(s, w)"), id="a norm over two axes"),
        pytest.param(model("n = LayerNormalization<axis=-1>(s, w)"), id="another norm"),
        pytest.param(model("t = Abs(s) n = RMSNormalization<axis=-1>(t, w)"), id="a norm of something else"),
    ],
)
def test_others_stay_as_they_are(made: ir.Model) -> None:
    assert with_skip(made) == 0
    assert next(node.op_type for node in made.graph) == "Add"


def test_outputs_that_are_left_out_are_no_inputs_of_later_nodes() -> None:
    norm = "n0 = RMSNormalization<axis=-1, epsilon=0.01>(s, w) n = Clip(n0, , top)"
    made = model(norm)
    top = ir.Value(name="top", const_value=ir.tensor(np.float32(0.5)))
    made.graph.register_initializer(top)
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((2, 3, D)).astype(np.float32) for name in "ab"}
    wanted = on_ort(made)(given)
    assert with_skip(made) == 1
    for run in (on_ort, on_reference):
        for got, expected in zip(run(made)(given), wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
