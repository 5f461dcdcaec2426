"""Latency: figures of each runtime by workload, of its starts and of the parts of its calls; ratios and sizes drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from attnport.artifacts import Interval, LatencyReport, LatencyRow, ParityReport
from attnport.reporting import document as doc
from attnport.reporting.document import NONE, count, interval, mebibytes, milliseconds, significant
from attnport.reporting.facts import by_median, fastest_right, lacking, never_timed, ran, without

Figures = Mapping[str, Callable[[LatencyRow], str]]
"""What a row says, by the heading of its column."""


def ratio(found: Interval | None, verdict: str) -> str:
    """A ratio to the baseline with its interval, and `~` where no difference is shown."""
    if found is None:
        return verdict if verdict == "baseline" else NONE
    return f"{interval(found)} ~" if verdict == "no difference shown" else interval(found)


_SPEED: Figures = {
    "median ms": lambda row: milliseconds(row.median_ns),
    "ratio [interval]": lambda row: ratio(row.ratio, row.verdict),
    "items/s": lambda row: significant(row.items_per_s),
    "tokens/s": lambda row: significant(row.tokens_per_s),
    "peak MiB": lambda row: mebibytes(row.peak_bytes),
}
_STARTS: Figures = {
    "load ms": lambda row: milliseconds(row.load_ns),
    "first call ms": lambda row: milliseconds(row.first_ns),
    "load cached ms": lambda row: milliseconds(row.cached_load_ns),
    "first call cached ms": lambda row: milliseconds(row.cached_first_ns),
    "p90 ms": lambda row: milliseconds(row.p90_ns),
    "p99 ms": lambda row: milliseconds(row.p99_ns),
    "warm-up calls": lambda row: count(row.warm_calls),
    "calls": lambda row: count(len(row.samples_ns)),
}
_PARTS: Figures = {
    "to device ms": lambda row: milliseconds(row.parts_ns.get("host_to_device")),
    "on device ms": lambda row: milliseconds(row.parts_ns.get("device")),
    "from device ms": lambda row: milliseconds(row.parts_ns.get("device_to_host")),
    "ratio on device": lambda row: ratio(row.device_ratio, row.verdict),
}
_SHAPE = re.compile(r"\w+=\d+(?:,\w+=\d+)*")
_STYLES = {"faster": "pass", "slower": "miss"}
_DRAWN = {"faster": "faster", "slower": "slower"}
DEVICE = (
    "Parts of a call by events on the device’s stream: copying inputs there, computing, copying outputs back. A ratio "
    "here is of computing alone."
)
STARTS = "Load and first call: in a fresh process, packages imported; the rest: of a warm one."
CACHED = "Cached: in a further process, which found what the first one had compiled and kept."
MEMORY = (
    "Peak memory is the most until the end of a workload, loading included, above the level after imports: one process "
    "runs all workloads, the smallest inputs first. Where a workload needs less than one before it, or than loading, "
    "its figure is that one’s."
)
SIZES = (
    "Median of a call, and peak memory until the end of that size, what ran before it included; each from the same run "
    "as above."
)


@doc.blocks.register(LatencyReport)
def latency(
    report: LatencyReport, detail: doc.Detail = "brief", parity: ParityReport | None = None, more: str = ""
) -> Iterator[doc.Block]:
    """A table of speed and memory by workload, with what was never timed; then what the detail adds.

    Args:
        parity: On the page, the fastest runtime that passed it is marked.
        more: On the page, the command that times more sizes.
    """
    page = detail == "page"
    if page:
        ratios = ("Ratios are to ", doc.Name(report.baseline), " in the same run; below 1 is faster. ")
        yield doc.Text((*ratios, "The line below a ratio is its interval, on one axis for all, with a mark at 1."))
    timed = [row for rows in report.shapes.values() for row in rows.values() if row.median_ns is not None]
    yield _speed(report, parity, page)
    if detail != "brief":
        if page and any(row.peak_bytes is not None for row in timed):
            yield doc.Text(MEMORY, "quiet")
        yield from _more(report, page)
    if page:
        yield from _sizes(report, more)
        yield from ([doc.Bullets(report.notes)] if report.notes else [])
        yield from _settings(report)
        return
    if timed:
        yield from lacking(list(report.absent))
    else:
        yield doc.notes(report.absent)
    yield from doc.warnings(report.notes)
    if timed:
        starts = report.settings.get("starts", 1)
        yield from doc.quiet(
            f"ratio: to {report.baseline}, below 1 is faster; ~ no difference shown",
            f"interval: of {starts} starts of each process"
            if starts != 1
            else "interval: of one start of each process; how much starts differ: --starts 5",
            "peak: the most memory until then, above that after importing packages",
            "load, first call: in a fresh process, after importing packages; the rest: warm"
            if detail == "whole"
            else "load, first call, p90, p99: -v; every call: latency.json, attnport report",
        )


def section(report: LatencyReport | None, parity: ParityReport | None, folder: str, more: str) -> Iterator[doc.Block]:
    """The section of the page; `folder` is quoted for a shell, and `more` as of `latency`."""
    if report is None:
        yield doc.pending(f"attnport bench {folder}")
    else:
        yield from latency(report, "page", parity, more)


def _speed(report: LatencyReport, parity: ParityReport | None, page: bool) -> doc.Table:
    """The figures of each workload: measured rows by their median, then the others, those of no workload at the end."""
    right = {workload: name for workload, (name, _) in fastest_right(report, parity).items() if parity}
    never = never_timed(report) if len(report.shapes) > 1 else {}
    within = axis([row for rows in report.shapes.values() for row in rows.values()])

    def row(name: str, of: LatencyRow, best: bool) -> doc.Row:
        if of.kind:
            return doc.Row((doc.Name(name), doc.Verdict("NOT_RUN")), of.reason)
        cells: list[doc.Line] = [figure(of) for figure in _SPEED.values()]
        if page and of.ratio:
            cells[1] = doc.Ratio(ratio(of.ratio, of.verdict), of.ratio, within, _DRAWN.get(of.verdict, "same"))
        if best and of.verdict in ("faster", "baseline"):
            cells[0] = doc.Best(milliseconds(of.median_ns))
        judged = (doc.Verdict(of.verdict, _STYLES.get(of.verdict, "plain")),) if page else ()
        return doc.Row((doc.Name(name), *judged, *cells, *([ran(of.ran)] if page else [])), of.reason)

    groups = []
    for workload, rows in report.shapes.items():
        lines = tuple(row(name, of, name == right.get(workload)) for name, of in by_median(without(never, rows)))
        groups.append(doc.Group(lines, _title(report, workload), workload))
    if never:
        skipped = (doc.Row((doc.Name(name), doc.Verdict("NOT_RUN")), why) for name, why in never.items())
        groups.append(doc.Group(tuple(skipped), "on no workload", "–"))
    columns = (*doc.columns("runtime", *["verdict"] * page), *doc.numbers(*_SPEED), *doc.columns(*["ran"] * page))
    caption = "Latency, throughput and memory by workload" if page else "latency"
    return doc.Table(caption, columns, tuple(groups), "workload", "latency")


def axis(rows: Sequence[LatencyRow]) -> tuple[float, float]:
    """The ends of an axis that holds all intervals, and 1, with a margin."""
    ends = [end for row in rows if row.ratio for end in (row.ratio[0], row.ratio[2]) if 0 < end < math.inf]
    low, high = min((*ends, 1.0)), max((*ends, 1.0))
    margin = (high / low) ** 0.08 * 1.04
    return low / margin, high * margin


def _title(report: LatencyReport, workload: str) -> doc.Line:
    """A workload with its numbers of items and real tokens, where its name does not say them."""
    items, tokens = report.items.get(workload), report.tokens.get(workload)
    size = []
    if items is not None and "sentence" not in workload:
        size.append(f"{count(items)} item{'' if items == 1 else 's'}")
    if tokens is not None:
        size.append(f"{count(tokens)} real tokens")
    return (workload, doc.Span(f", {', '.join(size)}", "quiet")) if size else workload


def _more(report: LatencyReport, page: bool) -> Iterator[doc.Block]:
    """The times of starts and of parts of a call, without columns and tables that would be empty."""
    timed = {
        workload: [(name, row) for name, row in by_median(rows) if row.median_ns is not None]
        for workload, rows in report.shapes.items()
    }

    def table(caption: str, figures: Figures, rows: Mapping[str, list[tuple[str, LatencyRow]]]) -> doc.Table:
        groups = tuple(
            doc.Group(
                tuple(doc.Row((doc.Name(name), *(figure(row) for figure in figures.values()))) for name, row in of),
                workload,
            )
            for workload, of in rows.items()
            if of
        )
        columns = (doc.Column("runtime", whole=figures is _STARTS), *doc.numbers(*figures))
        return doc.filled(doc.Table(caption, columns, groups, "workload"))

    parts = {workload: [(name, row) for name, row in rows if row.parts_ns] for workload, rows in timed.items()}
    if any(parts.values()):
        yield from ([doc.Text(DEVICE)] if page else [])
        yield table("parts of a call on the device, medians", _PARTS, parts)
    if any(timed.values()):
        starts = table("load, first call and tail", _STARTS, timed)
        cached = any("cached" in str(column.heading) for column in starts.columns)
        texts = [doc.Text(f"{STARTS} {CACHED}" if cached else STARTS)] if page else []
        yield doc.Folded("Load, first call, tail", (*texts, starts))


def _sizes(report: LatencyReport, more: str) -> Iterator[doc.Block]:
    """Time and memory against each dim that was varied."""
    yield doc.Text("Time and memory against sizes", "label")
    charts = []
    for times, memory in scalings(report):
        charts.append(doc.LineChart(times, "Median ms", milliseconds))
        charts.append(doc.LineChart(memory, "Peak MiB", mebibytes))
    if not charts:
        yield doc.Text(("One size alone was timed. More: ", doc.Code(more)), "pending")
        return
    yield doc.Text(SIZES)
    yield doc.Lines(tuple(charts))


def scalings(report: LatencyReport) -> list[tuple[doc.Series, doc.Series]]:
    """Medians in ns and peaks in bytes over each dim with two sizes or more among the timed shapes, others fixed."""
    shapes = {
        name: dict(part.split("=") for part in name.split(",")) for name in report.shapes if _SHAPE.fullmatch(name)
    }
    found = []
    for dim in dict.fromkeys(dim for sizes in shapes.values() for dim in sizes):
        groups: dict[str, dict[int, str]] = {}
        for name, shape in shapes.items():
            if dim in shape:
                kept = ", ".join(f"{other} {size}" for other, size in shape.items() if other != dim)
                groups.setdefault(kept, {})[int(shape[dim])] = name
        for kept in sorted(groups, key=lambda kept: [int(size) for size in re.findall(r"\d+", kept)]):
            sizes = sorted(groups[kept])
            if len(sizes) > 1:
                rows = [report.shapes[groups[kept][size]] for size in sizes]
                medians = _series(dim, kept, sizes, rows, lambda row: row.median_ns)
                found.append((medians, _series(dim, kept, sizes, rows, lambda row: row.peak_bytes)))
    return found


def _series(
    dim: str,
    kept: str,
    sizes: Sequence[int],
    rows: Sequence[Mapping[str, LatencyRow]],
    figure: Callable[[LatencyRow], float | None],
) -> doc.Series:
    """A line for each runtime with a figure at some size."""
    lines = {
        runtime: tuple(figure(of[runtime]) if runtime in of else None for of in rows)
        for runtime in dict.fromkeys(runtime for of in rows for runtime in of)
    }
    known = {runtime: values for runtime, values in lines.items() if any(value is not None for value in values)}
    return doc.Series(kept, dim, tuple(map(str, sizes)), known, tuple(sizes))


def _settings(report: LatencyReport) -> Iterator[doc.Block]:
    settings = {
        key: ("yes" if value else "no") if isinstance(value, bool) else str(value)
        for key, value in report.settings.items()
    }
    if settings:
        yield doc.Text("How it was measured", "label")
        yield doc.Pairs(tuple(settings.items()), "settings")
