"""How errors grow from layer to layer."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.artifacts import LayerReport
from attnport.reporting import document as doc
from attnport.reporting.document import scientific

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


def layer_errors(report: LayerReport) -> doc.Series:
    """The RMS error of each runtime over the RMS of the reference, by layer, and the bound of each precision plan."""
    scales = [layer.reference_rms for layer in report.layers]

    def relative(values: list[float | None]) -> tuple[float | None, ...]:
        return tuple(
            value / scale if value is not None and scale > 0 else None
            for value, scale in zip(values, scales, strict=True)
        )

    measured = {name: errors for name, errors in report.runtimes.items() if errors.errors}
    lines = {name: relative([error.rms_error for error in errors.errors]) for name, errors in measured.items()}
    plans: dict[str, list[float | None]] = {}
    for errors in measured.values():
        plans.setdefault(errors.plan, [error.rms_bound for error in errors.errors])
    for plan, bounds in plans.items():
        lines[doc.BOUND if len(plans) == 1 else f"{doc.BOUND} {plan}"] = relative(bounds)
    return doc.Series(f"case {report.case}", "layer", tuple(layer.name for layer in report.layers), lines)


def first_beyond(report: LayerReport) -> dict[str, str]:
    """The first layer that exceeds its bound, for each runtime with such a layer."""
    first = {}
    for name, series in report.runtimes.items():
        for layer, error in zip(report.layers, series.errors, strict=False):
            if error.verdict == "FAIL":
                first[name] = layer.name
                break
    return first
