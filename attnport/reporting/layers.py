"""How errors grow from layer to layer."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.artifacts import LayerReport
from attnport.reporting import document as doc
from attnport.reporting.measures import scientific
from attnport.reporting.series import first_beyond, layer_errors

LAYERS = (
    "RMS error against the float64 run, over the RMS of the layer’s own values. Each runtime ran its form with the "
    "last tensor of each layer marked as an output; the bound is that of an output, by PyTorch eager’s error there. "
    "An error of exactly 0 has no place on a chart’s axis."
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
