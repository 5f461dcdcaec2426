"""Rewrites before recognition: each computes what the operator computed, and leaves what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest
from onnx.reference import ReferenceEvaluator
from written_graphs import written

from attnport.exporter.fusion import rewrites
from attnport.exporter.fusion.rewrites import apart_terms, differences, einsum, scattered_terms, written_softmax

SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6, "g": 2, "r": 3, "e": 7}
EQUATIONS = [
    "bhid,bhjd->bhij", "bihd,bjhd->bhij", "bhij,bjhd->bihd", "bgrid,bgjd->bgrij", "bgrij,bgjd->bgrid", "id,jd->ij",
    "bhd,bhjd->bhj", "bhj,bhjd->bhd", "id,jd", "...id,...jd->...ij", "b...d,jd->b...j", "bid,bjd->bji",
    "bhid,bhjd->hbij", "bij,jd->bid", "jd,bij->bdi",
]  # fmt: skip
LEFT = [
    "bhid,bhjd",
    "bhid,bhjd->bhid",
    "iid,jd->ij",
    "bid,bjd->bi",
    "bid,bjd->bd",
    "bid->bdi",
    "bi,bj->bij",
    "bhid,jhid->bj",
]


def text(shapes: list[list[int]], body: str, output: int, **consts: Any) -> ir.Model:
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] x{number}" for number, shape in enumerate(shapes))
    return ir.from_proto(written(body, inputs, f"float[{','.join(f'y{axis}' for axis in range(output))}] y", **consts))


def run(model: ir.Model, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)[0]
    return found


def equation_model(equation: str, more: int = 0) -> tuple[ir.Model, list[np.ndarray[Any, Any]]]:
    operands = equation.split("->")[0].split(",")
    shapes = [[SIZES[letter] for letter in operand.replace("...", "bh")] for operand in operands]
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    names = ", ".join(f"x{number}" for number in range(len(shapes)))
    rank = np.einsum(equation, *arrays).ndim
    return text(shapes, f'y = Einsum<equation="{equation}">({names})', rank), arrays


@pytest.mark.parametrize("equation", [*EQUATIONS, "bhij,bhjd,hde->bie", "bid,bjd,bje->bie"])
def test_an_einsum_that_is_a_product_becomes_one(equation: str) -> None:
    model, arrays = equation_model(equation)
    assert einsum.apply(model) >= 1
    assert "Einsum" not in {node.op_type for node in model.graph} or equation.count(",") > 1
    assert "MatMul" in {node.op_type for node in model.graph}
    assert model.graph.outputs[0].name == "y"
    found = run(model, {f"x{number}": array for number, array in enumerate(arrays)})
    assert np.abs(found - np.einsum(equation, *arrays)).max() < 1e-5


@pytest.mark.parametrize("equation", LEFT)
def test_an_einsum_that_is_none_stays(equation: str) -> None:
    model, _ = equation_model(equation)
    assert einsum.apply(model) == 0
    assert [node.op_type for node in model.graph] == ["Einsum"]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("a = Softmax(x0) b = Softmax(x1) c = Mul(b, x3) p = Sub(a, c) y = MatMul(p, x2)", 2),
        ("a = Softmax(x0) b = Softmax(x1) p = Add(a, b) y = MatMul(p, x2)", 2),
        ("a = Softmax(x0) b = Softmax(x1) c = Div(b, x3) p = Sub(c, a) y = MatMul(p, x2)", 2),
    ],
)
def test_a_difference_of_probabilities_becomes_a_difference_of_products(body: str, parts: int) -> None:
    model = text([[2, 4, 5], [2, 4, 5], [2, 5, 3], [1]], body, 3)
    before = ir.from_proto(ir.to_proto(model))
    assert differences.apply(model) == 1
    assert sum(node.op_type == "MatMul" for node in model.graph) == parts
    random = np.random.default_rng(1)
    feeds = {
        v.name: random.standard_normal([int(str(d)) for d in v.shape]).astype(np.float32) for v in model.graph.inputs
    }
    assert np.abs(run(model, feeds) - run(before, feeds)).max() < 1e-6
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    "body",
    [
        "a = Softmax(x0) p = Sub(a, x1) y = MatMul(p, x2)",
        "a = Softmax(x0) b = Softmax(x1) c = Mul(b, x1) p = Sub(a, c) y = MatMul(p, x2)",
        "a = Softmax(x0) p = Mul(a, x3) y = MatMul(p, x2)",
    ],
    ids=["no softmax on one side", "a factor of each key", "no sum"],
)
def test_what_is_no_difference_of_probabilities_stays(body: str) -> None:
    model = text([[2, 4, 5], [2, 4, 5], [2, 5, 3], [1]], body, 3)
    assert differences.apply(model) == 0


@pytest.mark.parametrize("axis", [-1, 1])
def test_exp_of_a_log_softmax_is_the_softmax(axis: int) -> None:
    model = text([[2, 4, 5]], f"a = LogSoftmax<axis={axis}>(x0) y = Exp(a)", 3)
    x = np.random.default_rng(2).standard_normal((2, 4, 5)).astype(np.float32)
    expected = run(model, {"x0": x})
    assert written_softmax.apply(model) == 1
    assert np.abs(run(model, {"x0": x}) - expected).max() < 1e-6
    assert not written_softmax.apply(text([[2, 4]], "a = Softmax(x0) y = Exp(a)", 2))


WRITTEN = {
    "a division by the sum": "e = Exp(x0)",
    "some replaced by zero": "e0 = Exp(x0) h = Less(x0, zero) e = Where(h, zero, e0)",
    "kept where true": "e0 = Exp(x0) h = Less(zero, x0) e = Where(h, e0, zero)",
    "logsumexp": "l = ReduceLogSumExp(x0, last) d = Sub(x0, l) y = Exp(d)",
    "divided after the product": "e = Exp(x0) s = ReduceSum(e, last) p = MatMul(e, x0) y = Div(p, s)",
}
NOT_WRITTEN = {
    "a sum over another axis": "e = Exp(x0) s = ReduceSum(e, first) y = Div(e, s)",
    "a sum of something else": "e = Exp(x0) o = Mul(e, x0) s = ReduceSum(o, last) y = Div(e, s)",
    "a sum that is not alone": "e = Exp(x0) s0 = ReduceSum(e, last) s = Add(s0, one) y = Div(e, s)",
    "replaced by another number": "e0 = Exp(x0) h = Less(x0, zero) e = Where(h, one, e0)",
    "no exponential": "e = Abs(x0)",
    "not kept": "e = Exp(x0) s = ReduceSum<keepdims=0>(e, last) y = Div(e, s)",
    "of a product": "e = Exp(x0) s = ReduceSum(e, last) p = MatMul(x0, e) y = Div(p, s)",
}


def softmax_text(body: str) -> Any:
    constants = {"last": np.array([-1]), "first": np.array([0]), "zero": np.float32(0), "one": np.float32(1)}
    divided = body if " y = " in body else f"{body} s = ReduceSum(e, last) y = Div(e, s)"
    return text([[4, 4]], divided, 2, **{name: np.asarray(value) for name, value in constants.items()})


@pytest.mark.parametrize("name", WRITTEN)
def test_a_softmax_that_is_written_out_becomes_the_operator(name: str) -> None:
    model = softmax_text(WRITTEN[name])
    x = np.random.default_rng(2).standard_normal((4, 4)).astype(np.float32)
    expected = run(model, {"x0": x})
    assert written_softmax.apply(model) == 1
    assert any(node.op_type == "Softmax" for node in model.graph)
    assert np.abs(run(model, {"x0": x}) - expected).max() < 1e-6


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_other_exponentials_and_sums_stay(name: str) -> None:
    assert written_softmax.apply(softmax_text(NOT_WRITTEN[name])) == 0


def test_every_rewrite_is_found_by_its_file() -> None:
    assert [module.__name__.rsplit(".")[-1] for module in rewrites.modules()] == [
        "apart_terms",
        "differences",
        "einsum",
        "scattered_terms",
        "written_softmax",
    ]


def test_terms_by_row_and_by_column_are_added_to_flat_scores() -> None:
    body = """s = MatMul(x0, x1)
        apart = Reshape(s, five)
        rows = Unsqueeze(x2, four)
        columns = Unsqueeze(x3, three)
        first = Add(apart, rows)
        second = Add(columns, first)
        y = Reshape(second, flat)
    """
    shapes = [[2, 6, 4], [2, 4, 12], [2, 2, 3, 3], [2, 2, 3, 4]]
    constants = {"five": np.array([2, 2, 3, 3, 4]), "flat": np.array([2, 6, 12]), "four": [4], "three": [3]}
    model = text(shapes, body, 3, **constants)
    random = np.random.default_rng(0)
    feeds = {f"x{at}": random.standard_normal(shape).astype(np.float32) for at, shape in enumerate(shapes)}
    expected = run(model, feeds)
    assert apart_terms.apply(model) == 1
    passes.RemoveUnusedNodesPass()(model)
    assert [len(node.outputs[0].shape or ()) for node in model.graph if node.op_type == "Add"] == [3, 3]
    np.testing.assert_allclose(run(model, feeds), expected, rtol=1e-6)


def test_a_term_that_widens_the_scores_is_left() -> None:
    body = "s = MatMul(x0, x1)\n wide = Unsqueeze(s, ends)\n total = Add(wide, x2)\n y = Reshape(total, flat)"
    shapes = [[2, 6, 4], [2, 4, 3], [2, 6, 3, 5, 1]]
    model = text(shapes, body, 3, ends=[3, 4], flat=np.array([2, 6, 15]))
    assert apart_terms.apply(model) == 0


SCATTERED = """{read} a = Add(rest, x1) turned = Transpose<perm = [1, 0]>(x0) new = Transpose<perm = {perm}>(a)
    all = Range(zero, count, single) places = Slice(all, one, end, first) column = Unsqueeze(places, last)
    z = ScatterND<reduction = "{reduction}">(turned, column, new) y = Transpose<perm = [1, 0]>(z)"""
REST = "rest = Slice(x0, one, end, one)"
PLAIN = {"read": REST, "perm": "[1, 0]", "reduction": "none"}
NOT_THE_REST = {
    "of other rows": {"read": "rest = Slice(x0, first, four, one)"},
    "of another tensor": {"read": "n = Neg(x0) rest = Slice(n, one, end, one)"},
    "in another order": {"perm": "[0, 1]"},
    "added to what is there": {"reduction": "add"},
}


def scattered(**changed: str) -> ir.Model:
    """`y = x0; y[:, 1:] += x1`, as the exporter writes it, or something else."""
    numbers = {"zero": 0, "single": 1, "count": 5}
    lists = {"one": [1], "first": [0], "last": [-1], "four": [4], "end": [2**63 - 1]}
    constants = {name: np.array(value) for name, value in {**numbers, **lists}.items()}
    return text([[4, 5], [4, 4]], SCATTERED.format(**{**PLAIN, **changed}), 2, **constants)


def test_a_term_of_all_but_the_first_column_is_padded() -> None:
    model = scattered()
    feeds = {"x0": np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32), "x1": np.ones((4, 4), "f4")}
    expected = run(model, feeds)
    assert scattered_terms.apply(model) == 1
    passes.RemoveUnusedNodesPass()(model)
    assert not any(node.op_type == "ScatterND" for node in model.graph)
    np.testing.assert_array_equal(run(model, feeds), expected)


@pytest.mark.parametrize("name", NOT_THE_REST)
def test_other_scattered_sums_stay(name: str) -> None:
    assert scattered_terms.apply(scattered(**NOT_THE_REST[name])) == 0
