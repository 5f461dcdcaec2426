"""Figures along layers and sizes: what is drawn is what was measured, and what is missing stays missing."""

from __future__ import annotations

import dataclasses
import math
import re

import page_sample as sample
import pytest

from attnport.artifacts import LatencyReport, LatencyRow, LayerReport
from attnport.parity.bound import FACTORS
from attnport.reporting.document import LineChart, Series, Text, scientific
from attnport.reporting.facts import BOUND, grid
from attnport.reporting.html import axis, describe, kinds
from attnport.reporting.html import line_chart as chart
from attnport.reporting.latency import scalings
from attnport.reporting.layers import first_beyond, layer_errors, layers


def test_errors_by_layer_are_relative_to_the_layer_and_have_their_bound() -> None:
    report = sample.layers()
    series = layer_errors(report)
    assert series.places[1] == "model.encoder.layer.0"
    assert list(series.lines) == ["torch_eager", "ort_cpu", "openvino", "bound"]
    assert series.lines["ort_cpu"][1] == pytest.approx(1.1e-7 * 2 / 0.5)
    assert series.lines["bound"][1] == pytest.approx(2.2e-7 * 2 / 0.5)


def test_each_precision_plan_has_a_bound_of_its_own() -> None:
    report = sample.layers()
    half = dataclasses.replace(report.runtimes["openvino"], plan="fp16")
    lines = layer_errors(dataclasses.replace(report, runtimes={**report.runtimes, "openvino": half})).lines
    assert [name for name in lines if name.startswith("bound")] == ["bound fp32", "bound fp16"]


def test_a_layer_without_a_scale_or_an_error_is_a_gap() -> None:
    report = sample.layers()
    layers = (dataclasses.replace(report.layers[0], reference_rms=0.0), *report.layers[1:])
    series = report.runtimes["ort_cpu"]
    errors = (*series.errors[:2], dataclasses.replace(series.errors[2], rms_error=None), *series.errors[3:])
    lines = layer_errors(LayerReport("c", layers, {"ort_cpu": dataclasses.replace(series, errors=errors)})).lines
    assert lines["ort_cpu"][0] is None
    assert lines["ort_cpu"][2] is None
    assert lines["ort_cpu"][3] is not None


def test_the_first_layer_beyond_its_bound_is_named_and_of_a_fine_model_none() -> None:
    assert first_beyond(sample.layers()) == {}
    assert first_beyond(sample.layers(fail=True)) == {"openvino": "model.encoder.layer.3"}


def test_each_dim_is_varied_with_the_others_kept() -> None:
    found = scalings(sample.grid_latency())
    assert [(times.axis, times.title, times.sizes) for times, _ in found] == [
        ("batch", "seq 32", (1, 8)),
        ("batch", "seq 64", (1, 8)),
        ("batch", "seq 128", (1, 8)),
        ("seq", "batch 1", (32, 64, 128)),
        ("seq", "batch 8", (32, 64, 128)),
    ]
    rows = sample.grid_latency().shapes
    expected = tuple(rows[f"batch=8,seq={size}"]["openvino"].median_ns for size in (32, 64, 128))
    assert found[-1][0].lines["openvino"] == expected
    assert "tensorrt_rtx" not in found[-1][0].lines, "it was never timed"


def test_sizes_are_in_their_order_and_one_size_or_sentences_are_no_series() -> None:
    row = {"ort_cpu": LatencyRow("faster", "", 1e6)}
    shapes = {"seq=128": row, "seq=32": {"ort_cpu": LatencyRow("faster", "", 5e5)}, "1 sentence": row, "batch=8": row}
    ((times, memory),) = scalings(LatencyReport("torch_eager", {}, shapes, {}, {}))
    assert times.sizes == (32, 128)
    assert times.lines == {"ort_cpu": (5e5, 1e6)}
    assert memory.lines == {}
    assert scalings(LatencyReport("torch_eager", {}, {"seq=32": row, "1 sentence": row}, {}, {})) == []


@pytest.mark.parametrize("values", [[1.0], [3e-8, 2e-5], [1.0, 1.04], [0.2, 7.0], [1e-300, 1e300]])
def test_an_axis_holds_its_values_and_a_few_ticks(values: list[float]) -> None:
    low, high, ticks = axis(values)
    assert low < min(values) <= max(values) < high
    assert 1 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)


def test_a_chart_draws_each_value_where_it_belongs_and_says_it() -> None:
    series = Series("", "seq", ("32", "128"), {"a": (1.0, 100.0), "b": (10.0, None)}, (32, 128))
    made = chart(LineChart(series, "Median ms", scientific), kinds([series]))
    assert made is not None
    marks = re.findall(r'<svg x="([\d.]+)%" y="([\d.]+)%"', made)
    assert len(marks) == 3
    heights = [float(y) for _, y in marks]
    assert heights[0] > heights[2] > heights[1]
    low, high, _ = axis([1.0, 100.0, 10.0])
    assert heights[2] == pytest.approx(100 - 100 * math.log(10 / low) / math.log(high / low), abs=0.01)
    assert "a: 1.00e0 at 32 to 1.00e2 at 128; b: 1.00e1 at 32 to 1.00e1 at 32." in made
    assert "<title>Median ms by seq</title>" in made


def test_lines_differ_in_their_marker_and_dash_not_in_colour_alone() -> None:
    series = Series("", "layer", ("x", "y"), dict.fromkeys("abcdef", (1.0, 2.0)))
    made = chart(LineChart(series, "Error", scientific), kinds([series]))
    assert made is not None
    assert len(set(re.findall(r'<path d="([^"]+)"', made))) == 6


def test_a_chart_of_nothing_is_none_and_zeros_are_left_out() -> None:
    series = Series("", "layer", ("x", "y"), {"a": (None, 0.0)})
    assert chart(LineChart(series, "Error", scientific), kinds([series])) is None
    assert describe(series, scientific) == "a: 0 at y to 0 at y."


def test_the_grid_that_is_asked_for_is_within_what_the_model_takes() -> None:
    assert grid(sample.manifest()) == "batch=1/8,seq=32/64/128/256"
    manifest = sample.manifest()
    for dims, expected in (
        ((), ""),
        ((dataclasses.replace(manifest.io.dims[0], min=8, max=8),), ""),
        ((manifest.io.dims[1],), "seq=32/64/128/256"),
        ((dataclasses.replace(manifest.io.dims[1], min=100, opt=128, max=130),), "seq=100/128/130"),
    ):
        assert grid(dataclasses.replace(manifest, io=dataclasses.replace(manifest.io, dims=dims))) == expected


def test_the_case_of_the_layers_is_not_said_to_be_near_a_bound_that_it_is_beyond() -> None:
    told = [block.line for block in layers(sample.layers(fail=True), "out/") if isinstance(block, Text)]
    assert f"Case: {sample.layers().case}, the one with the largest error, as a share of its bound." in told


def test_the_words_about_the_bound_are_those_of_the_rule() -> None:
    assert FACTORS == (2.0, 3.0)
    assert "twice the RMS error of PyTorch eager at the same precision and three times its largest error" in BOUND
