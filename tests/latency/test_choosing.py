"""The choice among runtimes and precisions: the fastest, unless a plainer one is not shown to be slower."""

from __future__ import annotations

import dataclasses

from attnport.artifacts import Candidate, Interval, LatencyReport, LatencyRow
from attnport.latency.choosing import choose

SHAPE = "8x128"


def candidate(runtime: str, plan: str, ms: float, threads: int = 1, verdict: str = "") -> Candidate:
    form = runtime if plan == "fp32" else f"{runtime}.{plan}"
    return Candidate(runtime, form, plan, threads, verdict, "", ms={SHAPE: ms})


def chosen(*candidates: Candidate, unsure: tuple[str, str] = ("", "")) -> tuple[Candidate, ...]:
    """The result, where intervals are narrow but for the two forms in `unsure`."""
    names: dict[float, str] = {}
    latency = {}
    for threads in {one.threads for one in candidates}:
        rows = {}
        for one in candidates:
            if one.threads == threads:
                rows[one.form] = LatencyRow("faster", "", median_ns=one.ms[SHAPE] * 1e6)
                names[one.ms[SHAPE] * 1e6] = one.form
        latency[threads] = LatencyReport(baseline="", settings={}, shapes={SHAPE: rows}, items={}, tokens={})

    def compare(ours: LatencyRow, theirs: LatencyRow) -> Interval | None:
        assert ours.median_ns is not None
        assert theirs.median_ns is not None
        ratio = ours.median_ns / theirs.median_ns
        wide = {names[ours.median_ns], names[theirs.median_ns]} == set(unsure)
        return (ratio * 0.5, ratio, ratio * 2) if wide else (ratio * 0.99, ratio, ratio * 1.01)

    return choose(candidates, latency, compare)


def test_the_fastest_is_chosen_and_comes_first() -> None:
    found = chosen(candidate("ort_cpu", "fp32", 10), candidate("openvino", "int8", 4), candidate("openvino", "bf16", 6))
    assert [(one.form, one.verdict) for one in found] == [
        ("openvino.int8", "chosen"),
        ("openvino.bf16", "slower"),
        ("ort_cpu", "slower"),
    ]
    assert "1.50 times" in found[1].reason


def test_a_plainer_precision_stands_where_none_is_shown_to_be_faster() -> None:
    found = chosen(
        candidate("openvino", "bf16", 5), candidate("openvino", "int8", 4.9), unsure=("openvino.bf16", "openvino.int8")
    )
    assert found[0].form == "openvino.bf16"
    assert (found[1].verdict, found[1].reason) == ("no faster", "not shown to be faster than openvino.bf16")


def test_what_is_refused_is_not_chosen_though_it_is_faster() -> None:
    found = chosen(candidate("openvino", "int8", 1, verdict="refused"), candidate("ort_cpu", "fp32", 10))
    assert [(one.form, one.verdict) for one in found] == [("ort_cpu", "chosen"), ("openvino.int8", "refused")]


def test_more_threads_are_compared_by_medians() -> None:
    found = chosen(candidate("ort_cpu", "fp32", 10), candidate("ort_cpu", "fp32", 6, threads=2))
    assert (found[0].threads, found[0].verdict) == (2, "chosen")


def test_without_times_nothing_is_chosen() -> None:
    lost = dataclasses.replace(candidate("ort_cpu", "fp32", 1, verdict="NOT_RUN"), ms={})
    assert [one.verdict for one in choose([lost], {}, lambda ours, theirs: None)] == ["NOT_RUN"]
