"""The sections with line charts: errors from layer to layer, and time and memory against sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnport.artifacts import LatencyReport, LayerReport
from attnport.reporting.lines import chart, kinds, legend
from attnport.reporting.markup import Html, details, el, join, name, number, over_numbers, pending, row, table
from attnport.reporting.measures import NONE, megabytes, milliseconds, scientific
from attnport.reporting.series import BOUND, Series, first_beyond, layer_errors, scalings

LAYERS = (
    "RMS error against the float64 run, over the RMS of the layer’s own values. Each runtime ran its form with the "
    "last tensor of each layer marked as an output; the bound is that of an output, by PyTorch eager’s error there."
)
SIZES = (
    "Median of a call, and peak memory until the end of that size, what ran before it included; each from the same run "
    "as above."
)


def layers(report: LayerReport | None, folder: str) -> Html:
    """How errors grow along the module."""
    if report is None or not report.layers:
        return pending(f"attnport check {folder} --bisect")
    series = layer_errors(report)
    styles = kinds([series])
    drawn = chart(series, "Relative RMS error", scientific, styles)
    beyond = [
        el("li", name(runtime), " leaves its bound at ", name(layer)) for runtime, layer in first_beyond(report).items()
    ]
    reasons = [el("li", name(key), ": ", found.reason) for key, found in report.runtimes.items() if found.reason]
    changed = [key for key, found in report.runtimes.items() if found.changed]
    return join(
        (
            el("p", LAYERS, " An error of exactly 0 has no place on the chart’s axis."),
            el("p", "Case: ", report.case, ", the one that comes nearest to its bound."),
            el("ul", *beyond, class_="notes") if beyond else None,
            drawn,
            legend(styles, [key for key in series.lines if key.startswith(BOUND)]) if drawn else None,
            el("p", "Marking layers changed bits of the outputs of ", join(map(name, changed), ", "), ".")
            if changed
            else None,
            el("ul", *reasons, class_="notes") if reasons else None,
            details("The numbers", _table(series, "Relative RMS error by layer", "Layer", scientific)),
        )
    )


def sizes(report: LatencyReport | None, more: str) -> Html:
    """Time and memory against each dim that was varied; `more` is the command that varies some."""
    found = scalings(report) if report is not None else []
    if not found:
        return join((el("p", "Time and memory against sizes", class_="label"), _ask(more)))
    everything = [each for scaling in found for each in (scaling.times, scaling.memory)]
    styles = kinds(everything)
    charts = []
    for scaling in found:
        charts += [
            chart(scaling.times, "Median ms", milliseconds, styles),
            chart(scaling.memory, "Peak MB", megabytes, styles),
        ]
    tables = [
        part
        for scaling in found
        for part in (
            _table(scaling.times, f"Median ms by {scaling.dim}{_kept(scaling.kept)}", scaling.dim, milliseconds),
            _table(scaling.memory, f"Peak MB by {scaling.dim}{_kept(scaling.kept)}", scaling.dim, megabytes),
        )
    ]
    return join(
        (
            el("p", "Time and memory against sizes", class_="label"),
            el("p", SIZES),
            el("div", *(drawn for drawn in charts if drawn), class_="charts pairs"),
            legend(styles),
            details("The numbers", *tables),
        )
    )


def _ask(more: str) -> Html:
    return el("p", "One size alone was timed. More: ", el("code", more), class_="pending")


def _kept(kept: str) -> str:
    return f" at {kept}" if kept else ""


def _table(series: Series, caption: str, heading: str, show: Callable[[float | None], str]) -> Html:
    """The values of a chart, one row a place."""
    lines: Sequence[tuple[float | None, ...]] = list(series.lines.values())
    rows = [
        row(name(place), *(number(NONE if line[index] is None else show(line[index])) for line in lines))
        for index, place in enumerate(series.places)
    ]
    return table(caption, [heading, *over_numbers(*series.lines)], [el("tbody", *rows)])
