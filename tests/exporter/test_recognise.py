"""What is recognised in a graph, what is refused and with which words, and what stays a bias."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from written_graphs import written

from attnport.artifacts import SourceAttention
from attnport.exporter.fusion.recognise import (
    Miss,
    NotRecognised,
    Recognised,
    Recognition,
    matched,
    recognise,
    rule_modules,
)
from attnport.exporter.naming import SCOPES, module_of
from attnport.exporter.targets import base
from attnport.masks import MaskSpec

INPUTS = "float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v, int64[B,T] m, bool[B,1,1,T] ok, float[B,1,S,T] f"
COUNTED = (SourceAttention("attn", "attn", "softmax"),)
START = "kt = Transpose<perm=[0,1,3,2]>(k) s0 = MatMul(q, kt) "
END = "p = Softmax<axis=-1>(s) y = MatMul(p, v)"
GRID = (
    "i0 = Shape<start=2,end=3>(q) i1 = Squeeze(i0) i = Range(zero, i1, one) ii = Unsqueeze(i, last) "
    "j0 = Shape<start=2,end=3>(k) j1 = Squeeze(j0) j = Range(zero, j1, one) "
)
CONSTS = {
    "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "last": np.int64([1]), "mid": np.int64([1, 2]),
    "inf": np.float32(-np.inf), "big": np.float32(-1e4), "fmin": np.float32(np.finfo(np.float32).min),
    "five": np.float32(-5), "none": np.float32(0), "onef": np.float32(1), "half": np.float32(0.5),
    "table": np.ones((2, 1, 1), np.float32),
}  # fmt: skip


def model(body: str, **more: Any) -> ir.Model:
    made = ir.from_proto(written(body, INPUTS, "float[B,2,S,4] y", **{**CONSTS, **more}))
    for node in made.graph:
        node.metadata_props[SCOPES] = "['', 'attn', 'call']"
    return made


def read(body: str, masks: tuple[MaskSpec, ...] = (MaskSpec(("padding",), "m"),), **more: Any) -> Recognition:
    found = recognise(model(body, **more), COUNTED, masks=masks)
    assert {each.name for each in found.attentions} ^ set(found.reasons) == {"attn"}
    return found


def attention(middle: str, **options: Any) -> Recognised:
    found = read(START + middle + " " + END, **options)
    assert not found.reasons, found.reasons
    return found.attentions[0]


MASKS = {
    "where_keeps": ("s = Where(ok, s0, inf)", "padding(ok)"),
    "where_hides": ("h = Not(ok) s = Where(h, fmin, s0)", "padding(ok)"),
    "minus_ten_thousand": ("s = Where(ok, s0, big)", "padding(ok)"),
    "added": ("a = Where(ok, none, big) s = Add(s0, a)", "padding(ok)"),
    "added_first": ("a = Where(ok, none, inf) s = Add(a, s0)", "padding(ok)"),
    "inverted": (
        "c = Cast<to=1>(m) e = Unsqueeze(c, mid) r = Sub(onef, e) a = Mul(r, big) s = Add(s0, a)", "padding(m)"),
    "inverted_bool": ("c = Cast<to=1>(ok) r = Sub(onef, c) a = Mul(r, fmin) s = Add(s0, a)", "padding(ok)"),
    "from_minus_one": ("c = Cast<to=1>(ok) r = Sub(c, onef) n = Neg(big) a = Mul(r, n) s = Add(s0, a)", None),
    "causal": (GRID + "c = LessOrEqual(j, ii) s = Where(c, s0, inf)", "causal"),
    "causal_from_greater": (GRID + "c = Greater(j, ii) s = Where(c, inf, s0)", "causal"),
    "causal_of_difference": (GRID + "d = Sub(ii, j) c = GreaterOrEqual(d, zero) s = Where(c, s0, inf)", "causal"),
    "window": (
        GRID + "d = Sub(ii, j) c1 = LessOrEqual(d, two) e = Sub(j, ii) c2 = LessOrEqual(e, two) "
        "c = And(c1, c2) s = Where(c, s0, inf)", "window"),
    "one_sided": (GRID + "d = Sub(ii, j) c = LessOrEqual(d, two) s = Where(c, s0, inf)", "explicit"),
    "strictly_before": (GRID + "c = Less(j, ii) s = Where(c, s0, inf)", "explicit"),
    "causal_and_padding": (GRID + "c = LessOrEqual(j, ii) b = And(c, ok) s = Where(b, s0, inf)", "causal+padding(ok)"),
    "twice_the_same": ("s1 = Where(ok, s0, inf) s = Where(ok, s1, big)", "padding(ok)"),
    "two_masks": (GRID + "s1 = Where(ok, s0, inf) c = Less(ii, j) s = Where(c, inf, s1)", "causal+padding(ok)"),
}  # fmt: skip
BIASES = {
    "a_penalty_of_five": "a = Where(ok, none, five) s = Add(s0, a)",
    "a_float_input": "s = Add(s0, f)",
    "a_table": "s = Add(s0, table)",
    "an_undeclared_number_times_a_large_one": "c = Cast<to=1>(m) e = Unsqueeze(c, mid) r = Sub(onef, e) "
    "a = Mul(r, big) s = Add(s0, a)",
    "zero_times_infinity": "c = Cast<to=1>(ok) r = Sub(onef, c) a = Mul(r, inf) s = Add(s0, a)",
    "a_third_value": "a0 = Where(ok, none, big) a1 = Where(ok, five, a0) s = Add(s0, a1)",
    "alibi": GRID + "d = Sub(j, ii) c = Cast<to=1>(d) a = Mul(c, table) s = Add(s0, a)",
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_read(name: str) -> None:
    middle, expected = MASKS[name]
    found = attention(middle)
    if expected is not None:
        assert str(found.mask.spec) == expected
        assert found.mask.biases == ()


@pytest.mark.parametrize("name", BIASES)
def test_what_is_added_and_hides_nothing_for_sure_stays_a_bias(name: str) -> None:
    options = {"masks": ()} if "undeclared" in name else {}
    found = attention(BIASES[name], **options)
    assert "bias" in found.mask.spec.kinds
    assert len(found.mask.biases) == 1
    if name != "a_third_value":
        assert found.mask.factors == ()


def test_the_widths_and_the_alignment_are_read() -> None:
    assert attention(MASKS["window"][0]).mask.spec.window == 2
    lower = GRID + "n = Sub(j1, i1) r = Add(ii, n) c = LessOrEqual(j, r) s = Where(c, s0, inf)"
    spec = attention(lower).mask.spec
    assert (spec.kinds, spec.alignment) == (("causal",), "lower_right")
    assert attention(MASKS["causal"][0]).mask.spec.alignment == "upper_left"
    assert attention(MASKS["causal_of_difference"][0]).mask.is_causal_only
    assert not attention(MASKS["strictly_before"][0]).mask.is_causal_only


SCALES = {
    "one": ("s = Identity(s0)", 1.0),
    "mul": ("s = Mul(s0, half)", 0.5),
    "div": ("s = Div(s0, half)", 2.0),
    "mul_from_the_left_twice": ("s1 = Mul(half, s0) s = Mul(s1, half)", 0.25),
    "before_a_mask": ("s1 = Mul(s0, half) s = Where(ok, s1, inf)", 0.5),
    "after_a_mask": ("s1 = Where(ok, s0, inf) s = Mul(s1, half)", 0.5),
    "after_an_added_mask": ("a = Where(ok, none, inf) s1 = Add(s0, a) s = Mul(s1, half)", 0.5),
}
REFUSED = {
    "a fill that hides nothing": ("s = Where(ok, s0, five)", "hides nothing"),
    "a fill that the scale makes small": ("s1 = Where(ok, s0, big) s = Mul(s1, half)", "hides nothing"),
    "a soft-cap of masked scores": ("s1 = Where(ok, s0, inf) s = Tanh(s1)", "masked before their soft-cap"),
    "a soft-cap of biased scores": ("s1 = Add(s0, f) s = Tanh(s1)", "added to the scores before their soft-cap"),
    "two soft-caps": ("s1 = Tanh(s0) s = Tanh(s1)", "not as a soft-cap"),
    "a root": ("s1 = Abs(s0) s = Sqrt(s1)", "pass through Sqrt"),
    "division by zero": ("s = Div(s0, none)", "combined with zero"),
    "a divisor that is a tensor": ("s = Div(onef, s0)", "combined with a tensor by Div"),
    "whole numbers": ("c = Cast<to=7>(s0) s = Cast<to=1>(c)", "cast to int64"),
    "a choice of two tensors": ("s = Where(ok, s0, f)", "chosen from two tensors"),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_scale_is_read_wherever_it_stands(name: str) -> None:
    middle, expected = SCALES[name]
    assert attention(middle).scale == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_fused_kernel_computes_is_refused_with_its_place(name: str) -> None:
    middle, reason = REFUSED[name]
    found = read(START + middle + " " + END)
    assert reason in found.reasons["attn"]
    assert "(node node_" in found.reasons["attn"]


AROUND = {
    "the wrong axis": (START + "p = Softmax<axis=2>(s0) y = MatMul(p, v)", "runs over axis 2"),
    "something behind the softmax": (
        START + "p = Softmax(s0) r = Mul(p, half) y = MatMul(r, v)",
        "after the softmax comes Mul",
    ),
    "no product above": ("p = Softmax(f) y = MatMul(p, v)", "do not come from a product"),
    "operator with a cache": ("y, c, d = Attention(q, k, v, , k, v)", "past_key"),
}


@pytest.mark.parametrize("name", AROUND)
def test_an_attention_that_is_not_one_is_refused(name: str) -> None:
    body, reason = AROUND[name]
    assert reason in read(body).reasons["attn"]


@pytest.mark.parametrize(
    "guard",
    [
        "n = IsNaN(p0) p = Where(n, none, p0)",
        "p = Identity(p0)",
        "p = Dropout(p0)",
        "c = Cast<to=11>(p0) p = Cast<to=1>(c)",
    ],
)
def test_steps_that_change_no_probability_are_passed(guard: str) -> None:
    found = read(START + f"p0 = Softmax(s0) {guard} y = MatMul(p, v)")
    assert [each.name for each in found.attentions] == ["attn"]


def assign(scopes: list[str], counted: list[tuple[str, str]]) -> Recognition:
    """Several attentions in a row, each with a module path, against what was counted."""
    body = " ".join(f"y{n} = Attention(q, k, v)" for n in range(len(scopes)))
    sums = "y = Sum(" + ", ".join(f"y{n}" for n in range(len(scopes))) + ")"
    graph = model(body + " " + sums)
    for node, scope in zip(graph.graph, scopes, strict=False):
        node.metadata_props[SCOPES] = scope
    return recognise(graph, [SourceAttention(name, module, "softmax") for name, module in counted])


def test_each_is_matched_once_by_its_path_and_order() -> None:
    found = assign(
        ["['', 'b', 'x']", "['', 'a', 'x']", "['', 'a', 'x']"], [("a", "a"), ("a#1", "a"), ("b", "b"), ("lost", "c")]
    )
    assert [(each.name, each.node.name) for each in found.attentions] == [
        ("b", "node_0"), ("a", "node_1"), ("a#1", "node_2"),
    ]  # fmt: skip
    assert found.reasons == {"lost": "nothing in the exported graph stands for it (module c)"}


def test_what_lost_its_path_takes_what_is_left_and_an_extra_one_takes_nothing() -> None:
    found = assign(["['', 'a', 'x']", "", "['', 'a', 'x']"], [("a", "a"), ("b", "b"), ("c", "c")])
    assert {each.name: each.node.name for each in found.attentions} == {"a": "node_0", "b": "node_1"}
    assert set(found.reasons) == {"c"}


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_gate_beside_an_attention_does_not_take_its_name(gate_first: bool) -> None:
    gate = "w1 = Softmax(gate) w2 = Mul(w1, gate) u = MatMul(w2, table)"
    core = START + "s = Identity(s0) p = Softmax<axis=-1>(s) y0 = MatMul(p, v)"
    table = np.ones((4, 4), np.float32)
    body = (
        f"gate = Identity(q) {gate} {core} y = Add(y0, u)"
        if gate_first
        else f"{core} gate = Identity(q) {gate} y = Add(y0, u)"
    )
    found = read(body, table=table)
    assert [each.name for each in found.attentions] == ["attn"]
    assert found.reasons == {}


def test_an_attention_inside_a_branch_says_so() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (bool c, float[B,2,S,4] q) => (float[B,2,S,4] y) { y = If (c) <'
        "then_branch = a () => (float[B,2,S,4] t) { t = Attention(q, q, q) },"
        "else_branch = b () => (float[B,2,S,4] e) { e = Abs(q) }> }"
    )
    for attribute in proto.graph.node[0].attribute:
        entry = attribute.g.node[0].metadata_props.add()
        entry.key, entry.value = SCOPES, "['', 'attn', 'call']"
    lowered = base.get("onnx").lower(ir.from_proto(proto), COUNTED, plan="fp32")
    assert lowered.anchors == {}
    assert lowered.notes == {
        "attn": "not recognised: it lies inside a branch of the control flow operator If, where nothing is lowered"
    }


@pytest.mark.parametrize(
    ("middle", "times"),
    [("s1 = Add(s0, f) s = Mul(s1, half)", 0.5), ("s1 = Sub(s0, f) s = Div(s1, half)", -2.0), ("s = Sub(s0, f)", -1.0)],
)
def test_a_bias_keeps_the_factor_that_it_is_added_with(middle: str, times: float) -> None:
    (bias,) = attention(middle).mask.biases
    assert bias.times == times


def test_a_mask_that_the_scale_makes_small_is_a_bias() -> None:
    found = attention("a = Where(ok, none, big) s1 = Add(s0, a) s = Mul(s1, half)")
    assert found.mask.factors == ()
    assert [bias.times for bias in found.mask.biases] == [0.5]


def test_a_float_mask_input_is_compared_with_the_threshold_only_where_its_contract_says_what_it_is() -> None:
    body = START + "s = Add(s0, f) " + END
    for spec, text in (
        (MaskSpec(("padding",), "f", "additive"), "explicit(f)"),
        (MaskSpec(("explicit",), "f", "additive"), "explicit(f)"),
        (MaskSpec(("bias",), "f", "additive"), "bias"),
    ):
        (found,) = read(body, masks=(spec,)).attentions
        assert str(found.mask.spec) == text
        assert bool(found.mask.biases) is (text == "bias")
    lowered = (
        base.get("onnx")
        .lower(model(body), COUNTED, plan="fp32", masks=(MaskSpec(("explicit",), "f", "additive"),))
        .model
    )
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal((1, 2, 3, 4)).astype(np.float32) for name in "qkv"}
    feeds |= {"m": np.ones((1, 3), np.int64), "ok": np.ones((1, 1, 1, 3), bool)}
    feeds["f"] = np.where(np.tri(3, dtype=bool), 0.0, -1e4).astype(np.float32)[None, None]
    feeds["f"] = np.broadcast_to(feeds["f"], (1, 1, 3, 3))
    got = ReferenceEvaluator(ir.to_proto(lowered)).run(None, {v.name: feeds[v.name] for v in lowered.graph.inputs})[0]
    only_first = feeds["v"][:, :, :1]
    assert np.abs(got[:, :, :1] - only_first).max() < 1e-6


def test_a_soft_cap_is_read_with_its_scale() -> None:
    found = attention("s1 = Mul(s0, half) s2 = Div(s1, three) s3 = Tanh(s2) s = Mul(s3, three)", three=np.float32(3))
    assert (found.softcap, found.scale) == (3.0, pytest.approx(0.5))
    masked = attention("s1 = Tanh(s0) s = Where(ok, s1, inf)")
    assert (masked.softcap, masked.scale, str(masked.mask.spec)) == (1.0, 1.0, "padding(ok)")
    operator = read("y = Attention<softcap=3.0>(q, k, v)").attentions[0]
    assert (operator.softcap, operator.scale) == (3.0, 0.5)


def test_queries_of_one_head_serve_every_key_head() -> None:
    inputs = "float[B,1,S,4] q, float[B,2,4,T] k, float[B,2,T,4] v"
    proto = written("s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)", inputs, "float[B,2,S,4] y")
    found = recognise(ir.from_proto(proto), [SourceAttention("a", "", "softmax")])
    assert found.reasons == {}
    lowered = base.get("onnx").lower(ir.from_proto(proto), [SourceAttention("a", "", "softmax")], plan="fp32")
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 1, 3, 4), (2, 2, 4, 5), (2, 2, 5, 4)))
    expected = ReferenceEvaluator(proto).run(None, {"q": q, "k": k, "v": v})[0]
    got = ReferenceEvaluator(ir.to_proto(lowered.model)).run(None, {"q": q, "k": k, "v": v})[0]
    assert np.abs(got - expected).max() < 1e-6


def test_module_paths_that_are_no_paths_are_none() -> None:
    node = model("y = Attention(q, k, v)").graph.node(0)
    for text, expected in (("['', 'a.b', 'x']", "a.b"), ("['', 'x']", ""), ("[", None), ("", None), ("f()", None)):
        node.metadata_props[SCOPES] = text
        assert module_of(node) == expected


def test_of_two_rules_for_an_operator_the_first_that_recognises_a_node_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (usual,) = (rule for rule in rule_modules() if rule.OP_TYPE == "Attention")
    tried: list[str] = []

    def refuses(node: object, masks: object) -> None:
        tried.append("first")
        raise NotRecognised("not mine")

    first = SimpleNamespace(OP_TYPE="Attention", applies=lambda node: True, match=refuses)
    for rules, recognised in (([first, usual], True), ([usual, first], True), ([first], False)):
        monkeypatch.setattr("attnport.exporter.fusion.recognise.rule_modules", lambda rules=rules: rules)
        found = matched(model("y = Attention(q, k, v)").graph.node(0), ())
        assert isinstance(found, Recognised) == recognised
    assert tried == ["first", "first"]
    assert isinstance(found, Miss)
    assert found.reason == "not mine"


def test_every_rule_file_is_found_by_its_name() -> None:
    assert [(rule.__name__.rsplit(".")[-1], rule.OP_TYPE) for rule in rule_modules()] == [
        ("attention_op", "Attention"),
        ("softmax", "Softmax"),
    ]
