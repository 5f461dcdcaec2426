"""How errors grow from layer to layer, and where a runtime goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.artifacts import LayerReport
from attnport.parities import Bisected, Finding
from attnport.reporting import document as doc
from attnport.reporting.document import scientific

_MOST_NAMES = 4
_MOST_OPERATORS = 12

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


@doc.blocks.register(Bisected)
def bisected(found: Bisected, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """The parity report, and for each runtime or form that failed the layer where it goes wrong."""
    yield from doc.blocks(found.parity, detail)
    if not found.findings:
        whole = any(row.plan == "fp32" for row in found.parity.runtimes.values())
        more = "; with --precision fp16, what overflows" if whole else ""
        yield doc.Text(f"bisect: nothing failed, so there is nothing to search{more}")
    for finding in found.findings:
        yield doc.Text("")
        yield from _finding(finding)


def annotated(found: Bisected) -> Iterator[tuple[str, str]]:
    """A title and a text for each runtime or form that failed, as annotations of a CI system."""
    for finding in found.findings:
        if finding.reason:
            yield f"bisect: {finding.subject}", f"nothing found: {finding.reason}"
        else:
            yield f"bisect: {finding.subject} goes wrong in {_where(finding)}", "; ".join(_place(finding))


def _where(finding: Finding) -> str:
    module = finding.module or "the outermost module"
    return f"what it fuses in {module}" if finding.fused else module


def _place(finding: Finding) -> tuple[str, ...]:
    """What diverges first, behind what, and in which case."""
    own = finding.readings.get(finding.subject)
    told = f" ({own.reason})" if own and own.rms_error is None and own.reason else ""
    fine = f"{_some(finding.fine)} (measured)" if finding.fine else "the inputs and weights"
    fused = "with tensors inside marked as outputs, no output diverges: the fault lies in what the runtime fuses there"
    return (
        f"first diverging tensor: {finding.tensor}, made by {_last(finding.between)}{told}",
        *[f"computed in {finding.line}"] * bool(finding.line),
        f"fine before it: {fine}",
        f"case: {finding.case}",
        *[fused] * finding.fused,
    )


def _finding(finding: Finding) -> Iterator[doc.Block]:
    if finding.reason:
        yield doc.Text((doc.Span(f"bisect: {finding.subject}", "strong"), f": nothing found: {finding.reason}"))
        return
    where = doc.Span(_where(finding), "fail")
    yield doc.Text((doc.Span(f"bisect: {finding.subject} goes wrong in ", "strong"), where))
    for line in _place(finding):
        yield doc.Text(f"  {line}")
    numbers = ("RMS error", "max error")
    whole = ("verdict", "RMS error", "bound", "max error")
    columns = doc.columns("runtime", "verdict", "RMS error", "bound", "max error", "bound", right=numbers, whole=whole)
    rows = (
        doc.Row(
            (
                *(name, doc.Verdict(error.verdict)),
                *map(scientific, (error.rms_error, error.rms_bound, error.max_error, error.max_bound)),
            ),
            error.reason if error.rms_error is None else "",
        )
        for name, error in finding.readings.items()
    )
    yield doc.filled(doc.Table("errors there", columns, (doc.Group(tuple(rows)),)))
    yield doc.Bullets(tuple(doc.Span(note, "quiet") for note in finding.notes))


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _last(operators: tuple[str, ...]) -> str:
    """Operators in the order of the graph; of many the last, which are the nearest to the tensor."""
    more = len(operators) - _MOST_OPERATORS
    return (f"{more} operators, then " if more > 0 else "") + ", ".join(operators[-_MOST_OPERATORS:])
