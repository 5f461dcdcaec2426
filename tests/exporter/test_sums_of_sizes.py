"""The size of an axis is a sum of the dims that the graph's inputs have, where a Concat made it."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from attnport.exporter.fusion.formula import Axis, Const, Expr, Size, linear, size_along, size_sum

GRAPH = """
<ir_version: 10, opset_import: ["": 23]>
g (float[B,P,4] past, float[B,S,4] new, float[B,3,4] more, float[B,U,4] other) => (float[B,K,4] y)
<float[B,N,4] joined, float[B,M,4] twice, float[B,4,N] turned, float[B,L,4] lost,
  float[B,?,4] unknown, float[B,O,4] part, float[B,O,4] whole> {
  joined = Concat<axis=1>(past, new)
  twice = Concat<axis=-2>(joined, more, past)
  turned = Transpose<perm=[0,2,1]>(joined)
  unknown = Unknown(other)
  part = Unknown(other)
  whole = Concat<axis=1>(part, new)
  lost = Concat<axis=1>(unknown, new)
  y = Concat<axis=1>(twice, lost)
}
"""


@pytest.fixture(scope="module")
def values() -> dict[str, ir.Value]:
    graph = ir.from_proto(onnx.parser.parse_model(GRAPH)).graph
    return {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}


@pytest.mark.parametrize(
    ("name", "axis", "expected"),
    [
        ("past", 1, {Size("P"): 1}),
        ("past", 2, {Const(1): 4}),
        ("joined", 1, {Size("P"): 1, Size("S"): 1}),
        ("joined", 0, {Size("B"): 1}),
        ("turned", -1, {Size("P"): 1, Size("S"): 1}),
        ("twice", 1, {Size("P"): 2, Size("S"): 1, Const(1): 3}),
        ("lost", 1, {Size("L"): 1}),
        ("whole", 1, {Size("O"): 1}),
        ("y", 1, {Size("P"): 2, Size("S"): 1, Const(1): 3, Size("L"): 1}),
    ],
)
def test_a_size_is_the_sum_of_what_was_joined(
    name: str, axis: int, expected: dict[Expr, int], values: dict[str, ir.Value]
) -> None:
    found = size_sum(values[name], axis)
    assert found is not None
    assert linear(found) == expected


def test_a_size_that_is_not_known_is_none(values: dict[str, ir.Value]) -> None:
    assert size_sum(values["unknown"], 1) is None
    assert size_sum(None, 0) is None


def test_an_axis_is_found_by_its_index_variable(values: dict[str, ir.Value]) -> None:
    index = (Axis("b"), Axis("j"), Axis("d"))
    found = size_along(values["joined"], index, Axis("j"))
    assert found == size_sum(values["joined"], 1)
    assert size_along(values["joined"], index, Axis("i")) is None
