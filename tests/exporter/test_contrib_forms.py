"""ONNX Runtime's own operators compute the attention that was recognised, and are taken only where they do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from masked_cases import CASES, SIZES, Attend
from representatives import representatives
from running import Exported, Run, distance, export, on_ort, on_reference
from spellings import CASES as SPELLINGS
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.exporter.builder import Builder
from attnport.exporter.contrib import group_query, multi_head
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.targets import base
from attnport.exporter.targets.base import Lowered, Lowering, Written
from attnport.exporter.targets.ort_cpu import LONG, LONG_MASKED
from attnport.onnx_graph import CONTRIB

pytest.importorskip("onnxruntime")

MULTI_HEAD = [name for name in CASES if name != "softcap"]
GROUP_QUERY = [name for name in CASES if CASES[name].grouped_operator]
OF_KEYS = ["padding", "grouped", "padding_expanded", "lengths"]
WITH_EMPTY_ROWS = [name for name in CASES if CASES[name].can_be_empty]
QUICK = ("none", "causal_cross", "padding", "window", "bias_padding", "lengths", "causal_lengths", "grouped", "softcap")
"""One of each way in which an operator is told its mask."""


def quick(names: Iterable[Any]) -> list[Any]:
    """The names, alone or behind an operator, those that are not in `QUICK` as slow tests."""
    every = list(names)
    return representatives(every, [one for one in every if (one[1] if isinstance(one, tuple) else one) in QUICK])


class Forced(Lowering):
    """One operator, wherever it can stand for the attention."""

    name = "forced"
    opset = 23
    plans = ("fp32", "fp16")

    def __init__(self, operator: str, *, key_column: bool = False, by_lengths: bool = False) -> None:
        self.grouped, self.key_column = operator == "GroupQueryAttention", key_column
        self.by_lengths = by_lengths

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        assert not (group_query.why_not_group_query if self.grouped else multi_head.why_not_multi_head)(attention)
        if self.grouped:
            output, anchors = group_query.group_query_attention(build, masks, attention)
        else:
            output, anchors = multi_head.multi_head_attention(
                build, masks, attention, key_column=self.key_column, by_lengths=self.by_lengths
            )
        return Written(output, "forced", anchors)


@functools.cache
def captured(name: str) -> Exported:
    return export(Attend(CASES[name].mask, CASES[name].cap), CASES[name].io)


def lowered(name: str, lowering: str | Lowering, plan: str = "fp32") -> Lowered:
    result = captured(name).lowered(lowering, plan)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    return result


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.domain == CONTRIB]


def error(name: str, model: ir.Model, on: Callable[[ir.Model], Run], *, empty: bool = False) -> float:
    """The largest error over all sizes; infinite for what is not finite."""
    largest, run = 0.0, on(model)
    for sizes in SIZES:
        given = CASES[name].feeds(sizes, empty=empty)
        got, expected = run(given)[0].astype(np.float64), CASES[name].reference(given)
        if empty:
            assert (got[0] == 0).all()
            assert sizes["batch"] == 1 or np.abs(got[1:]).min() > 0
        largest = max(largest, distance([got], [expected]))
    return largest


@pytest.mark.parametrize(
    ("operator", "name"),
    quick(
        [
            *(("MultiHeadAttention", name) for name in MULTI_HEAD),
            *(("GroupQueryAttention", name) for name in GROUP_QUERY),
        ]
    ),
)
def test_an_operator_computes_every_mask_that_it_is_given(operator: str, name: str) -> None:
    model = lowered(name, Forced(operator)).model
    assert operators(model) == [operator]
    for on in (on_ort, on_reference):
        assert error(name, model, on) < 2e-6


@pytest.mark.parametrize(
    "name", quick(["padding", "grouped", "padding_expanded", "lengths", "causal_padding", "bias_padding"])
)
def test_a_mask_of_keys_alone_can_be_a_column_of_q_and_k(name: str) -> None:
    model = lowered(name, Forced("MultiHeadAttention", key_column=True)).model
    (node,) = (node for node in model.graph if node.domain == CONTRIB)
    assert (len(node.inputs) == 3) is (name in OF_KEYS)
    for run in (on_ort, on_reference):
        assert error(name, model, run) < 2e-6
        assert error(name, model, run, empty=True) < 2e-6


def test_lengths_go_in_as_such_on_cuda_and_are_what_a_bias_is() -> None:
    models = [lowered("lengths", Forced("MultiHeadAttention", by_lengths=whether)).model for whether in (True, False)]
    for sizes in SIZES:
        for empty in (False, True):
            given = CASES["lengths"].feeds(sizes, empty=empty)
            by_lengths, by_bias = (on_ort(model)(given)[0] for model in models)
            np.testing.assert_array_equal(by_lengths, by_bias)
            np.testing.assert_allclose(by_lengths, CASES["lengths"].reference(given), atol=2e-6)
    for name, plan, dtype in (
        ("lengths", "fp16", ir.DataType.INT32),
        ("lengths", "bf16", ir.DataType.INT32),
        ("lengths", "fp32", None),
        ("padding", "fp16", None),
    ):
        (node,) = (node for node in lowered(name, "ort_cuda", plan).model.graph if node.domain == CONTRIB)
        mask = node.inputs[4] if len(node.inputs) > 4 else None
        assert (mask and mask.dtype, len(node.inputs) > 5) == (dtype, dtype is None), name
    on = on_reference(lowered("lengths", "ort_cuda", "fp16").model)
    given = CASES["lengths"].feeds(SIZES[0], empty=True)
    np.testing.assert_allclose(on(given)[0], CASES["lengths"].reference(given), atol=4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 700, 1500])
def test_a_column_hides_keys_in_every_block_of_the_flash_kernel(length: int) -> None:
    sizes = {"batch": 2, "seq": length, "mem": length}
    run = on_ort(lowered("padding", Forced("MultiHeadAttention", key_column=True)).model)
    for hidden in (slice(0, length - 1), slice(1, length), slice(length // 4, length // 2), slice(length, length)):
        given = CASES["padding"].feeds(sizes)
        given["mask"][:] = 1
        given["mask"][:, hidden] = 0
        expected = CASES["padding"].reference(given)
        assert distance(run(given), [expected]) < 2e-6
        given["k"][:, :, hidden] = given["v"][:, :, hidden] = 1e4  # what is hidden has no influence
        assert distance(run(given), [expected]) < 2e-6
        if hidden.start < hidden.stop:
            shown = given | {"mask": np.ones_like(given["mask"])}
            assert distance(run(shown), [expected]) > 1


@pytest.mark.parametrize("run", [on_ort, on_reference])
@pytest.mark.parametrize("name", quick(WITH_EMPTY_ROWS))
def test_a_row_with_no_allowed_key_gives_zero(name: str, run: Callable[[ir.Model], Run]) -> None:
    for operator in ("MultiHeadAttention", "GroupQueryAttention")[: 1 + CASES[name].grouped_operator]:
        assert error(name, lowered(name, Forced(operator)).model, run, empty=True) < 2e-6


def test_a_bias_that_hides_every_key_of_a_row_gives_zero() -> None:
    for name in ("bias", "bias_padding"):
        given = CASES[name].feeds(SIZES[0])
        given["bias"][:, 1, 2] = -np.inf
        model = lowered(name, Forced("MultiHeadAttention")).model
        for got in (on_ort(model)(given)[0], on_reference(model)(given)[0]):
            assert (got[:, 1, 2] == 0).all()
            np.testing.assert_allclose(got, CASES[name].reference(given), atol=2e-6)


@pytest.mark.parametrize("name", quick(CASES))
def test_the_cuda_form_in_half_precision_stays_close(name: str) -> None:
    case, result = CASES[name], lowered(name, "ort_cuda", "fp16")
    assert result.forms == lowered(name, "ort_cuda", "bf16").forms
    (form,) = result.forms.values()
    assert form == ("GroupQueryAttention" if case.grouped_operator else "MultiHeadAttention")
    values = [*result.model.graph.inputs, *result.model.graph.outputs, *result.model.graph.initializers.values()]
    assert ir.DataType.FLOAT not in {value.dtype for value in values}
    assert 0 < error(name, result.model, on_reference) < 0.01
    if name in WITH_EMPTY_ROWS:
        assert error(name, result.model, on_reference, empty=True) < 0.01


@pytest.mark.parametrize("name", quick(CASES))
def test_the_cuda_form_in_float32_has_no_grouped_operator(name: str) -> None:
    result = lowered(name, "ort_cuda", "fp32")
    assert operators(result.model) == ([] if name == "softcap" else ["MultiHeadAttention"])
    assert error(name, result.model, on_ort) < 2e-6


@pytest.mark.parametrize("name", quick(CASES))
def test_the_cuda_form_gives_no_mask_as_key_padding(name: str) -> None:
    for node in lowered(name, "ort_cuda", "fp32").model.graph:
        if node.op_type == "MultiHeadAttention":
            padding, bias = [*node.inputs, None, None, None][4:6]
            assert padding is None
            assert (bias is None) is (name in ("none", "cross", "causal", "grouped_causal"))


class MeanOfValues(Lowering):
    """The form of CUDA, on a kernel that gives the mean of v in rows without an allowed key."""

    name, opset, plans = "mean_of_values", 23, ("fp32",)

    def __init__(self, form: str) -> None:
        self.form = form

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        if self.form == "Attention":
            attention = replace(attention, softcap=50.0)
        return base.get("ort_cuda").write(build, masks, attention, plan)


def with_lowest(model: ir.Model) -> ir.Model:
    """With the lowest number for each -inf that is added to scores: the kernel then gives the mean of v, and no NaN."""
    for node in list(model.graph):
        if node.op_type in ("MultiHeadAttention", "Attention"):
            at = 5 if node.op_type == "MultiHeadAttention" else 3
            if len(node.inputs) > at and (mask := node.inputs[at]) is not None:
                build = Builder(model)
                build.before = node
                if mask.dtype == ir.DataType.BOOL:
                    zero, low = build.const(0.0, np.float32), build.const(LOW, np.float32)
                    node.replace_input_with(at, build.op("Where", mask, zero, low, dtype=ir.DataType.FLOAT))
                else:
                    node.replace_input_with(at, build.op("Max", mask, build.const(LOW, np.float32)))
    return model


LOW = -1e30


@pytest.mark.parametrize("form", ["MultiHeadAttention", "Attention"])
@pytest.mark.parametrize("name", representatives([*WITH_EMPTY_ROWS, "bias"], ["padding", "causal_lengths", "bias"]))
def test_a_row_without_a_key_is_zero_on_cuda_where_the_kernel_gives_the_mean_of_the_values(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(model: ir.Model) -> np.ndarray[Any, Any]:
        given = CASES[name].feeds(SIZES[0], empty=name != "bias")
        if "bias" in given:
            given["bias"][:, 1, 2] = -np.inf
        got = on_ort(with_lowest(model))(given)[0]
        assert np.isfinite(got).all()
        return got[:, 1, 2] if name == "bias" else got[0]

    result = lowered(name, MeanOfValues(form))
    assert [said.startswith(form) for said in result.forms.values()] == [True]
    assert (rows(result.model) == 0).all()
    monkeypatch.setattr("attnport.exporter.targets.ort_cuda.guarded", lambda *given: given[-1])
    monkeypatch.setattr(multi_head, "guarded", lambda *given, **options: given[-1])
    assert (rows(captured(name).lowered(MeanOfValues(form), "fp32").model) != 0).any()


@pytest.mark.parametrize("name", ["none", "cross", "causal"])
def test_a_row_that_always_has_a_key_is_not_guarded_on_cuda(name: str) -> None:
    for form in ("MultiHeadAttention", "Attention"):
        assert "Where" not in {node.op_type for node in lowered(name, MeanOfValues(form)).model.graph}


def test_scores_that_overflow_half_precision_are_seen_to() -> None:
    given = CASES["none"].feeds(SIZES[0])
    given["q"] *= 1e3
    given["k"] *= 1e3
    whole, half = (lowered("none", "ort_cuda", plan).model for plan in ("fp32", "fp16"))
    assert np.isfinite(on_reference(whole)(given)[0]).all()
    assert not np.isfinite(on_reference(half)(given)[0]).all()


def test_only_what_the_grouped_operator_computes_is_given_to_it() -> None:
    reasons: dict[str, str] = {}

    class Asked(Forced):
        def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
            reasons[name] = group_query.why_not_group_query(attention)
            return super().write(build, masks, attention, plan)

    for name in MULTI_HEAD:
        lowered(name, Asked("MultiHeadAttention"))
    assert [name for name, reason in reasons.items() if not reason] == [n for n in GROUP_QUERY if n in MULTI_HEAD]
    assert "as many queries as keys" in reasons["causal_cross"]
    assert "window" in reasons["window"]
    assert "padding" in reasons["causal_padding"]


def test_what_is_transposed_before_an_attention_is_taken_from_before() -> None:
    case = SPELLINGS["padding_sdpa"]
    result = export(case.module(), case.io).lowered(Forced("MultiHeadAttention"))
    (operator,) = (node for node in result.model.graph if node.domain == CONTRIB)
    for value in operator.inputs[:3]:
        assert value is not None
        producer = value.producer()
        assert producer is not None
        assert producer.op_type == "Reshape"
        assert producer.inputs[0] is not None
        assert getattr(producer.inputs[0].producer(), "op_type", "") != "Transpose"
    feeds = case.feeds({"batch": 2, "seq": 5})
    np.testing.assert_allclose(on_ort(result.model)(feeds)[0], case.reference(feeds)[0], atol=2e-6)


def test_one_mask_serves_all_layers() -> None:
    class Two(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            keep = mask.bool()[:, None, None, :].expand(-1, -1, q.shape[2], -1)
            return sdpa(sdpa(q, k, v, attn_mask=keep) + q, k, v, attn_mask=keep)

    result = export(Two(), CASES["padding"].io).lowered(Forced("MultiHeadAttention"))
    first, second = (node.inputs[5] for node in result.model.graph if node.domain == CONTRIB)
    assert first is second


def test_the_domain_is_imported_once_and_survives_the_clean_up() -> None:
    model = lowered("padding", Forced("MultiHeadAttention")).model
    assert model.graph.opset_imports == {"": 23, CONTRIB: 1}
    plain = lowered("padding", "onnx").model
    assert CONTRIB not in plain.graph.opset_imports


def test_a_mask_that_is_not_the_cases_is_noticed() -> None:
    model = lowered("causal", Forced("MultiHeadAttention")).model
    with pytest.raises(AssertionError):
        assert error("none", model, on_ort) < 2e-6


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "GroupQueryAttention"])
def test_a_missing_guard_is_noticed(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (group_query, multi_head):
        monkeypatch.setattr(module, "guarded", lambda build, masks, attention, output, **options: output)
    model = lowered("causal_lengths", Forced(operator)).model
    with pytest.raises(AssertionError):
        error("causal_lengths", model, on_ort, empty=True)


def test_the_evaluators_operators_refuse_what_they_do_not_know() -> None:
    from onnx.reference import ReferenceEvaluator

    from attnport.runtimes._reference_ops import contrib_ops

    def run(call: str) -> None:
        text = (
            '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g '
            "(float[B,S,16] q, int32[1] n, int32[1] one) "
            f"=> (float[B,S,16] y) {{ y = com.microsoft.{call} }}"
        )
        evaluator = ReferenceEvaluator(onnx.parser.parse_model(text), new_ops=contrib_ops())
        n, one = (np.array([number], np.int32) for number in (2, 1))
        evaluator.run(None, {"q": np.ones((1, 2, 16), np.float32), "n": n, "one": one})

    with pytest.raises(NotImplementedError, match="MultiHeadAttention with inputs behind past_v"):
        run("MultiHeadAttention<num_heads=2>(q, q, q, , , , , , n)")
    with pytest.raises(NotImplementedError, match="not causal"):
        run("GroupQueryAttention<num_heads=2, kv_num_heads=2, causal=0>(q, q, q, , , one, n)")
    with pytest.raises(ValueError, match="last keys"):
        run("GroupQueryAttention<num_heads=2, kv_num_heads=2>(q, q, q, , , n, n)")


@pytest.mark.parametrize(
    ("name", "usual", "form"),
    [
        ("none", LONG - 1, "Attention"),
        ("none", LONG, "MultiHeadAttention"),
        ("cross", LONG, "MultiHeadAttention"),
        ("causal", LONG - 1, "Attention"),
        ("causal", LONG, "GroupQueryAttention"),
        ("softcap", LONG, "GroupQueryAttention"),
        ("causal_cross", LONG, "Attention"),
        ("padding", LONG - 1, "Attention"),
        ("padding", LONG, "MultiHeadAttention"),
        ("lengths", LONG, "MultiHeadAttention"),
        ("bias_padding", LONG_MASKED - 1, "Attention"),
        ("grouped", LONG_MASKED - 1, "Attention"),
        ("bias_padding", LONG_MASKED, "MultiHeadAttention"),
        ("grouped", LONG_MASKED, "MultiHeadAttention"),
        ("padding", 0, "Attention"),
    ],
)
def test_the_cpu_form_is_the_fastest_for_the_usual_length(name: str, usual: int, form: str) -> None:
    class Sized(Forced):
        def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
            build.sizes = {CASES[name].key: usual} if usual else {}
            return base.get("ort_cpu").write(build, masks, attention, plan)

    result = lowered(name, Sized(""))
    (said,) = result.forms.values()
    (anchors,) = result.anchors.values()
    (node,) = (node for node in result.model.graph if node.name in anchors)
    assert node.op_type == form
    assert said.startswith(form)
    assert (str(usual) in said) is (form != "Attention")
    assert error(name, result.model, on_ort) < 2e-6


@pytest.mark.parametrize("usual", [1, LONG_MASKED])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("none", "MultiHeadAttention"),
        ("padding", "MultiHeadAttention"),
        ("causal", "Attention"),
        ("bias_padding", "Attention"),
        ("grouped", "Attention"),
    ],
)
def test_half_precision_has_the_operator_of_webgpu_where_that_is_right(name: str, form: str, usual: int) -> None:
    class Sized(Forced):
        def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
            build.sizes = {CASES[name].key: usual}
            return base.get("ort_cpu").write(build, masks, attention, plan)

    result = lowered(name, Sized(""), "fp16")
    (anchors,) = result.anchors.values()
    (node,) = (node for node in result.model.graph if node.name in anchors)
    assert node.op_type == form
    mask = node.inputs[5] if len(node.inputs) > 5 else None
    assert form == "Attention" or mask is None  # hidden keys are a column of q and k
    assert error(name, result.model, on_reference) < 2e-2
