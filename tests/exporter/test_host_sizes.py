"""Sizes stay on the host: leading rows are a slice, a range plus a size is a range, a size is an input's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from running import on_ort

from attnport.exporter.targets.ort_cuda import keep_sizes_on_host

pytest.importorskip("onnxruntime")
TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)


def model(body: str, inputs: str = "int64[B,T] x", outputs: str = "float[N,3] y") -> ir.Model:
    text = f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => ({outputs}) {{ {body} }}'
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(TABLE, "table"))
    made = ir.from_proto(proto)
    ir.passes.common.ShapeInferencePass()(made)
    return made


LENGTH = "size = Shape<start=1, end=2>(x) "
NUMBERS = "zero = Constant<value_int=0>() one = Constant<value_int=1>() two = Constant<value_int=2>() "


def lifted(made: ir.Model) -> ir.Model:
    ir.passes.common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(made)
    return made


def test_leading_rows_of_a_table_are_a_slice() -> None:
    made = lifted(model(f"{LENGTH}{NUMBERS} n = Squeeze(size) i = Range(zero, n, one) y = Gather(table, i)"))
    before, given = on_ort(made), {"x": np.zeros((2, 5), np.int64)}
    expected = before(given)[0]
    assert keep_sizes_on_host(made) == 1
    assert {"Slice"} <= {node.op_type for node in made.graph}
    assert "Gather" not in {node.op_type for node in made.graph}
    np.testing.assert_array_equal(on_ort(made)(given)[0], expected)
    np.testing.assert_array_equal(expected, TABLE[:5])


@pytest.mark.parametrize(
    "body",
    [
        "n = Squeeze(size) i = Range(one, n, one) y = Gather(table, i)",
        "n = Squeeze(size) i = Range(zero, n, two) y = Gather(table, i)",
        "n = Squeeze(size) i = Range(zero, n, one) y = Gather<axis=1>(table, i)",
        "s = ReduceMax<keepdims=0>(x) i = Range(zero, s, one) y = Gather(table, i)",
    ],
)
def test_other_rows_are_left_as_they_are(body: str) -> None:
    made = lifted(model(LENGTH + NUMBERS + body, outputs="float[N,M] y"))
    given = {"x": np.full((2, 3), 2, np.int64)}
    expected = on_ort(made)(given)[0]
    assert keep_sizes_on_host(made) == 0
    np.testing.assert_array_equal(on_ort(made)(given)[0], expected)


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        ("Add(wide, size)", [[[5], [6], [7]]]),
        ("Add(size, wide)", [[[5], [6], [7]]]),
        ("Add(wide, n)", [[[5], [6], [7]]]),
        ("Sub(wide, size)", [[[-5], [-4], [-3]]]),
    ],
)
def test_a_range_plus_a_size_is_another_range(moved: str, expected: list[list[list[int]]]) -> None:
    body = (
        f"{LENGTH}{NUMBERS} axes = Constant<value_ints=[0, 2]>() three = Constant<value_int=3>() n = Squeeze(size) "
        f"i = Range(zero, three, one) wide = Unsqueeze(i, axes) y = {moved}"
    )
    made = lifted(model(body, outputs="int64[1,N,1] y"))
    assert keep_sizes_on_host(made) == 1
    wanted = {node.op_type for node in made.graph if node.outputs[0].name == "y"} | {
        made.graph.outputs[0].producer().op_type
    }
    assert wanted == {"Unsqueeze"}
    np.testing.assert_array_equal(on_ort(made)({"x": np.zeros((2, 5), np.int64)})[0], expected)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        # A size with more axes than the range, a range of floats, and a size in int32.
        ("axes = Constant<value_ints=[0]>() wide = Unsqueeze(size, axes) i = Range(zero, two, one) y = Add(i, wide)",
         "int64[1,N] y"),
        ("f = Cast<to=1>(size) s = Squeeze(f) a = Constant<value_float=0.1>() b = Constant<value_float=5.1>() "
         "c = Constant<value_float=1.0>() i = Range(a, b, c) y = Add(i, s)", "float[N] y"),
        ("small = Cast<to=6>(size) n = Squeeze(small) z = Constant<value = int32 {0}>() "
         "o = Constant<value = int32 {1}>() i = Range(z, n, o) y = Gather(table, i)", "float[N,3] y"),
    ],
    ids=["axes", "floats", "int32"],
)  # fmt: skip
def test_what_would_not_be_the_same_is_left_as_it_is(body: str, outputs: str) -> None:
    made = lifted(model(LENGTH + NUMBERS + body, outputs=outputs))
    assert keep_sizes_on_host(made) == 0


def test_a_size_is_not_taken_from_a_range_and_numbers_of_the_input_are_no_sizes() -> None:
    body = (
        f"{LENGTH}{NUMBERS} n = Squeeze(size) i = Range(zero, n, one) a = Sub(size, i) "
        "total = ReduceSum<keepdims=0>(x) b = Add(i, total) y = Add(a, b)"
    )
    made = lifted(model(body, outputs="int64[N] y"))
    assert keep_sizes_on_host(made) == 0


def test_the_size_of_a_computed_value_is_read_from_an_input_of_that_size() -> None:
    made = model("t = Transpose(x) u = Mul(t, t) y = Shape<start=0, end=1>(u)", outputs="int64[1] y")
    given = {"x": np.zeros((2, 5), np.int64)}
    assert keep_sizes_on_host(made) == 1
    assert on_ort(made)(given)[0].tolist() == [5]
    (shape,) = (node for node in made.graph if node.op_type == "Shape")
    assert shape.inputs[0] is made.graph.inputs[0]


@pytest.mark.parametrize("body", ["u = Mul(x, x) y = Shape(u)", "y = Shape<start=0, end=1>(x)"])
def test_other_sizes_are_read_where_they_were(body: str) -> None:
    assert keep_sizes_on_host(model(body, outputs="int64[N] y")) == 0
