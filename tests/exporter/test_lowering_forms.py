"""Every form computes what the module computes: handwritten attentions, captured, lowered and run at several sizes."""

from __future__ import annotations

import functools
import math
from typing import Any

import handwritten
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from handwritten import CASES, STACKED, Case

from attnport.artifacts import SourceAttention
from attnport.errors import UsageError
from attnport.exporter.capture import capture
from attnport.exporter.forms.decomposed import can_hide
from attnport.exporter.fusion.recognise import recognise
from attnport.exporter.lowering import base
from attnport.exporter.lowering.base import Lowered

ALL = {**CASES, "stacked": STACKED}
SIZES = ({"batch": 2, "seq": 5, "mem": 7}, {"batch": 3, "seq": 1, "mem": 2}, {"batch": 1, "seq": 11, "mem": 4})
ON_ORT = ("onnx", "onnx_18", "ort_cpu")
UNREADABLE: dict[str, str] = {}
Arrays = dict[str, np.ndarray[Any, Any]]


@functools.cache
def captured(name: str) -> tuple[bytes, tuple[SourceAttention, ...]]:
    found = capture(ALL[name].module().eval(), ALL[name].io)
    return ir.to_proto(found.model).SerializeToString(), found.attentions


def model_of(name: str) -> ir.Model:
    return ir.from_proto(onnx.load_model_from_string(captured(name)[0]))


def lowered(name: str, target: str, plan: str = "fp32") -> Lowered:
    return base.get(target).lower(model_of(name), captured(name)[1], masks=ALL[name].io.masks, plan=plan)


