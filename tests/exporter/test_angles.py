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


def graph(body: str, outputs: str = "float[N] y", **consts: Any) -> ir.Model:
    return ir.from_proto(written(body, "float[N] x, int64[N] n", outputs, frequency=FREQUENCY, **consts))


def cast(model: ir.Model, plan: str) -> onnx.ModelProto:
    apply_plan(model, plan)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(proto: onnx.ModelProto, plan: str) -> list[np.ndarray[Any, Any]]:
    x = np.ones(AT.size).astype(PLANS[plan].numpy())
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
    model = graph("e = Gather(table, n) a = Mul(e, frequency) y = Sin(a)", table=np.ones(5000, np.float32))
    cast(model, "fp16")
    assert inputs_of(model, "Sin", "Mul") == {"FLOAT16"}


def test_an_angle_that_goes_elsewhere_too_arrives_there_in_the_plans_type() -> None:
    model = graph(
        "p = Cast<to=1>(n) a = Mul(p, frequency) s = Sin(a) c = Cos(a) z = Mul(s, x) t = Add(a, x) y = Add(t, z)",
        "float[N] y, float[N] c, float[N] a",
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
    model = graph("p = Cast<to=1>(n) a = Mul(p, frequency) y = Sin(a)")
    assert apply_plan(model, "fp32") == apply_plan(model, "fp16_islands") == 0
    assert [node.op_type for node in model.graph] == ["Cast", "Mul", "Sin"]
