"""Angles of positions stay in float32 in a graph of half precision; sines of anything else do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from written_graphs import written

from attnport.exporter.precision.plan import apply_plan

PLANS = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
AT = np.array([0, 1, 500, 2049, 4099], np.int64)
FREQUENCY = np.array(0.37, np.float32)


def graph(body: str, outputs: str = "float[1,N] y", **consts: Any) -> ir.Model:
    return ir.from_proto(written(body, "float[1,N] x, int64[N] n", outputs, frequency=FREQUENCY, **consts))


def cast(model: ir.Model, plan: str) -> onnx.ModelProto:
    apply_plan(model, plan)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(proto: onnx.ModelProto, plan: str) -> list[np.ndarray[Any, Any]]:
    x = np.ones((1, AT.size)).astype(PLANS[plan].numpy())
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(proto).run(None, {"x": x, "n": AT}))


def inputs_of(model: ir.Model, *operators: str) -> set[str]:
    return {str(node.inputs[0].dtype) for node in model.graph if node.op_type in operators and node.inputs[0]}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("wave", ["Sin", "Cos"])
def test_a_wave_of_positions_is_right_at_far_ones(plan: str, wave: str) -> None:
    model = graph(f"p = Cast<to=1>(n) a = Mul(p, frequency) w = {wave}(a) y = Mul(w, x)")
    (found,) = run(cast(model, plan), plan)
    assert found.dtype == PLANS[plan].numpy()
    expected = {"Sin": np.sin, "Cos": np.cos}[wave](AT * np.float64(FREQUENCY))
    assert np.abs(found.astype(np.float64) - expected).max() < 1e-2
    assert inputs_of(model, wave) == {"FLOAT"}


@pytest.mark.parametrize("plan", PLANS)
def test_a_wave_of_activations_is_in_the_plans_type(plan: str) -> None:
    model = graph("p = Cast<to=1>(n) a = Mul(p, x) y = Sin(a)")
    cast(model, plan)
    assert inputs_of(model, "Sin") == {str(PLANS[plan].name)}


def test_a_wave_of_embeddings_is_in_the_plans_type() -> None:
    model = graph(
        "e = Gather(table, n) a = Mul(e, frequency) y = Sin(a)", "float[N] y", table=np.ones(5000, np.float32)
    )
    cast(model, "fp16")
    assert inputs_of(model, "Sin", "Mul") == {"FLOAT16"}


def test_an_angle_that_goes_elsewhere_too_arrives_there_in_the_plans_type() -> None:
    model = graph(
        "p = Cast<to=1>(n) a = Mul(p, frequency) s = Sin(a) c = Cos(a) z = Mul(s, x) t = Add(a, x) y = Add(t, z)",
        "float[1,N] y, float[N] c, float[N] a",
    )
    proto = cast(model, "fp16")
    assert [value.name for value in proto.graph.output] == ["y", "c", "a"]
    found = run(proto, "fp16")
    assert {each.dtype for each in found} == {np.dtype(np.float16)}
    assert np.abs(found[1] - np.cos(AT * np.float64(FREQUENCY))).max() < 1e-2


def test_a_frequency_that_activations_use_too_is_cast_for_them_alone() -> None:
    model = graph("p = Cast<to=1>(n) a = Mul(p, frequency) s = Sin(a) f = Mul(x, frequency) y = Add(s, f)")
    (found,) = run(cast(model, "fp16"), "fp16")
    assert found.dtype == np.float16
    assert inputs_of(model, "Sin") == {"FLOAT"}


def test_float32_plans_change_nothing() -> None:
    model = graph("p = Cast<to=1>(n) a = Mul(p, frequency) y = Sin(a)", "float[N] y")
    assert apply_plan(model, "fp32") == apply_plan(model, "fp16_islands") == 0
    assert [node.op_type for node in model.graph] == ["Cast", "Mul", "Sin"]


WHOLE = {
    "a range of floats": ("s = Shape(n) l = Squeeze(s) e = Cast<to=1>(l) o = Constant<value_float=0.0>() "
                          "i = Constant<value_float=1.0>() y = Range(o, e, i)", 3000, "float[M] y"),
    "a share of a length": ("s = Shape(n) l = Squeeze(s) e = Cast<to=1>(l) q = Constant<value_float=0.25>() "
                            "h = Mul(e, q) y = Cast<to=7>(h)", 2051, "int64 y"),
    "counted places": ("m = Cast<to=1>(n) a = Constant<value_int=0>() c = CumSum(m, a) y = Cast<to=7>(c)", 3000,
                       "int64[N] y"),
    "places in turn": ("p = Cast<to=1>(n) k = Constant<value_float=2500.0>() r = Mod<fmod=1>(p, k) y = Cast<to=7>(r)",
                       3000, "int64[N] y"),
    "buckets of distances": ("p = Cast<to=1>(n) one = Constant<value_float=1.0>() q = Max(p, one) g = Log(q) "
                             "f = Constant<value_float=25.5>() h = Mul(g, f) r = Ceil(h) y = Cast<to=7>(r)", 3000,
                             "int64[N] y"),
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", WHOLE)
def test_floats_that_become_whole_numbers_or_places_are_exact(name: str, plan: str) -> None:
    body, size, output = WHOLE[name]
    n = np.ones(size, np.int64) if name == "counted places" else np.arange(size)
    model = written(body, "int64[N] n", output)
    (expected,) = ReferenceEvaluator(model).run(None, {"n": n})
    (found,) = ReferenceEvaluator(cast(ir.from_proto(model), plan)).run(None, {"n": n})
    assert found.shape == expected.shape
    if "int64" in output:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "body", [
        'e = Einsum<equation="i,j->ij">(p, f) y = Cos(e)',
        "c = Clip(p) u = Unsqueeze(c, one) a = Mul(u, f) y = Cos(a)",
        "u = Unsqueeze(p, one) a = Mul(u, f) w = Gather(a, n) y = Cos(w)",
        "u = Unsqueeze(p, one) b = Cast<to=9>(u) a = Mul(u, f) w = Where(b, a, u) y = Cos(w)",
        "s = Shape(n) o = ConstantOfShape<value = float[1] {0.0}>(s) t = Add(p, o) u = Unsqueeze(t, one) a = Mul(u, f) "
        "y = Cos(a)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("plan", PLANS)
def test_angles_are_right_however_they_are_made(body: str, plan: str) -> None:
    n, frequencies = np.arange(512), (10000.0 ** -np.linspace(0, 1, 8)).astype(np.float32)
    given = {"f": frequencies, "one": np.array([1])}
    model = written(f"p = Cast<to=1>(n) {body}", "int64[N] n", "float[N,8] y", **given)
    (found,) = ReferenceEvaluator(cast(ir.from_proto(model), plan)).run(None, {"n": n})
    assert np.abs(found.astype(np.float64) - np.cos(n[:, None] * frequencies.astype(np.float64))).max() < 1e-2


def test_the_time_of_a_diffusion_model_is_a_position() -> None:
    time = np.array([0, 7, 999], np.float16)
    for dims, given in (("B", time), ("B,1", time[:, None])):
        model = written("a = Mul(t, f) y = Cos(a)", f"float[{dims}] t", f"float[{dims}] y", f=FREQUENCY)
        (found,) = ReferenceEvaluator(cast(ir.from_proto(model), "fp16")).run(None, {"t": given})
        assert np.abs(found - np.cos(given * np.float64(FREQUENCY))).max() < 1e-2
