"""What every lowered form keeps: types, opsets, names, rows of zero, one mask for all layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from representatives import crossed
from running import ON_ORT, captured, check_numbers, distance, export, judged, lowered, on_ort, on_reference
from spellings import ALL, CASES
from spellings.case import Case, D, H, contract, heads
from torch.nn.functional import scaled_dot_product_attention

from attnport.dims import TensorSpec
from attnport.errors import UsageError
from attnport.exporter.capture import capture
from attnport.exporter.forms.standard import can_hide
from attnport.exporter.fusion.recognise import recognise
from attnport.exporter.targets import base
from attnport.masks import MaskSpec
from attnport.masks.numpy_builders import decode_mask


@pytest.mark.parametrize(
    ("name", "plan"),
    crossed(
        ["masked_fill", "gqa", "bias_and_mask", "window", "stacked", "one_head"],
        ["fp16", "bf16", "fp16_islands", "bf16_islands"],
    ),
)
def test_a_half_precision_form_stays_close_and_declares_what_it_computes_in(name: str, plan: str) -> None:
    model = lowered(name, "tensorrt", plan).model
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    values = [v for node in model.graph for v in node.outputs] + list(model.graph.initializers.values())
    floats = {v.dtype for v in (*values, *model.graph.inputs) if v.dtype is not None and v.dtype.is_floating_point()}
    half = ir.DataType.FLOAT16 if plan.startswith("fp16") else ir.DataType.BFLOAT16
    if plan.endswith("islands"):
        assert floats == {half, ir.DataType.FLOAT}
        assert {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)} <= {ir.DataType.FLOAT, ir.DataType.INT64}
        products = [node.outputs[0].dtype for node in model.graph if node.op_type in ("Gemm", "LayerNormalization")]
        assert set(products) <= {ir.DataType.FLOAT}
    else:
        assert floats == {half}
    check_numbers(on_reference(model), ALL[name], within=0.02 if plan.startswith("fp16") else 0.1)


@pytest.mark.parametrize("name", ["masked_fill", "gqa", "bias_and_mask", "stacked"])
def test_the_opset_18_form_has_nothing_newer(name: str) -> None:
    model = lowered(name, "onnx_18").model
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert {(each.domain, each.version) for each in proto.opset_import} == {("", 18)}
    assert proto.ir_version == 8
    assert all(onnx.defs.get_schema(node.op_type, 18, "").since_version <= 18 for node in proto.graph.node)
    assert "Attention" not in {node.op_type for node in proto.graph.node}
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "plan", "rows"),
    [
        ("gqa_repeat_kv", "fp16", True),
        ("gqa_repeat_kv", "fp32", False),
        ("gqa_repeated", "fp32", True),
        ("gqa_repeat_kv_sdpa", "fp32", True),
    ],
)
def test_a_mask_that_float32_writes_to_memory_is_not_repeated_for_heads(name: str, plan: str, rows: bool) -> None:
    """Its mask is one of queries by keys for each item in the first spelling alone: causal and padding."""
    low = lowered(name, "tensorrt_rtx", plan)
    assert [form.endswith("grouped heads as rows") for form in low.forms.values()] == [rows]
    check_numbers(on_reference(low.model), ALL[name], within=0.02 if plan == "fp16" else 1e-4)


@pytest.mark.parametrize(
    ("target", "name"),
    crossed(
        ["ort_cpu", "onnx", "onnx_18", "openvino"],
        ["masked_fill", "where", "added", "padding_sdpa", "causal_padding", "cross", "gqa", "alibi"],
    ),
)
def test_a_row_with_no_allowed_key_gives_zero(name: str, target: str) -> None:
    case, model = CASES[name], lowered(name, target).model
    feeds = case.feeds({"batch": 3, "seq": 4, "mem": 6}, empty_row=True)
    got = judged(case, feeds, (on_ort if target in ON_ORT else on_reference)(model)(feeds))[0]
    assert (got[0] == 0).all()
    assert np.abs(got[1:]).any()
    assert distance([got[1:]], [judged(case, feeds, case.reference(feeds))[0][1:]]) < 2e-5


@pytest.mark.parametrize(
    ("name", "plan"), crossed(["masked_fill", "causal_padding", "alibi"], ["fp16", "fp16_islands", "fp32"])
)
def test_a_row_with_no_allowed_key_gives_zero_for_tensorrt(name: str, plan: str) -> None:
    feeds = CASES[name].feeds({"batch": 2, "seq": 4}, empty_row=True)
    got = on_reference(lowered(name, "tensorrt", plan).model)(feeds)[0].astype(np.float64)
    assert (got[0] == 0).all()
    assert np.abs(got[1]).min() > 0


@pytest.mark.parametrize(
    ("target", "name"),
    crossed(
        ["ort_cpu", "onnx", "onnx_18", "openvino", "tensorrt"], ["bias_2d", "bias_3d", "bias_of_keys", "bias_and_mask"]
    ),
)
def test_a_float_mask_that_hides_every_key_of_a_row_gives_zero(name: str, target: str) -> None:
    """A float input stays additive; the zero is torch's own answer to -inf in it."""
    case, model = CASES[name], lowered(name, target).model
    feeds = case.feeds({"batch": 2, "seq": 5})
    row = {"bias_of_keys": (0,)}.get(name, (..., 2, slice(None)))
    feeds["bias"][row] = -np.inf
    if name == "bias_and_mask":  # what the bias leaves, the mask hides
        feeds["bias"][..., 2, -1] = 0
        feeds["mask"][:, -1] = 0
    expected = judged(case, feeds, [np.nan_to_num(array) for array in case.reference(feeds)])[0]
    got = judged(case, feeds, (on_ort if target in ON_ORT else on_reference)(model)(feeds))[0]
    assert (got[0, 2] == 0).all()
    assert distance([got], [expected]) < 2e-5


