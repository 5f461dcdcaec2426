"""What is chosen: the fastest of what is right, or a plainer one that is not shown to be slower; nothing else ever."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.artifacts import (
    Candidate,
    CaseResult,
    LatencyReport,
    LatencyRow,
    ParityReport,
    RuntimeParity,
    TuneReport,
    Verdict,
)
from attnport.latency.choice import choose, rank
from attnport.reporting.choice import Choice, Deployable
from attnport.verbs import _deployables

SHAPE = "8x128"


def row(name: str, ms: float, noise: float = 0.01) -> LatencyRow:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    samples = tuple(int(ms * 1e6 * one) for one in np.exp(rng.normal(0, noise, 41)))
    return LatencyRow("faster", "", median_ns=ms * 1e6, samples_ns=samples)


def candidate(runtime: str, plan: str, ms: float, threads: int = 1, verdict: str = "") -> Candidate:
    form = runtime if plan == "fp32" else f"{runtime}.{plan}"
    return Candidate(runtime, form, plan, threads, verdict, "", ms={SHAPE: ms})


def ranked(*candidates: Candidate, noise: float = 0.01) -> tuple[Candidate, ...]:
    latency = {}
    for threads in {one.threads for one in candidates}:
        rows = {one.form: row(one.form, one.ms[SHAPE], noise) for one in candidates if one.threads == threads}
        latency[threads] = LatencyReport(baseline="", settings={}, shapes={SHAPE: rows}, items={}, tokens={})
    return rank(candidates, latency)


def test_the_fastest_candidate_is_chosen_and_comes_first() -> None:
    found = ranked(candidate("ort_cpu", "fp32", 10), candidate("openvino", "int8", 4), candidate("openvino", "bf16", 6))
    assert [(one.form, one.verdict) for one in found] == [
        ("openvino.int8", "chosen"),
        ("openvino.bf16", "slower"),
        ("ort_cpu", "slower"),
    ]
    assert "1.50 times" in found[1].reason


def test_a_plainer_precision_stands_where_none_is_shown_to_be_faster() -> None:
    found = ranked(candidate("openvino", "bf16", 5), candidate("openvino", "int8", 4.9), noise=0.2)
    assert found[0].form == "openvino.bf16"
    assert found[0].reason == "in a plainer precision than openvino.int8, which is not shown to be faster"
    assert found[1].verdict == "no faster"
    assert re.fullmatch(
        rf"not shown to be faster than openvino\.bf16: it takes \d\.\d\d \[0\.\d\d, 1\.\d\d\] of its time on {SHAPE}",
        found[1].reason,
    )


def test_the_workload_that_decides_is_told_with_its_ratio_and_interval() -> None:
    alone = ranked(candidate("ort_cpu", "fp32", 10), candidate("openvino", "fp32", 4))
    assert alone[0].reason == f"by {SHAPE} alone"
    assert re.fullmatch(
        rf"2\.5\d times the chosen one's; decided by {SHAPE}, where the chosen one takes 0\.40 "
        r"\[0\.\d\d, 0\.4\d\] of its time",
        alone[1].reason,
    )
    rows = {
        "short": {"ort_cpu": row("ort_cpu", 1.0), "openvino": row("openvino", 1.1)},
        "long": {"ort_cpu": row("ort_cpu", 30), "openvino": row("openvino", 10)},
    }
    both = [candidate(name, "fp32", 1) for name in ("ort_cpu", "openvino")]
    found = rank(both, {1: LatencyReport("", {}, rows, {}, {})})
    assert [(one.form, one.verdict) for one in found] == [("openvino", "chosen"), ("ort_cpu", "slower")]
    assert found[0].reason == "the least mean over 2 workloads"
    assert "decided by long, where the chosen one takes 0.33 [" in found[1].reason


def test_what_is_refused_is_not_chosen_though_it_is_faster() -> None:
    found = ranked(candidate("openvino", "int8", 1, verdict="refused"), candidate("ort_cpu", "fp32", 10))
    assert [(one.form, one.verdict) for one in found] == [("ort_cpu", "chosen"), ("openvino.int8", "refused")]


def test_more_threads_are_compared_by_medians() -> None:
    found = ranked(candidate("ort_cpu", "fp32", 10), candidate("ort_cpu", "fp32", 6, threads=2))
    assert (found[0].threads, found[0].verdict) == (2, "chosen")


def test_without_times_no_candidate_is_chosen() -> None:
    lost = dataclasses.replace(candidate("ort_cpu", "fp32", 1, verdict="NOT_RUN"), ms={})
    assert [one.verdict for one in rank([lost], {})] == ["NOT_RUN"]


def deployable(name: str, plan: str = "fp32", **changes: Any) -> Deployable:
    named = name if plan == "fp32" else f"{name}.{plan}"
    made = Deployable(named, "onnxruntime", plan, {f"model.{named}.onnx": 1}, "PASS", "", name)
    return dataclasses.replace(made, **changes)


FORMS = (deployable("ort_cpu"), deployable("openvino"))


def parity(**verdicts: Verdict) -> ParityReport:
    rows = {name: RuntimeParity(verdict, f"{name} says {verdict}", "fp32") for name, verdict in verdicts.items()}
    return ParityReport("FAIL" if "FAIL" in verdicts.values() else "PASS", rows, {})


def latency(noise: float = 0.01, **medians_ms: tuple[float | None, ...]) -> LatencyReport:
    """Medians by runtime, one a workload; None = not timed."""
    shapes: dict[str, dict[str, LatencyRow]] = {}
    for name, medians in medians_ms.items():
        for place, ms in enumerate(medians):
            lost = LatencyRow(reason=f"{name} broke", kind="died")
            shapes.setdefault(f"w{place}", {})[name] = lost if ms is None else row(f"{name}{place}", ms, noise)
    return LatencyReport("torch_eager", {}, shapes, {}, {})


def advice(
    checked: ParityReport | None,
    timed: LatencyReport | None,
    forms: Sequence[Deployable] = FORMS,
    folder: str = "out/",
) -> Choice:
    return choose(folder, forms, checked, timed)


BOTH = parity(torch_eager="PASS", ort_cpu="PASS", openvino="PASS")
FAST = latency(torch_eager=(10, 20), ort_cpu=(5, 11), openvino=(4, 8))


def chosen(found: Choice) -> str:
    """The runtime of what is recommended."""
    assert found.deploy is not None
    return found.deploy.measured_as


def test_the_fastest_is_recommended_with_its_form_times_and_command() -> None:
    found = advice(BOTH, FAST)
    assert found.deploy == FORMS[1]
    assert found.commands == ("attnport bundle out/ -o app/ --form openvino --lang python",)
    assert [(name, one.median_ns) for name, one in found.rows.items()] == [("w0", 4e6), ("w1", 8e6)]


def test_a_folder_and_a_form_stand_in_the_command_as_a_shell_takes_them() -> None:
    found = advice(BOTH, FAST, [dataclasses.replace(FORMS[1], name="my form")], folder="'my out'")
    assert found.commands == ("attnport bundle 'my out' -o app/ --form 'my form' --lang python",)


def test_half_precision_is_recommended_with_what_fp32_would_take() -> None:
    half = deployable("openvino", "bf16")
    found = advice(BOTH, FAST, (FORMS[0], half))
    assert found.deploy == half
    assert found.notes == (
        "it computes in bf16, within the bound of PyTorch in bf16; "
        "in fp32 ort_cpu is the fastest, at 1.31 times its medians",
    )
    exact, rounded = (
        dataclasses.replace(
            BOTH.runtimes[name],
            cases=(CaseResult("usual", "y", "PASS", "", 8, error, 1.0, error, 1.0, error, 1.0, 0),),
        )
        for name, error in (("ort_cpu", 1e-6), ("openvino", 1.1e-2))
    )
    measured = advice(
        dataclasses.replace(BOTH, runtimes={"ort_cpu": exact, "openvino": rounded}), FAST, (FORMS[0], half)
    )
    assert "PyTorch in bf16, off by up to 1.1e-02 of the values; in fp32" in measured.notes[0]
    assert measured.notes[0].endswith("times its medians, off by up to 1.0e-06 of the values")
    alone = advice(parity(openvino="PASS"), FAST, [half])
    assert alone.notes == ("it computes in bf16, within the bound of PyTorch in bf16",)
    assert not any("computes in" in note for note in advice(BOTH, FAST).notes)


def test_integers_are_recommended_with_what_they_lose() -> None:
    lost = RuntimeParity("PASS", "judged by its metric: 6 layers in int8; worse by 0.10% (0.50% allowed)", "int8")
    name = "openvino.int8"
    checked = dataclasses.replace(BOTH, runtimes={**BOTH.runtimes, name: lost})
    timed = dataclasses.replace(FAST, shapes={w: {**rows, name: rows["openvino"]} for w, rows in FAST.shapes.items()})
    found = advice(checked, timed, [deployable("openvino", "int8", measured_as=name)])
    assert found.notes[0].startswith("it computes in int8: judged by its metric")


def test_half_precision_that_is_not_shown_to_be_faster_is_not_recommended() -> None:
    found = advice(BOTH, latency(0.3, ort_cpu=(4.1,), openvino=(4,)), (FORMS[0], deployable("openvino", "bf16")))
    assert chosen(found) == "ort_cpu"
    assert found.ties == ("openvino",)


@pytest.mark.parametrize("verdict", ["FAIL", "NOT_RUN"])
def test_what_is_not_shown_to_be_right_is_never_recommended_however_fast(verdict: Verdict) -> None:
    found = advice(parity(torch_eager="PASS", ort_cpu="PASS", openvino=verdict), FAST)
    assert chosen(found) == "ort_cpu"
    assert f"openvino says {verdict}" in found.others["openvino"]
    assert not [note for note in found.notes if "openvino" in note], "a wrong result is not praised as fast"


def test_what_was_not_checked_or_not_timed_on_every_workload_or_that_a_bundle_refuses_is_not_recommended() -> None:
    assert advice(parity(ort_cpu="PASS"), FAST).others["openvino"] == "parity was not checked"
    some = latency(ort_cpu=(5, 11), openvino=(4, None))
    assert advice(BOTH, some).others["openvino"] == "not timed on every workload: openvino broke"
    lacking = dataclasses.replace(latency(ort_cpu=(5, 11)), absent={"openvino": "no package"})
    assert advice(BOTH, lacking).others["openvino"] == "not timed: no package"
    refused = (FORMS[0], deployable("openvino", problem="a bundle refuses openvino: x"))
    assert advice(BOTH, FAST, refused).others["openvino"] == "a bundle refuses openvino: x"
    found = advice(BOTH, FAST, FORMS[:1])
    assert found.others["openvino"] == "no bundle can carry it"
    assert chosen(found) == "ort_cpu"


def test_what_is_right_and_faster_but_cannot_be_embedded_is_named() -> None:
    found = advice(BOTH, latency(torch_eager=(3, 20), ort_cpu=(5, 11)))
    why = "it runs the module in PyTorch, which no bundle carries"
    assert found.others["torch_eager"] == why
    assert found.notes[0] == f"torch_eager is faster than ort_cpu on w0, but {why}"


def test_no_difference_on_any_workload_is_a_tie_that_is_named() -> None:
    found = advice(BOTH, latency(0.3, ort_cpu=(4.1, 8.1), openvino=(4, 8)))
    assert chosen(found) == "openvino"
    assert found.ties == ("ort_cpu",)
    assert "no difference to openvino shown" in found.others["ort_cpu"]
    shown = advice(BOTH, latency(0.2, ort_cpu=(4.1, 16), openvino=(4, 8)))
    assert shown.ties == (), "on one workload it is slower"
    assert shown.others["ort_cpu"].endswith("no difference shown on w0")


def test_where_another_is_faster_after_all_it_is_said() -> None:
    found = advice(BOTH, latency(ort_cpu=(2, 80), openvino=(4, 8)))
    assert chosen(found) == "openvino"
    assert "ort_cpu is faster than openvino on w0" in found.notes


def test_a_choice_that_is_not_faster_than_the_baseline_says_so() -> None:
    rows = {"w0": {"ort_cpu": LatencyRow("slower", "", 9e6)}}
    found = advice(BOTH, LatencyReport("torch_eager", {}, rows, {}, {}))
    assert "on no workload is it shown to be faster than torch_eager" in found.notes


def test_runtimes_that_could_not_be_compared_are_no_tie() -> None:
    rows = {"w0": {"ort_cpu": LatencyRow("faster", "", 4.1e6), "openvino": LatencyRow("faster", "", 4e6)}}
    assert advice(BOTH, LatencyReport("torch_eager", {}, rows, {}, {})).ties == ()


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
    assert found.deploy is None
    assert found.reason.startswith(reason)
    assert list(found.commands) == [f"attnport {command}" for command in commands]


def test_without_any_form_the_way_begins_with_fuse() -> None:
    found = advice(BOTH, FAST, ())
    assert found.deploy is None
    assert found.commands[0] == "attnport fuse out/"


def test_every_runtime_but_the_chosen_one_has_a_reason() -> None:
    found = advice(parity(torch_eager="PASS", ort_cpu="PASS", openvino="PASS", ort_cuda="NOT_RUN"), FAST)
    assert {chosen(found), *found.others} == {"torch_eager", "ort_cpu", "openvino", "ort_cuda"}
    assert all(found.others.values())
    assert chosen(found) not in found.others


def test_the_verdict_of_other_runtimes_and_forms_takes_no_recommendation_away() -> None:
    assert chosen(advice(parity(ort_cpu="PASS", openvino="FAIL"), FAST)) == "ort_cpu"


def test_what_tune_chose_is_recommended_whatever_else_was_timed_before_but_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = (*FORMS, deployable("ort_cpu", "int8", measured_as="ort_cpu.int8"), deployable("tensorrt_rtx", "fp16"))
    names = [str(one.measured_as) for one in forms]
    checked = ParityReport("PASS", {name: RuntimeParity("PASS", "", "fp32") for name in names}, {})
    tuned = latency(**{"ort_cpu": (5, 11), "ort_cpu.int8": (4.5, 9)})
    ours = TuneReport("mine", 0.005, (candidate("ort_cpu", "int8", 4.5, verdict="chosen"),), {1: tuned})
    monkeypatch.setattr(_deployables, "of_folder", lambda *given: forms)
    monkeypatch.setattr(_deployables, "if_whole", lambda *given: ours)

    manifest: Any = None  # which is read by what is replaced above

    def recommended(timed: LatencyReport) -> str:
        return chosen(_deployables.advise(Path("out"), manifest, checked, timed))

    assert recommended(FAST) == "ort_cpu.int8", "though openvino was faster, which was not to be tried"
    assert recommended(latency(tensorrt_rtx=(1, 2), openvino=(4, 8))) == "tensorrt_rtx"
