"""Which ways to write an attention the installed runtimes take, and that wrong answers are not taken for right ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from attnport.artifacts import Capabilities, Evidence, Session
from attnport.errors import ArtifactError
from attnport.runtimes import base
from attnport.runtimes._attention_forms import FORMS, FUSED, RUNS, tried


@pytest.fixture(scope="module", params=["ort_cpu", "openvino", "onnx_reference"])
def answered(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    runtime = base.get(request.param)
    found = runtime.probe()
    if not found.available:
        pytest.skip(found.reason)
    return request.param, tried(runtime, found.plans)


def test_every_form_gets_one_answer(answered: tuple[str, dict[str, str]]) -> None:
    _, forms = answered
    assert list(forms) == list(FORMS)
    assert all(answer in (FUSED, RUNS) or answer.startswith("refused: ") for answer in forms.values())
    assert forms["Attention, bool mask [B,1,S,T]"] in (FUSED, RUNS)


def test_answers_tell_the_runtimes_apart(answered: tuple[str, dict[str, str]]) -> None:
    name, forms = answered
    if name == "ort_cpu":
        assert forms["Attention"] == forms["MultiHeadAttention (com.microsoft)"] == FUSED
        assert forms["decomposed"] == RUNS
    elif name == "openvino":
        assert forms["Attention, bool mask [B,1,1,T]"] == FUSED
        assert forms["decomposed, rows zeroed on the probabilities"] == RUNS
    else:
        assert set(forms.values()) == {RUNS}  # it gives no evidence


class Fake(base.Runtime):
    name = "fake"
    opens = "onnx"

    def __init__(self, evidence: Mapping[str, Evidence], error: Exception | None = None) -> None:
        self.found, self.error = evidence, error

    def probe(self) -> Capabilities:
        return Capabilities(self.name, True)

    def open(self, opening: base.Opening) -> Session:
        raise self.error or AssertionError("not to be opened")

    def fusion_evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str = "fp32"
    ) -> dict[str, Evidence]:
        return dict(self.found)


def test_evidence_of_another_attention_proves_nothing() -> None:
    assert set(tried(Fake({"": Evidence("k", "t")}), ["fp32"]).values()) == {FUSED}
    wrong = Fake({"another": Evidence("k", "t")}, ArtifactError("a.onnx: no"))
    refused = set(tried(wrong, ["fp32"]).values())
    assert refused == {"refused: a.onnx: no"}


def test_an_exception_of_a_runtimes_own_is_an_answer() -> None:
    assert set(tried(Fake({}, ValueError("no kernel\nfor it")), ["fp32"]).values()) == {"refused: no kernel"}


@pytest.mark.parametrize("name", ["torch_eager", "tensorrt_rtx"])
def test_a_runtime_that_opens_no_onnx_file_has_none(name: str) -> None:
    assert tried(base.get(name), ["fp32"]) == {}


def test_what_has_no_single_precision_is_asked_in_half() -> None:
    plans: list[str] = []

    class Half(Fake):
        def fusion_evidence(
            self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str = "fp32"
        ) -> dict[str, Evidence]:
            plans.append(plan)
            return dict(self.found)

    tried(Half({"": Evidence("k", "t")}), ["fp16_islands", "fp16"])
    assert set(plans) == {"fp16"}
    reference = base.get("onnx_reference")
    answers = tried(reference, ["fp16"])  # the graphs are right in that type, too
    assert {name for name, answer in answers.items() if answer == RUNS} >= set(FORMS) - {
        "MultiHeadAttention (com.microsoft)"
    }
