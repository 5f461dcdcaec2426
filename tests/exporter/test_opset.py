"""Lower opsets: the standard's own definitions, the same numbers, or an error that names the operator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from attnport.errors import ExportError
from attnport.exporter.builder import inline_functions
from attnport.exporter.graph.opset import to_opset


def graph(body: str, inputs: str = "float[N,8] x", outputs: str = "float[N,8] y", extra: str = "") -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 23{extra}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    return onnx.shape_inference.infer_shapes(proto)


def test_two_expanded_operators_keep_names_apart_and_numbers_equal() -> None:
    proto = graph('a = Gelu(x) b = Gelu<approximate="tanh">(a) s = Shape<start=1>(b) w = Cast<to=1>(s) e = Expand(w, s)'
                  "y = RMSNormalization(b, e)")  # fmt: skip
    model = ir.from_proto(proto)
    assert to_opset(model, 18) == 3
    out = ir.to_proto(model)
    onnx.checker.check_model(out, full_check=True)
    assert [(each.domain, each.version) for each in out.opset_import] == [("", 18)]
    assert not out.functions
    names = [name for node in out.graph.node for name in node.output]
    assert len(set(names)) == len(names)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    got, expected = (ReferenceEvaluator(each).run(None, {"x": x})[0] for each in (out, proto))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_an_attention_operator_is_expanded_where_no_form_was_made_for_it() -> None:
    heads = "float[2,4,3,8] q, float[2,2,5,8] k, float[2,2,5,8] v, bool[3,5] m"
    proto = graph("y = Attention<softcap=2.0>(q, k, v, m)", heads, "float[2,4,3,8] y")
    model = ir.from_proto(proto)
    assert to_opset(model, 18) == 1
    random = np.random.default_rng(0)
    feeds = {
        n: random.standard_normal((2, h, t, 8)).astype(np.float32)
        for n, h, t in (("q", 4, 3), ("k", 2, 5), ("v", 2, 5))
    }
    feeds["m"] = np.tri(3, 5, dtype=bool)
    got, expected = (ReferenceEvaluator(each).run(None, feeds)[0] for each in (ir.to_proto(model), proto))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_an_operator_that_cannot_be_had_is_named_with_its_node() -> None:
    proto = graph("y = TensorScatter(x, u, w)", "float[2,4,8] x, float[2,1,8] u, int64[2] w", "float[2,4,8] y", "")
    proto.opset_import[0].version = 24
    proto.graph.node[0].name = "write_cache"
    with pytest.raises(ExportError, match="node write_cache: TensorScatter does not exist at opset 18"):
        to_opset(ir.from_proto(proto), 18)


def test_a_type_that_came_later_is_found_by_the_checker() -> None:
    proto = graph("a = Cast<to=9>(x) b = ReduceMax(a) y = Cast<to=1>(b)", outputs="float[a,b] y")
    with pytest.raises(ExportError, match="not valid at opset 18"):
        to_opset(ir.from_proto(proto), 18)


def test_an_attribute_that_only_says_its_default_goes_and_another_does_not() -> None:
    model = ir.from_proto(graph("i = Cast<to=17, saturate=1>(x) y = Cast<to=1>(i)"))
    assert to_opset(model, 19) == 0
    model = ir.from_proto(graph("i = Cast<to=7, saturate=1>(x) y = Cast<to=1>(i)"))
    assert to_opset(model, 18) == 0
    assert "saturate" not in model.graph.node(0).attributes


def test_operators_inside_branches_and_functions_are_lowered_too() -> None:
    branch = "If (c) <then_branch = a () => (float[N,8] t) { t = Gelu(x) },"
    branch += "else_branch = b () => (float[N,8] e) { e = Abs(x) }>"
    proto = graph(f"y = {branch}", "bool c, float[N,8] x")
    model = ir.from_proto(proto)
    assert to_opset(model, 18) == 1
    assert "Gelu" not in {node.op_type for node in model.graph.all_nodes()}
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)
    got, expected = (
        ReferenceEvaluator(each).run(None, {"c": np.array(True), "x": x})[0] for each in (ir.to_proto(model), proto)
    )
    np.testing.assert_allclose(got, expected, atol=1e-6)
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 11, opset_import: ["": 23, "own": 1]> g (float[N] x) => (float[N] y) { y = own.f(x) }'
            '<domain: "own", opset_import: ["": 23]> f (a) => (b) { b = Gelu(a) }'
        )
    )
    inline_functions(model)
    assert [node.op_type for node in model.graph] == ["Gelu"]
    assert to_opset(model, 18) == 1


def test_a_graph_that_is_low_enough_is_left_alone() -> None:
    model = ir.from_proto(graph("y = Gelu(x)"))
    assert to_opset(model, 23) == 0
    assert [node.op_type for node in model.graph] == ["Gelu"]
