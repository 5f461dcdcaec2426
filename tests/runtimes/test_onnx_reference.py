"""The operators that replace the evaluator's own: as exact as those, or truer, each with the figure in ulps."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.runtimes._reference_ops import WIDENED, replacements
from attnport.runtimes.base import Opening
from attnport.runtimes.onnx_reference import RUNTIME

HALVES = {"float16": (np.float16, 2.0**-11), "bfloat16": (ml_dtypes.bfloat16, 2.0**-8)}
OPS = {
    "MatMul": ("y = MatMul(a, b)", lambda a, b: a @ b),
    "Gemm": ("y = Gemm<transB=1>(a, a)", lambda a, b: a @ a.T),
    "Einsum": ('y = Einsum<equation="ij,jk->ik">(a, b)', lambda a, b: a @ b),
    "Softmax": ("y = Softmax<axis=-1>(a)", lambda a, b: np.exp(a) / np.exp(a).sum(-1, keepdims=True)),
    "LogSoftmax": ("y = LogSoftmax<axis=-1>(a)", lambda a, b: a - np.log(np.exp(a).sum(-1, keepdims=True))),
    "LayerNormalization": (
        "y = LayerNormalization<axis=-1, epsilon=1e-5>(a, row)",
        lambda a, b: (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5),
    ),
    "RMSNormalization": (
        "y = RMSNormalization<axis=-1, epsilon=1e-5>(a, row)",
        lambda a, b: a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5),
    ),
    "ReduceSum": ("y = ReduceSum<keepdims=1>(a, last)", lambda a, b: a.sum(-1, keepdims=True)),
    "ReduceMean": ("y = ReduceMean<keepdims=1>(a, last)", lambda a, b: a.mean(-1, keepdims=True)),
    "ReduceL2": ("y = ReduceL2<keepdims=1>(a, last)", lambda a, b: np.sqrt((a * a).sum(-1, keepdims=True))),
    "ReduceSumSquare": ("y = ReduceSumSquare<keepdims=1>(a, last)", lambda a, b: (a * a).sum(-1, keepdims=True)),
    "CumSum": ("axis = Constant<value_int=1>() y = CumSum(a, axis)", lambda a, b: a.cumsum(1)),
    "Add": ("y = Add(a, row)", lambda a, b: a + 1),
    "Sub": ("y = Sub(a, row)", lambda a, b: a - 1),
    "Mul": ("y = Mul(a, a)", lambda a, b: a * a),
    "Div": ("two = Add(row, row) three = Add(two, row) y = Div(a, three)", lambda a, b: a / 3),
}
K = 600


def graph(body: str, dtype: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> g ({dtype}[N,K] a, {dtype}[K,M] b, {dtype}[K] row, int64[1] last) '
        f"=> ({dtype}[N,M2] y) {{ {body} }}"
    )


def arrays(dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.standard_normal((7, K)).astype(dtype),
        "b": rng.standard_normal((K, 5)).astype(dtype),
        "row": np.ones(K, dtype),
        "last": np.array([-1]),
    }


def evaluate(body: str, dtype: str, feeds: dict[str, Any], *, ours: bool) -> Any:
    model = graph(body, dtype)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model, new_ops=replacements(23) if ours else None).run(None, feeds)[0]


def ulps(got: Any, exact: Any, unit: float) -> float:
    """The largest distance in units in the last place; of elements near zero, in those of the largest element."""
    exact = np.asarray(exact, np.float64)
    scale = np.maximum(np.abs(exact), np.abs(exact).max() * 2**-6)
    return float((np.abs(got.astype(np.float64) - exact) / (2 * unit * 2 ** np.floor(np.log2(scale)))).max())


def test_every_widened_operator_is_tried() -> None:
    assert set(OPS) == set(WIDENED)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPS)
def test_a_widened_operator_is_within_an_ulp_of_the_exact_result(name: str, dtype: str) -> None:
    kind, unit = HALVES[dtype]
    body, exact = OPS[name]
    feeds = arrays(kind)
    wide = [feeds[key].astype(np.float64) for key in ("a", "b")]
    got = evaluate(body, dtype, feeds, ours=True)
    assert got.dtype == kind
    assert ulps(got, exact(*wide), unit) <= 0.6


def test_the_measure_of_ulps_finds_a_sum_that_is_kept_in_half_precision() -> None:
    """The evaluator's own sum in bfloat16, which is why there is another."""
    feeds = arrays(ml_dtypes.bfloat16)
    feeds["a"] = np.ones_like(feeds["a"])
    own = evaluate(OPS["ReduceSum"][0], "bfloat16", feeds, ours=False)
    ours = evaluate(OPS["ReduceSum"][0], "bfloat16", feeds, ours=True)
    assert ulps(own, np.full((7, 1), K), 2.0**-8) > 10
    assert ulps(ours, np.full((7, 1), K), 2.0**-8) <= 0.5