def run_on_ort(model: ir.Model, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    data = ir.to_proto(model).SerializeToString()
    found: list[np.ndarray[Any, Any]] = onnxruntime.InferenceSession(
        data, options, providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    return found


def run_on_reference(model: ir.Model, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    from onnx.reference import ReferenceEvaluator

    from attnport.runtimes._reference_ops import replacements
    from attnport.runtimes.onnx_reference import _expanded

    proto = ir.to_proto(model)
    halves = {v.name: v.dtype.numpy() for v in model.graph.inputs if v.dtype is not None}
    if any("16" in str(dtype) for dtype in halves.values()):
        proto = _expanded(proto)
    cast = {name: array.astype(halves[name]) for name, array in feeds.items()}
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(proto, new_ops=replacements(23)).run(None, cast))


def distance(got: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> float:
    errors = [np.abs(a.astype(np.float64) - b) for a, b in zip(got, expected, strict=True)]
    return max(float(error.max()) if np.isfinite(error).all() else math.inf for error in errors)


def check_numbers(model: ir.Model, case: Case, *, on_ort: bool, within: float) -> None:
    for seed, sizes in enumerate(SIZES):
        feeds = case.feeds(sizes, seed=seed)
        got = run_on_ort(model, feeds) if on_ort else run_on_reference(model, feeds)
        assert distance(got, case.reference(feeds)) < within, sizes


@pytest.mark.parametrize("name", ALL)
def test_every_counted_attention_ends_in_one_row(name: str) -> None:
    counted = [attention.name for attention in captured(name)[1]]
    result = lowered(name, "onnx")
    assert counted == (["module", "module#1"] if name in ("stacked", "one_head_operator") else ["module"])
    assert sorted([*result.forms, *(set(result.notes) - set(result.forms))]) == counted
    assert result.forms.keys() == result.anchors.keys() == result.masks.keys()


@pytest.mark.parametrize("name", CASES)
def test_the_mask_is_read_for_what_it_means(name: str) -> None:
    result = lowered(name, "openvino")
    if name in UNREADABLE:
        assert UNREADABLE[name] in result.notes["module"]
    else:
        assert result.masks["module"] == CASES[name].mask
        assert result.notes == {}
    assert captured(name)[1][0].call == CASES[name].call


@pytest.mark.parametrize("target", [*ON_ORT, "openvino", "tensorrt"])
@pytest.mark.parametrize("name", ALL)
def test_a_float32_form_computes_what_the_module_computes(name: str, target: str) -> None:
    result = lowered(name, target)
    assert bool(result.forms) is (name not in UNREADABLE)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    check_numbers(result.model, ALL[name], on_ort=target in ON_ORT, within=2e-5)


@pytest.mark.parametrize("name", ["masked_fill", "gqa", "bias_and_mask", "window", "stacked", "one_head"])
@pytest.mark.parametrize("plan", ["fp16", "bf16", "fp16_islands", "bf16_islands"])
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
    check_numbers(model, ALL[name], on_ort=False, within=0.02 if plan.startswith("fp16") else 0.1)


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


@pytest.mark.parametrize("target", [*ON_ORT, "openvino"])
@pytest.mark.parametrize(
    "name", ["masked_fill", "where", "added", "padding_sdpa", "causal_padding", "cross", "gqa", "alibi"]
)
def test_a_row_with_no_allowed_key_gives_zero(name: str, target: str) -> None:
    case, model = CASES[name], lowered(name, target).model
    feeds = case.feeds({"batch": 3, "seq": 4, "mem": 6}, empty_row=True)
    got = (run_on_ort if target in ON_ORT else run_on_reference)(model, feeds)[0]
    assert (got[0] == 0).all()
    assert np.abs(got[1:]).min() > 0
    assert distance([got[1:]], [case.reference(feeds)[0][1:]]) < 2e-5


@pytest.mark.parametrize("plan", ["fp16", "fp16_islands", "fp32"])
@pytest.mark.parametrize("name", ["masked_fill", "causal_padding", "alibi"])
def test_a_row_with_no_allowed_key_gives_zero_for_tensorrt(name: str, plan: str) -> None:
    feeds = CASES[name].feeds({"batch": 2, "seq": 4}, empty_row=True)
    got = run_on_reference(lowered(name, "tensorrt", plan).model, feeds)[0].astype(np.float64)
    assert (got[0] == 0).all()
    assert np.abs(got[1]).min() > 0


@pytest.mark.parametrize("target", [*ON_ORT, "openvino", "tensorrt"])
@pytest.mark.parametrize("name", ["bias_2d", "bias_3d", "bias_of_keys", "bias_and_mask"])
def test_a_float_mask_that_hides_every_key_of_a_row_gives_zero(name: str, target: str) -> None:
    """A float input stays additive; the zero is torch's own answer to -inf in it."""
    case, model = CASES[name], lowered(name, target).model
    feeds = case.feeds({"batch": 2, "seq": 5})
    row = {"bias_of_keys": (0,)}.get(name, (..., 2, slice(None)))
    feeds["bias"][row] = -np.inf
    if name == "bias_and_mask":  # what the bias leaves, the mask hides
        feeds["bias"][..., 2, -1] = 0
        feeds["mask"][:, -1] = 0
    expected = np.nan_to_num(case.reference(feeds)[0])
    got = (run_on_ort if target in ON_ORT else run_on_reference)(model, feeds)[0]
    assert (got[0, 2] == 0).all()
    assert distance([got], [expected]) < 2e-5


def test_the_numbers_are_compared_with_something_that_can_differ() -> None:
    case = CASES["masked_fill"]
    with pytest.raises(AssertionError):
        check_numbers(lowered("causal_triu", "onnx").model, CASES["window"], on_ort=True, within=2e-5)
    assert distance([np.full(2, np.nan)], [np.zeros(2)]) == math.inf
    assert case.feeds(SIZES[0])["mask"].min() == 0


def test_two_cross_attentions_of_different_lengths_share_no_mask() -> None:
    class Two(torch.nn.Module):
        def forward(self, q: Any, a: Any, b: Any) -> Any:
            keep = lambda x: torch.ones(q.shape[2], x.shape[2], dtype=torch.bool).tril()  # noqa: E731
            one = (q @ a.transpose(-1, -2)).masked_fill(~keep(a), -math.inf).softmax(-1) @ a
            return one + (q @ b.transpose(-1, -2)).masked_fill(~keep(b), -math.inf).softmax(-1) @ b

    heads = handwritten._heads
    case = Case(
        Two,
        handwritten.contract(heads("q", "seq"), heads("a", "seq"), heads("b", "mem"), outputs=(heads("y", "seq"),)),
        "causal",
    )
    found = capture(Two().eval(), case.io)
    assert [each.name for each in found.attentions] == ["module", "module#1"]
    for target in ("onnx_18", "ort_cpu"):
        model = ir.from_proto(ir.to_proto(found.model))
        result = base.get(target).lower(model, found.attentions, plan="fp32")
        assert set(result.forms) == {"module", "module#1"}
        check_numbers(result.model, case, on_ort=True, within=2e-5)


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
    with pytest.raises(UsageError, match="onnx: got plan 'fp16'"):
        lowered("one_head", "onnx", "fp16")
    with pytest.raises(UsageError, match="target 'tensor_flow': there is none"):
        base.get("tensor-flow")
    assert base.get("ort-cpu").name == "ort_cpu"


def test_only_a_bias_that_can_be_minus_infinity_can_hide() -> None:
    def bias_of(name: str) -> ir.Value:
        attention = recognise(model_of(name), captured(name)[1], masks=ALL[name].io.masks).attentions[0]
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
    check_numbers(model, CASES["masked_fill"], on_ort=False, within=2e-5)


@pytest.mark.parametrize("scale", [1.0, 0.125, 0.17677669, 3.0, 1e-4, 40.0, -2.0])
def test_a_scale_is_split_into_one_on_q_and_an_exact_one_on_the_scores(scale: float) -> None:
    from attnport.exporter.forms.tiled import split_scale

    on_q, on_scores = split_scale(scale)
    assert on_q * on_scores == pytest.approx(scale, rel=1e-15)
    if scale > 0:
        assert on_scores != 1.0
        assert np.log2(on_scores) == round(np.log2(on_scores))
