"""Rotary embeddings are written out for caches of batch 1, and back; both compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnx_ir.passes.common
import pytest
from onnx.reference import ReferenceEvaluator

from attnport.exporter.builder import clean_up
from attnport.exporter.portable import write_out_rotary
from attnport.exporter.targets.ort_cuda import as_operator

B, H, S, D = 3, 2, 5, 8


def model(cache_batch: str | int | None, *, interleaved: int, part: int = 0) -> ir.Model:
    x = ir.Value(name="x", shape=ir.Shape(["batch", H, "seq", D]), type=ir.TensorType(ir.DataType.FLOAT))
    cache = [cache_batch, "seq", (part or D) // 2]
    cos, sin = (
        ir.Value(name=name, shape=ir.Shape(cache), type=ir.TensorType(ir.DataType.FLOAT)) for name in ("cos", "sin")
    )
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": part, "num_heads": H}
    node = ir.node("RotaryEmbedding", [x, cos, sin], attributes=attributes, name="rope")
    node.outputs[0].name, node.outputs[0].shape = "y", x.shape
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x, cos, sin], node.outputs, nodes=[node], opset_imports={"": 23}, name="g")
    return ir.Model(graph, ir_version=11)


def run(made: ir.Model, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto, full_check=True)
    found: np.ndarray[Any, Any] = ReferenceEvaluator(proto).run(None, feeds)[0]
    return found


def feeds(cache_batch: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    angles = random.standard_normal((1, S, D // 2)).repeat(cache_batch, 0)
    return {
        "x": random.standard_normal((B, H, S, D)).astype(np.float32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("cache_batch", [1, None])
def test_written_out_it_computes_what_the_operator_computes(cache_batch: int | None, interleaved: int) -> None:
    made = model(cache_batch, interleaved=interleaved)
    assert write_out_rotary(made) == 1
    assert "RotaryEmbedding" not in {node.op_type for node in made.graph}
    assert made.graph.outputs[0].name
    expected = run(model("batch", interleaved=interleaved), feeds(B))
    np.testing.assert_allclose(run(made, feeds(1)), expected, rtol=1e-6, atol=1e-6)
    assert not np.allclose(expected, feeds(1)["x"]), "nothing was turned, so nothing was compared"


def test_caches_that_the_standard_allows_stay() -> None:
    assert write_out_rotary(model("batch", interleaved=0)) == 0


def test_an_embedding_of_a_part_of_the_head_stays() -> None:
    assert write_out_rotary(model(1, interleaved=0, part=4)) == 0


def written_out(*, halves: str = "Split", caches: str = "b1sd", swapped: bool = False, rows: str = "N,2,S") -> ir.Model:
    """A rotation by the operators of modules; `swapped` computes it with a minus in the wrong place."""
    shape = {"b1sd": "[N,1,S,4]", "1sd": "[1,S,4]", "sd": "[S,4]", "heads": "[N,2,S,4]"}[caches]
    parts = {
        "Split": "first, second = Split<axis=-1, num_outputs=2>(x)",
        "Slice": "first = Slice(x, zero, four, last) second = Slice(x, four, many, last)",
        "Slice of places": "first = Slice(x, zero, eight, last, two) second = Slice(x, one, eight, last, two)",
    }[halves]
    text = f"""<ir_version: 10, opset_import: ["" : 23]> g (float[{rows},8] x, float{shape} cos, float{shape} sin)
        => (float[N,2,S,8] y) {{
        zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>() two = Constant<value_ints=[2]>()
        four = Constant<value_ints=[4]>() eight = Constant<value_ints=[8]>() last = Constant<value_ints=[3]>()
        many = Constant<value_ints=[9223372036854775807]>()
        {parts}
        a = Mul(cos, first) b = Mul(second, sin) c = Mul(second, cos) d = Mul(sin, first)
        turned = Sub({"b, a" if swapped else "a, b"}) more = Add(d, c) y = Concat<axis=-1>(turned, more) }}"""
    made = ir.from_proto(onnx.parser.parse_model(text))
    ir.passes.common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(made)
    ir.passes.common.ShapeInferencePass()(made)
    return made


def angles_of(made: ir.Model) -> dict[str, np.ndarray[Any, Any]]:
    random, sizes = np.random.default_rng(0), {"N": B, "S": S}
    shapes = {
        value.name: [dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in value.shape or ()]
        for value in made.graph.inputs
    }
    return {str(name): random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("halves", ["Split", "Slice"])
@pytest.mark.parametrize("caches", ["b1sd", "1sd", "sd"])
def test_a_rotation_becomes_the_operator(halves: str, caches: str) -> None:
    made = written_out(halves=halves, caches=caches)
    given = angles_of(made)
    expected = run(made, given)
    assert as_operator(made) == 1
    clean_up(made)
    assert {node.op_type for node in made.graph} <= {"RotaryEmbedding", "Shape", "Concat", "Squeeze", "Expand"}
    np.testing.assert_allclose(run(made, given), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(written_out(swapped=True), id="another sign"),
        pytest.param(written_out(caches="heads"), id="angles by head"),
        pytest.param(written_out(halves="Slice of places"), id="pairs side by side"),
        pytest.param(written_out(rows="N,2,1"), id="one token turned by the angles of several"),
        pytest.param(written_out(rows="1,2,S"), id="one text turned by the angles of several"),
    ],
)
def test_what_is_no_rotation_of_halves_stays(made: ir.Model) -> None:
    assert as_operator(made) == 0


def test_writing_out_and_back_gives_the_operator_again() -> None:
    made = model(1, interleaved=0)
    expected = run(model("batch", interleaved=0), feeds(B))
    write_out_rotary(made)
    ir.passes.common.ShapeInferencePass()(made)
    assert as_operator(made) == 1
    clean_up(made)
    np.testing.assert_allclose(run(made, feeds(1)), expected, rtol=1e-6, atol=1e-6)