@pytest.mark.parametrize("name", OPS)
def test_in_float32_a_widened_operator_is_the_evaluators_own(name: str) -> None:
    feeds = arrays(np.float32)
    body = OPS[name][0]
    np.testing.assert_array_equal(evaluate(body, "float", feeds, ours=True), evaluate(body, "float", feeds, ours=False))


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("body", ["y = Erf(a)", "y = Gelu(a)", 'y = Gelu<approximate="tanh">(a)'])
def test_a_faster_operator_is_as_near_the_exact_result_as_the_evaluators_own(body: str, dtype: str) -> None:
    """Erf gives the same bits (both round the double once); Gelu is nearer than its definition run step by step, which
    is 2 to 25 ulps off in float32."""
    kind, unit = HALVES.get(dtype, (np.float32, 2.0**-24))
    feeds = arrays(kind)
    wide = {key: value.astype(np.float64) if key != "last" else value for key, value in feeds.items()}
    exact = evaluate(body, "double", wide, ours=True)
    own, ours = (evaluate(body, dtype, feeds, ours=which) for which in (False, True))
    assert ulps(ours, exact, unit) <= 0.51
    assert ulps(ours, exact, unit) <= ulps(own, exact, unit)
    if "Erf" in body:
        np.testing.assert_array_equal(ours, own)


def test_erf_of_a_double_is_the_true_one() -> None:
    import math

    x = np.linspace(-4, 4, 101)
    got = evaluate("y = Erf(a)", "double", arrays(np.float64) | {"a": x[None]}, ours=True)[0]
    np.testing.assert_allclose(got, [math.erf(value) for value in x], rtol=1e-15)


def attention(folder: Path, dtype: str) -> tuple[IOContract, Path]:
    io = IOContract(
        (TensorSpec("q", dtype, ("B", 4, "S", 32)), TensorSpec("m", "bool", ("B", 1, "S", "S"))),
        (TensorSpec("y", dtype, ("B", 4, "S", 32)),),
        (Dim("B", 1, 2, 64), Dim("S", 1, 8, 512)),
    )
    kind = dtype.replace("float32", "float")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> g ({kind}[B,4,S,32] q, bool[B,1,S,S] m) => ({kind}[B,4,S,32] y) '
        "{ y = Attention(q, q, q, m) }"
    )
    onnx.save(model, folder / f"{dtype}.onnx")
    return io, folder / f"{dtype}.onnx"


@pytest.mark.parametrize(("dtype", "plan"), [("float32", "fp32"), ("float16", "fp16"), ("bfloat16", "bf16")])
def test_an_attention_row_with_no_key_is_zero_and_the_rest_is_right(tmp_path: Path, dtype: str, plan: str) -> None:
    io, path = attention(tmp_path, dtype)
    kind = HALVES.get(dtype, (np.float32, 0))[0]
    q = np.random.default_rng(0).standard_normal((2, 4, 6, 32)).astype(kind)
    mask = np.ones((2, 1, 6, 6), bool)
    mask[0, 0, 2] = False
    mask[1, ..., 4:] = False
    y = RUNTIME.open(Opening(io, plan=plan, model=path)).run({"q": q, "m": mask})["y"].astype(np.float64)
    wide = q.astype(np.float64)
    weights = np.exp(wide @ wide.swapaxes(-1, -2) * 32**-0.5) * mask
    exact = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300) @ wide
    assert (y[0, :, 2] == 0).all()
    np.testing.assert_allclose(y, exact, atol={"fp32": 1e-6, "fp16": 4e-3, "bf16": 4e-2}[plan])