@pytest.mark.parametrize("target", ON_ORT)
def test_a_form_hides_the_keys_that_check_counts_as_hidden(target: str) -> None:
    """Whatever the numbers of an additive mask are that by its contract hides keys."""

    class Added(torch.nn.Module):
        def forward(self, q: Any, k: Any, added: Any) -> Any:
            return (q @ k.transpose(-1, -2) + added).softmax(-1) @ k

    lows = np.array([0, -1e3, -4e3, -6e3, -9e3, -1e4, -65504, -math.inf], np.float32)
    q, k = (TensorSpec(name, "float32", ("batch", 1, "seq", len(lows))) for name in "qk")
    added = TensorSpec("added", "float32", ("batch", 1, 1, "seq"))
    mask = MaskSpec(("padding",), "added", "additive")
    io = contract(q, k, added, outputs=(replace(q, name="y"),), masks=(mask,))
    feeds = {
        "q": np.zeros((1, 1, len(lows), len(lows)), np.float32),
        "k": np.eye(len(lows), dtype=np.float32)[None, None],
        "added": lows[None, None, None],
    }
    probabilities = on_ort(export(Added(), io).lowered(target).model)(feeds)[0]
    allowed = decode_mask(mask, lows)
    np.testing.assert_allclose(probabilities[0, 0], np.broadcast_to(allowed / allowed.sum(), (len(lows),) * 2))


def test_a_bias_of_logarithms_may_hide_every_key() -> None:
    class Counted(torch.nn.Module):
        def forward(self, x: Any, count: Any) -> Any:
            return scaled_dot_product_attention(x, x, x, attn_mask=count[:, None, None, :].to(x.dtype).log())

    count = TensorSpec("count", "int64", ("batch", "seq"), high=5)
    made = export(Counted(), contract(heads("x", "seq"), count, outputs=(heads("y", "seq"),)))
    x = np.random.default_rng(0).standard_normal((2, H, 3, D)).astype(np.float32)
    feeds = {"x": x, "count": np.array([[0, 0, 0], [1, 0, 2]])}
    expected = Counted()(*map(torch.from_numpy, feeds.values())).numpy()
    assert (expected[0] == 0).all()
    assert distance(on_ort(made.lowered("onnx_18").model)(feeds), [expected]) < 1e-5


