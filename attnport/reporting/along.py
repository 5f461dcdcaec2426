"""The sections along an axis: errors from layer to layer, and time and memory against sizes."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.artifacts import LatencyReport, LayerReport
from attnport.reporting import document as doc
from attnport.reporting.measures import megabytes, milliseconds, scientific
from attnport.reporting.series import first_beyond, layer_errors, scalings

LAYERS = (
    "RMS error against the float64 run, over the RMS of the layer’s own values. Each runtime ran its form with the "
    "last tensor of each layer marked as an output; the bound is that of an output, by PyTorch eager’s error there. "
    "An error of exactly 0 has no place on a chart’s axis."
)
SIZES = (
    "Median of a call, and peak memory until the end of that size, what ran before it included; each from the same run "
    "as above."
)


def layers(report: LayerReport | None, folder: str) -> Iterator[doc.Block]:
    """How errors grow along the module."""
    if report is None or not report.layers:
        yield doc.pending(f"attnport check {folder} --bisect")
        return
    yield doc.Text(LAYERS)
    yield doc.Text(f"Case: {report.case}, the one with the largest error, as a share of its bound.")
    notes: list[doc.Line] = [
        (doc.Name(runtime), " leaves its bound at ", doc.Name(layer)) for runtime, layer in first_beyond(report).items()
    ]
    notes += [(doc.Name(key), ": ", errors.reason) for key, errors in report.runtimes.items() if errors.reason]
    if changed := [doc.Name(key) for key, errors in report.runtimes.items() if errors.changed]:
        notes.append(("Marking layers changed bits of the outputs of ", doc.listed(changed), "."))
    if notes:
        yield doc.Bullets(tuple(notes))
    yield doc.Lines((doc.LineChart(layer_errors(report), "Relative RMS error", scientific),))


def sizes(report: LatencyReport, more: str) -> Iterator[doc.Block]:
    """Time and memory against each dim that was varied; `more` is the command that varies some."""
    yield doc.Text("Time and memory against sizes", "label")
    charts = []
    for scaling in scalings(report):
        charts.append(doc.LineChart(scaling.times, "Median ms", milliseconds))
        charts.append(doc.LineChart(scaling.memory, "Peak MB", megabytes))
    if not charts:
        yield doc.Text(("One size alone was timed. More: ", doc.Code(more)), "pending")
        return
    yield doc.Text(SIZES)
    yield doc.Lines(tuple(charts))