def test_floats_of_the_contract_are_cast_to_the_forms_own(tmp_path: Path) -> None:
    _, path = attention(tmp_path, "float16")
    io, _ = attention(tmp_path, "float32")
    q = np.random.default_rng(0).standard_normal((1, 4, 3, 32), np.float32)
    y = RUNTIME.open(Opening(io, plan="fp16", model=path)).run({"q": q, "m": np.ones((1, 1, 3, 3), bool)})["y"]
    assert y.dtype == np.float16


def test_scores_that_overflow_half_precision_show(tmp_path: Path) -> None:
    """What ONNX Runtime on CPU hides by computing in float32: it must not come out finite here."""
    mask = np.ones((1, 1, 2, 2), bool)
    results = {}
    for dtype, plan in (("float16", "fp16"), ("float32", "fp32")):
        io, path = attention(tmp_path, dtype)
        q = np.full((1, 4, 2, 32), 300, dtype)
        results[plan] = RUNTIME.open(Opening(io, plan=plan, model=path)).run({"q": q, "m": mask})["y"]
    assert np.isfinite(results["fp32"]).all()
    assert not np.isfinite(results["fp16"]).all()


def test_each_step_is_rounded_to_the_type_that_the_graph_declares() -> None:
    """A search for what overflows (`--precision auto`) finds nothing where an evaluator computes fp16 in float32."""
    body = "two = Constant<value_float = 2.0>() t = CastLike(two, a) p = Mul(a, t) y = Div(p, t)"
    large = arrays(np.float16) | {"a": np.full((7, K), 60000, np.float16)}
    assert np.isinf(evaluate(body, "float16", large, ours=True)).all()
    wide = {name: array.astype(np.float32) if name != "last" else array for name, array in large.items()}
    assert (evaluate(body, "float", wide, ours=True) == 60000).all()
    body = "one = Constant<value_float = 1.0>() t = CastLike(one, a) s = Add(a, t) y = Sub(s, a)"
    assert (evaluate(body, "float16", large | {"a": np.full((7, K), 2048, np.float16)}, ours=True) == 0).all()


def test_a_half_precision_product_takes_no_minutes(tmp_path: Path) -> None:
    """numpy's own takes 7 s for this one: a loop, not a library."""
    a, b = (np.ones(shape, np.float16) for shape in ((2048, 1024), (1024, 512)))
    feeds = {"a": a, "b": b, "row": np.ones(1024, np.float16), "last": np.array([-1])}
    began = time.monotonic()
    assert (evaluate("y = MatMul(a, b)", "float16", feeds, ours=True) == 1024).all()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_elements_are_gathered_along_an_axis_of_any_length(axis: int) -> None:
    """The evaluator's own operator raises above 64 entries."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[A,B,C,D] x, int64[A,B,C,D] i) => (float[A,B,C,D] y)'
        f" {{ y = GatherElements<axis={axis}>(x, i) }}"
    )
    random = np.random.default_rng(axis)
    shape = [2, 3, 2, 2]
    shape[axis] = 200
    x = random.standard_normal(shape).astype(np.float32)
    i = random.integers(-200, 200, shape)
    evaluator = ReferenceEvaluator(model, new_ops=replacements(23))
    assert (evaluator.run(None, {"x": x, "i": i})[0] == np.take_along_axis(x, i, axis)).all()


@pytest.mark.parametrize("condition", ["", "on"])
def test_a_loop_runs_its_rounds_with_a_condition_and_without(condition: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (float[N] y, float[K,N] each)
        {{ n = Constant<value_int = 3>() on = Constant<value = bool {{1}}>()
           y, each = Loop(n, {condition}, x) <body = b (int64 i, bool c, float[N] h) => (bool d, float[N] a, float[N] o)
             {{ d = Identity(c) a = Add(h, h) o = Identity(a) }}> }}""")
    evaluator: Any = ReferenceEvaluator(model, new_ops=replacements(18))
    y, each = evaluator.run(None, {"x": np.float32([1, 2])})
    assert y.tolist() == [8, 16]
    assert each.tolist() == [[2, 4], [4, 8], [8, 16]]