def test_two_cross_attentions_of_different_lengths_share_no_mask() -> None:
    class Two(torch.nn.Module):
        def forward(self, q: Any, a: Any, b: Any) -> Any:
            keep = lambda x: torch.ones(q.shape[2], x.shape[2], dtype=torch.bool).tril()  # noqa: E731
            one = (q @ a.transpose(-1, -2)).masked_fill(~keep(a), -math.inf).softmax(-1) @ a
            return one + (q @ b.transpose(-1, -2)).masked_fill(~keep(b), -math.inf).softmax(-1) @ b

    case = Case(
        Two,
        contract(heads("q", "seq"), heads("a", "seq"), heads("b", "mem"), outputs=(heads("y", "seq"),)),
        "causal",
    )
    found = capture(Two().eval(), case.io)
    assert [each.name for each in found.attentions] == ["module", "module#1"]
    for target in ("onnx_18", "ort_cpu"):
        model = ir.from_proto(ir.to_proto(found.model))
        result = base.get(target).lower(model, found.attentions, plan="fp32")
        assert set(result.forms) == {"module", "module#1"}
        check_numbers(on_ort(result.model), case, within=2e-5)


def test_an_attention_whose_output_is_the_graphs_keeps_the_outputs_name() -> None:
    for target in base.names():
        model = lowered("raw_operator", target, base.get(target).plans[0]).model
        assert [value.name for value in model.graph.outputs] == ["y"]
        assert [value.name for value in model.graph.inputs] == ["q", "k", "v"]


@pytest.mark.parametrize("target", ["onnx", "onnx_18", "tensorrt"])
def test_every_anchor_is_a_node_of_the_graph_even_where_one_attention_feeds_the_next(target: str) -> None:
    result = lowered("stacked", target)
    names = {node.name for node in result.model.graph}
    assert {anchor for anchors in result.anchors.values() for anchor in anchors} <= names


def test_one_mask_is_written_for_all_layers() -> None:
    result = lowered("stacked", "ort_cpu")
    names = [node.name for node in result.model.graph]
    assert len(names) == len(set(names))
    assert sum(node.op_type == "Attention" for node in result.model.graph) == 2


def test_a_target_refuses_a_plan_that_it_does_not_take_and_an_unknown_target_is_named() -> None:
    with pytest.raises(UsageError, match="onnx: got precision 'fp16'"):
        lowered("one_head", "onnx", "fp16")
    with pytest.raises(UsageError, match="target 'tensor_flow': there is none"):
        base.get("tensor-flow")
    assert base.get("ort-cpu").name == "ort_cpu"


def test_only_a_bias_that_can_be_minus_infinity_can_hide() -> None:
    def bias_of(name: str) -> ir.Value:
        attention = recognise(captured(name).model, captured(name).attentions, masks=ALL[name].io.masks).attentions[0]
        return attention.mask.biases[0].at.value

    assert can_hide(bias_of("bias_2d"))
    assert not can_hide(bias_of("alibi"))
    assert not can_hide(bias_of("penalty"))


def test_half_precision_is_only_rounding() -> None:
    """A wrong cast would pass a loose bound: without rounding, the half forms give the module's numbers exactly."""
    model = lowered("masked_fill", "tensorrt", "fp16_islands").model
    for node in model.graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT16:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
    for value in model.graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT16 and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.dtype = ir.DataType.FLOAT
    for node in model.graph:
        for value in node.outputs:
            value.dtype = ir.DataType.FLOAT if value.dtype == ir.DataType.FLOAT16 else value.dtype
    check_numbers(on_reference(model), CASES["masked_fill"], within=2e-5)


@pytest.mark.parametrize("scale", [1.0, 0.125, 0.17677669, 3.0, 1e-4, 40.0, -2.0])
def test_a_scale_is_split_into_one_on_q_and_an_exact_one_on_the_scores(scale: float) -> None:
    from attnport.exporter.targets.tensorrt import split_scale

    on_q, on_scores = split_scale(scale)
    assert on_q * on_scores == pytest.approx(scale, rel=1e-15)
    if scale > 0:
        assert on_scores != 1.0
        assert np.log2(on_scores) == round(np.log2(on_scores))
