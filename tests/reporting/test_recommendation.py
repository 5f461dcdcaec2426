"""The recommendation: the fastest of what is right, timed and embeddable; ties named; nothing else ever recommended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import page_sample as sample
import pytest

from attnport.artifacts import Interval, LatencyReport, LatencyRow, ParityReport, RuntimeParity, Verdict
from attnport.reporting.recommendation import Embeddable, Recommendation, recommend

FORMS = {name: Embeddable(name, "fp32", f"model.{name}.onnx") for name in ("ort_cpu", "openvino")}


def parity(**verdicts: Verdict) -> ParityReport:
    rows = {name: RuntimeParity(verdict, f"{name} says {verdict}", "fp32") for name, verdict in verdicts.items()}
    return ParityReport("FAIL" if "FAIL" in verdicts.values() else "PASS", rows, {})


def latency(**medians_ms: tuple[float | None, ...]) -> LatencyReport:
    """Medians by runtime, one a workload; None = not timed."""
    shapes: dict[str, dict[str, LatencyRow]] = {}
    for name, row in medians_ms.items():
        for place, median in enumerate(row):
            made = LatencyRow("NOT_RUN", f"{name} broke") if median is None else LatencyRow("faster", "", median * 1e6)
            shapes.setdefault(f"w{place}", {})[name] = made
    return LatencyReport("torch_eager", {}, shapes, {}, {})


def within(share: float, one: LatencyRow, other: LatencyRow) -> Interval:
    middle = (one.median_ns or 0.0) / (other.median_ns or 1.0)
    return middle * (1 - share), middle, middle * (1 + share)


def advice(
    checked: ParityReport | None,
    timed: LatencyReport | None,
    forms: Mapping[str, Embeddable] = FORMS,
    share: float = 0.05,
    folder: str = "out/",
) -> Recommendation:
    return recommend(checked, timed, forms, lambda one, other: within(share, one, other), folder)


BOTH = parity(torch_eager="PASS", ort_cpu="PASS", openvino="PASS")
FAST = latency(torch_eager=(10, 20), ort_cpu=(5, 11), openvino=(4, 8))


def test_the_fastest_is_recommended_with_its_form_plan_times_and_command() -> None:
    found = advice(BOTH, FAST).choice
    assert found is not None
    assert (found.runtime, found.form, found.plan, found.file) == (
        "openvino",
        "openvino",
        "fp32",
        "model.openvino.onnx",
    )
    assert found.command == "attnport bundle out/ -o app/ --form openvino --lang python"
    assert [(one.workload, one.median_ns) for one in found.timings] == [("w0", 4e6), ("w1", 8e6)]


def test_a_folder_and_a_form_stand_in_the_command_as_a_shell_takes_them() -> None:
    found = advice(BOTH, FAST, {"openvino": Embeddable("my form", "fp32", "m")}, folder="'my out'").choice
    assert found is not None
    assert found.command == "attnport bundle 'my out' -o app/ --form 'my form' --lang python"


def test_half_precision_is_recommended_with_what_fp32_would_take() -> None:
    forms = {**FORMS, "openvino": Embeddable("openvino.bf16", "bf16", "model.openvino.bf16.onnx")}
    found = advice(BOTH, FAST, forms)
    assert found.choice is not None
    assert found.choice.plan == "bf16"
    assert found.notes == (
        "it computes in bf16, within the bound of PyTorch in bf16; "
        "in fp32 ort_cpu is the fastest, at 1.31 times its medians",
    )
    alone = advice(parity(openvino="PASS"), FAST, {"openvino": forms["openvino"]})
    assert alone.notes == ("it computes in bf16, within the bound of PyTorch in bf16",)
    assert not any("computes in" in note for note in advice(BOTH, FAST).notes)


@pytest.mark.parametrize("verdict", ["FAIL", "NOT_RUN"])
def test_what_is_not_shown_to_be_right_is_never_recommended_however_fast(verdict: Verdict) -> None:
    found = advice(parity(torch_eager="PASS", ort_cpu="PASS", openvino=verdict), FAST)
    assert found.choice is not None
    assert found.choice.runtime == "ort_cpu"
    assert f"openvino says {verdict}" in found.others["openvino"]
    assert not [note for note in found.notes if "openvino" in note], "a wrong result is not praised as fast"


def test_what_was_not_checked_or_not_timed_on_every_workload_or_that_a_bundle_refuses_is_not_recommended() -> None:
    assert advice(parity(ort_cpu="PASS"), FAST).others["openvino"] == "parity was not checked"
    some = latency(ort_cpu=(5, 11), openvino=(4, None))
    assert advice(BOTH, some).others["openvino"] == "not timed on every workload: openvino broke"
    refused = {**FORMS, "openvino": Embeddable("openvino", "fp32", "m", "a bundle refuses openvino: x")}
    assert advice(BOTH, FAST, refused).others["openvino"] == "a bundle refuses openvino: x"
    found = advice(BOTH, FAST, {"ort_cpu": FORMS["ort_cpu"]})
    assert found.others["openvino"] == "no bundle can carry it"
    assert found.choice is not None
    assert found.choice.runtime == "ort_cpu"


def test_what_is_right_and_faster_but_cannot_be_embedded_is_named() -> None:
    timed = latency(torch_eager=(3, 20), ort_cpu=(5, 11))
    found = advice(BOTH, timed, {**FORMS, "torch_eager": Embeddable("", "", "", "it needs PyTorch")})
    assert found.notes[0] == "torch_eager is faster than ort_cpu on w0, but it needs PyTorch"


def test_no_difference_on_any_workload_is_a_tie_that_is_named() -> None:
    found = advice(BOTH, latency(ort_cpu=(4.1, 8.1), openvino=(4, 8)), share=0.2)
    assert found.choice is not None
    assert found.choice.runtime == "openvino"
    assert found.ties == ("ort_cpu",)
    assert "no difference to openvino shown" in found.others["ort_cpu"]
    shown = advice(BOTH, latency(ort_cpu=(4.1, 12), openvino=(4, 8)), share=0.2)
    assert shown.ties == (), "on one workload it is slower"
    assert shown.others["ort_cpu"].endswith("no difference shown on w0")


def test_where_another_is_faster_after_all_it_is_said() -> None:
    found = advice(BOTH, latency(ort_cpu=(2, 80), openvino=(4, 8)))
    assert found.choice is not None
    assert found.choice.runtime == "openvino"
    assert "ort_cpu is faster than openvino on w0" in found.notes


def test_a_choice_that_is_not_faster_than_the_baseline_says_so() -> None:
    rows = {"w0": {name: LatencyRow("slower", "", 9e6) for name in ("ort_cpu",)}}
    found = advice(BOTH, LatencyReport("torch_eager", {}, rows, {}, {}))
    assert "on no workload is it shown to be faster than torch_eager" in found.notes


def test_runtimes_that_could_not_be_compared_are_no_tie() -> None:
    found = recommend(BOTH, latency(ort_cpu=(4.1,), openvino=(4,)), FORMS, lambda one, other: None, "out/")
    assert found.ties == ()


@pytest.mark.parametrize(
    ("checked", "timed", "reason", "commands"),
    [
        (None, None, "parity was not checked and nothing was timed", ["check out/", "bench out/"]),
        (None, FAST, "parity was not checked", ["check out/"]),
        (BOTH, None, "nothing was timed", ["bench out/"]),
        (parity(openvino="FAIL", ort_cpu="PASS"), None, "nothing was timed", ["check out/ --bisect", "bench out/"]),
        (parity(openvino="FAIL"), FAST, "no runtime passed parity", ["check out/ --bisect", "bench out/"]),
        (BOTH, latency(openvino=(None,)), "no runtime passed parity", ["check out/ --bisect", "bench out/"]),
        (parity(), latency(), "no runtime passed parity", ["check out/ --bisect", "bench out/"]),
    ],
)
def test_nothing_is_recommended_without_proof_and_the_way_there_is_named(
    checked: ParityReport | None, timed: LatencyReport | None, reason: str, commands: list[str]
) -> None:
    found = advice(checked, timed)
    assert found.choice is None
    assert found.reason.startswith(reason)
    assert list(found.commands) == [f"attnport {command}" for command in commands]


def test_without_any_form_the_way_begins_with_fuse() -> None:
    found = advice(BOTH, FAST, {"torch_eager": Embeddable("", "", "", "it needs PyTorch")})
    assert found.choice is None
    assert found.commands[0] == "attnport fuse out/"


def test_every_runtime_but_the_chosen_one_has_a_reason() -> None:
    found = sample.recommendation()
    assert found.choice is not None
    assert {found.choice.runtime, *found.others} == {*sample.parity().runtimes, *sample.latency().shapes["1 sentence"]}
    assert all(found.others.values())
    assert found.choice.runtime not in found.others


def test_the_verdict_of_other_runtimes_and_forms_takes_no_recommendation_away() -> None:
    found = sample.recommendation(fail=True)
    assert found.choice is not None
    assert found.choice.runtime == "ort_cpu"
    assert dataclasses.replace(found.choice, timings=()).form == "ort_cpu"
