"""Half precision written into a graph: types everywhere, constants that stay alive, operators that demand float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from written_graphs import written

from attnport.errors import ExportError
from attnport.exporter.precision.islands import STAYS
from attnport.exporter.precision.plan import apply_plan, to_half

HALVES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


def graph(body: str, inputs: str = "float[N] x, int64[N] n", outputs: str = "float[N] y", **consts: Any) -> ir.Model:
    return ir.from_proto(written(body, inputs, outputs, **consts))


def checked(model: ir.Model, plan: str = "fp16") -> onnx.ModelProto:
    assert apply_plan(model, plan) > 0
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    names = [name for node in proto.graph.node for name in node.output]
    assert len(set(names)) == len(names)
    return proto


@pytest.mark.parametrize("plan", HALVES)
@pytest.mark.parametrize("number", [1e-12, -1e-12, 1e30, -3.4e38, 1e-45])
def test_one_number_stays_finite_and_not_zero(plan: str, number: float) -> None:
    got = float(to_half(np.array(number, np.float32), HALVES[plan]))
    assert np.isfinite(got)
    assert np.sign(got) == np.sign(number)


@pytest.mark.parametrize("number", [0.0, -np.inf, np.inf, 0.5, -65504.0, 2.0**-20])
def test_what_the_half_type_holds_is_kept(number: float) -> None:
    assert float(to_half(np.array([number], np.float32), ir.DataType.FLOAT16)[0]) == number


@pytest.mark.parametrize(
    ("body", "x", "by"),
    [
        ("y = Mul(x, c)", 30000, 1e-7), ("y = Mul(c, x)", 30000, 1e-7), ("y = Mul(x, c)", 30000, 1e-5),
        ("y = Mul(x, c)", 1e-3, 1e6), ("y = Div(x, c)", 30000, 1e7), ("y = Div(x, c)", 60000, 1e5),
        ("y = Div(x, c)", 1e-4, 1e-8), ("a = Mul(x, c) b = Mul(a, c) y = Div(b, c)", 30000, 1e-7),
    ],
)  # fmt: skip
def test_a_number_that_the_half_type_has_not_is_applied_in_float32(body: str, x: float, by: float) -> None:
    model = written(body, "float[N] x", "float[N] y", c=np.array(by, np.float32))
    given = np.full(4, x, np.float16)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": given.astype(np.float32)})
    (found,) = ReferenceEvaluator(checked(ir.from_proto(model))).run(None, {"x": given})
    np.testing.assert_allclose(found, expected, rtol=0.002)


def test_a_number_that_hides_is_the_lowest_of_the_half_type() -> None:
    model = written("a = Mul(m, c) y = Add(x, a)", "float[N] x, float[N] m", "float[N] y", c=np.array(-1e9, np.float32))
    feeds = {"x": np.ones(2, np.float16), "m": np.array([0, 1], np.float16)}
    (found,) = ReferenceEvaluator(checked(ir.from_proto(model))).run(None, feeds)
    assert found.tolist() == [1, -65504]


def test_a_small_factor_of_positions_is_kept_once() -> None:
    body = "p = Cast<to=1>(n) t = Mul(p, c) w = Sin(t) u = Add(t, x) y = Add(w, u)"
    model = ir.from_proto(written(body, "float[1,N] x, int64[N] n", "float[1,N] y", c=np.array(1e-5, np.float32)))
    given = {"x": np.zeros((1, 4), np.float16), "n": np.arange(4) * 1000}
    (found,) = ReferenceEvaluator(checked(model)).run(None, given)
    np.testing.assert_allclose(found[0], np.sin(given["n"] * 1e-5) + given["n"] * 1e-5, rtol=0.01, atol=1e-4)


def test_weights_are_rounded_as_torch_rounds_them() -> None:
    import torch

    weights = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    expected = torch.from_numpy(weights).bfloat16().float().numpy()
    assert (to_half(weights, ir.DataType.BFLOAT16).astype(np.float32) == expected).all()


@pytest.mark.parametrize("plan", HALVES)
def test_every_float_becomes_the_half_type(plan: str) -> None:
    body = (
        "c = Constant<value_float=2.0>() s = Shape(x) z = ConstantOfShape(s) f = Cast<to=1>(n) "
        "w = Constant<value = float {1.0}>() "
        "a = Mul(x, c) b = Add(a, z) d = Add(b, f) e = Add(d, w) y = Add(e, k)"
    )
    proto = checked(graph(body, k=np.float32([1])), plan)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True))
    kinds = {v.dtype for node in model.graph for v in node.outputs} - {ir.DataType.INT64}
    assert kinds == {HALVES[plan]}
    if plan == "fp16":
        got = ReferenceEvaluator(proto).run(None, {"x": np.float16([1, 2]), "n": np.array([3, 4])})[0]
        assert got.dtype == np.float16
        assert got.tolist() == [2 + 3 + 2, 4 + 4 + 2]


def test_islands_and_float32_leave_the_graph_alone() -> None:
    for plan in ("fp32", "fp16_islands", "bf16_islands"):
        model = graph("y = Sqrt(x)")
        assert apply_plan(model, plan) == 0
        assert model.graph.inputs[0].dtype == ir.DataType.FLOAT


def test_an_operator_without_a_half_form_computes_in_float32_between_casts() -> None:
    # Celu has no half form, and its output here is the graph's.
    out = checked(graph("y = Celu(x) z = Celu(y)", "float[N] x", "float[N] y, float[N] z"), "bf16")
    assert [value.name for value in out.graph.output] == ["y", "z"]
    assert {v.type.tensor_type.elem_type for v in out.graph.output} == {onnx.TensorProto.BFLOAT16}
    assert [node.op_type for node in out.graph.node] == ["Cast", "Celu", "Cast", "Cast", "Celu", "Cast"]


def test_an_input_that_must_be_float32_is_not_rounded() -> None:
    given = np.float32([1, 1, 2.5000002, 1.1])
    out = checked(graph("y = Resize(x, , s)", "float[1,1,2,2] x", "float[a,b,c,d] y", s=given))
    (scales,) = out.graph.initializer
    assert onnx.numpy_helper.to_array(scales).tolist() == given.tolist()


def test_control_flow_is_refused_by_name() -> None:
    branches = "then_branch = a () => (float[N] t) { t = Sqrt(x) }, else_branch = b () => (float[N] e) { e = Abs(x) }"
    with pytest.raises(ExportError, match=r"precision fp16: node .* is control flow \(If\)"):
        apply_plan(graph(f"y = If (c) <{branches}>", "bool c, float[N] x"), "fp16")


def test_what_is_marked_stays_in_float32_between_casts() -> None:
    model = graph("a = Mul(x, k) e = Exp(a) d = Cast<to = 1>(e) y = Mul(d, k)", k=np.float32(1 / 3))
    for node in model.graph:
        if node.op_type == "Exp":
            node.metadata_props[STAYS] = "1"
    proto = checked(model)
    made = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*made.value_info, *made.output)}
    assert types["e"] == onnx.TensorProto.FLOAT
    assert {types[name] for name in ("a", "d", "y")} == {onnx.TensorProto.FLOAT16}
    got = ReferenceEvaluator(proto).run(None, {"x": np.array([3.0], np.float16), "n": np.zeros(1, np.int64)})[0]
    assert abs(float(got[0]) - np.e / 3) < 2e-3
