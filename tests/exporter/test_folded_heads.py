"""Grouped heads behind a cache, with the query heads of a group as further queries of its key head."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import onnx_ir as ir
import pytest
from masked_cases import SIZES, Attend, Case, D, G, H, _all, _both, _causal, _hidden, _padding
from running import Exported, export, on_ort, on_reference

from attnport.dims import TensorSpec
from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.targets.base import Lowered, Written
from attnport.exporter.targets.ort_cuda import PROMPT, OrtCuda

pytest.importorskip("onnxruntime")

HIDDEN = TensorSpec("hidden", "float32", ("batch", "mem"))
MASK = TensorSpec("mask", "int64", ("batch", "mem"))
BIAS = TensorSpec("bias", "float32", (1, H, "seq", "mem"))
SHARED_BIAS = TensorSpec("bias", "float32", (1, 1, "seq", "mem"))
CASES = {
    "causal": Case("causal", _causal, key="mem", groups=G),
    "padding": Case("padding", _padding, (MASK,), key="mem", groups=G),
    "causal_padding": Case("causal", _both(_causal, _padding), (MASK,), key="mem", groups=G),
    "padding_expanded": Case("padding", _hidden, (HIDDEN,), key="mem", groups=G),
    "bias": Case("bias", _all, (BIAS,), key="mem", groups=G),
    "shared_bias": Case("bias", _all, (SHARED_BIAS,), key="mem", groups=G),
    "bias_padding": Case("padding", _padding, (MASK, BIAS), key="mem", groups=G),
}


@functools.cache
def captured(name: str) -> Exported:
    return export(Attend(CASES[name].mask, CASES[name].cap), CASES[name].io)


def lowered(name: str, plan: str = "fp32") -> Lowered:
    return captured(name).lowered("ort_cuda", plan)


def operator(model: ir.Model) -> ir.Node:
    (node,) = (node for node in model.graph if node.domain == "com.microsoft")
    return node


@pytest.mark.parametrize("run", [on_ort, on_reference])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_attention(name: str, run: object) -> None:
    ran = run(lowered(name).model)
    for sizes in SIZES:
        for empty in (False, True) if MASK in CASES[name].inputs else (False,):
            given = CASES[name].feeds(sizes, empty=empty)
            np.testing.assert_allclose(ran(given)[0], CASES[name].reference(given), atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_no_key_is_repeated(name: str) -> None:
    node = operator(lowered(name, "fp16").model)
    assert node.attributes["num_heads"].as_int() == G
    assert [value.name for value in node.inputs[1:3]] == ["k", "v"]
    assert lowered(name, "fp16").forms == lowered(name, "bf16").forms


def test_a_bias_that_hides_every_key_of_a_row_gives_zero() -> None:
    given = CASES["bias"].feeds(SIZES[0])
    given["bias"][:, 1, 2] = -np.inf
    got = on_ort(lowered("bias").model)(given)[0]
    assert (got[:, 1, 2] == 0).all()
    np.testing.assert_allclose(got, CASES["bias"].reference(given), atol=2e-6)


def test_queries_that_come_with_heads_last_are_taken_so() -> None:
    class Rows(Attend):
        def forward(self, q: object, k: object, v: object) -> object:
            return super().forward(q.transpose(1, 2), k, v)

    case = CASES["causal"]
    rows = TensorSpec("q", "float32", ("batch", "seq", H, D))
    io = dataclasses.replace(case.io, inputs=(rows, *case.io.inputs[1:]))
    model = export(Rows("causal"), io).lowered("ort_cuda").model
    given = case.feeds(SIZES[0])
    got = on_ort(model)({**given, "q": np.ascontiguousarray(given["q"].swapaxes(1, 2))})[0]
    np.testing.assert_allclose(got, case.reference(given), atol=2e-6)
    assert any(node.op_type == "Reshape" and node.inputs[0].name == "q" for node in model.graph)


def test_as_many_keys_as_queries_are_repeated() -> None:
    case = Case("padding", _padding, (TensorSpec("mask", "int64", ("batch", "seq")),), groups=G)
    model = export(Attend(case.mask), case.io).lowered("ort_cuda").model
    assert operator(model).attributes["num_heads"].as_int() == H


@pytest.mark.parametrize(("usual", "heads"), [(1, G), (PROMPT - 1, G), (PROMPT, H)])
def test_heads_of_a_prompt_are_repeated_as_its_bias_would_be_too_large(usual: int, heads: int) -> None:
    class Sized(OrtCuda):
        def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
            build.sizes = {"seq": usual, "mem": 512}
            return super().write(build, masks, attention, plan)

    assert operator(captured("padding").lowered(Sized(), "fp16").model).attributes["num_heads"].as_int() == heads
