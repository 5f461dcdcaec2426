"""Outputs that are attention weights are found, whatever was done to their layout; others are not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from attnport.exporter.builder import inline_functions
from attnport.exporter.weights_out import leave_out, weights_out

HEAD = """<ir_version: 10, opset_import: ["" : 23, "own" : 1, "com.microsoft" : 1]>
main (float[B,2,S,4] q, float[B,2,4,T] k, float[B,2,T,4] v, bool[B,1,1,T] keep, bool flag, float[2,1,1] heads)
  => ({outputs})
<float[4,3] weight = {{1,2,3,4,5,6,7,8,9,10,11,12}}, float two = {{2.0}}, int64[1] first = {{0}}, float zero = {{0.0}}>
{{
  scores = MatMul(q, k)
  p = Softmax<axis = -1>(scores)
  mixed = MatMul(p, v)
  {body}
}}
{functions}"""


def graph(body: str, outputs: str = "mixed, y", functions: str = "") -> ir.Model:
    import onnx

    named = ", ".join(f"float {name}" for name in outputs.split(", "))
    proto = onnx.parser.parse_model(HEAD.format(outputs=named, body=body, functions=functions))
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    inline_functions(model)
    return model


SHOWN = {
    "as they are": "y = Identity(p)",
    "transposed": "y = Transpose<perm = [0,2,1,3]>(p)",
    "averaged over heads": "y = ReduceMean<keepdims = 0>(p, first)",
    "one head": "y = Gather<axis = 1>(p, first)",
    "cast and stacked": "h = Cast<to = 10>(p)  s = Unsqueeze(h, first)  y = Concat<axis = 0>(s, s)",
    "guarded": "y = Where(keep, p, zero)",
    "scaled": "y = Mul(p, two)",
    "some heads": "y = Mul(p, heads)",
    "after dropout": "y, m = Dropout(p)",
    "out of a branch": """y = If(flag) <
        then_branch = t () => (float[B,2,S,T] a) { a = Identity(p) },
        else_branch = e () => (float[B,2,S,T] b) { b = Mul(p, two) }>""",
    "in its logarithm": "y = Log(p)",
    "of an attention whose product nobody takes": """e = Transpose<perm = [0,1,3,2]>(q)
        f = MatMul(q, e)  s = Where(keep, f, zero)  y = Softmax<axis = -1>(s)""",
}
HIDDEN = {
    "the context": "y = Identity(mixed)",
    "how two inputs compare": "s = Identity(scores)  y = Softmax<axis = -1>(s)",
    "raw inputs": "y = Identity(q)",
    "a classifier's head": "l = MatMul(mixed, weight)  y = Softmax<axis = -1>(l)",
    "the product of weights and values": "y = MatMul(p, v)",
    "the keys' mask": "y = Cast<to = 1>(keep)",
}


@pytest.mark.parametrize("name", SHOWN)
def test_weights_that_an_output_shows(name: str) -> None:
    assert weights_out(graph(SHOWN[name])) == ("y",)


@pytest.mark.parametrize("name", HIDDEN)
def test_outputs_that_show_none(name: str) -> None:
    assert weights_out(graph(HIDDEN[name])) == ()


def test_the_scores_that_an_attention_operator_gives_out() -> None:
    call = "a, b, c, y = Attention <q_num_heads = 2, kv_num_heads = 2, qk_matmul_output_mode = 3> (q, v, v)"
    assert weights_out(graph(call)) == ("y",)
    assert weights_out(graph("y, b, c = Attention (q, v, v)")) == ()


def test_weights_that_a_function_makes() -> None:
    functions = """<opset_import: ["" : 23], domain: "own">
    Weights (a, b) => (c) { d = MatMul(a, b)  c = Softmax<axis = -1>(d) }"""
    body = "z = own.Weights(q, k)  n = MatMul(z, v)  y = Identity(z)"
    assert weights_out(graph(body, "mixed, n, y", functions)) == ("y",)


def test_weights_that_a_loop_collects() -> None:
    body = """n = Constant<value = int64 {3}>()  go = Constant<value = bool {1}>()
    y = Loop(n, go) <body = step (int64 i, bool c) => (bool d, float[B,2,S,T] w) {
        d = Identity(c)  w = Identity(p) }>"""
    assert weights_out(graph(body)) == ("y",)


def test_features_under_a_gate_are_no_weights() -> None:
    body = "gate = Identity(p)  large = Concat<axis = 0>(k, k)  y = Mul(gate, k)"
    assert weights_out(graph(body)) == ()


def test_an_output_is_left_out_with_what_computed_it_alone() -> None:
    model = graph("y = ReduceMean<keepdims = 0>(p, first)", "mixed, y")
    leave_out(model, ["y"])
    assert [output.name for output in model.graph.outputs] == ["mixed"]
    assert [node.op_type for node in model.graph] == ["MatMul", "Softmax", "MatMul"]
