"""What `bench` prints: latency and its changes, in tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.parity_tables import those_not_here
from attnport.reporting import document as doc
from attnport.reporting.absences import not_timed, without
from attnport.reporting.facts import never_timed

if TYPE_CHECKING:
    from attnport.artifacts import LatencyReport, LatencyRow
    from attnport.latency.regression import RegressionReport
    from attnport.latency.statistics import Interval

_PARTS = {"host_to_device": "to device", "device": "on device", "device_to_host": "from device"}


def show_latency(report: LatencyReport, *, whole: bool = False) -> Iterator[doc.Block]:
    """A table of speed and memory for each workload; then the runtimes that were never timed.

    Args:
        whole: With a table of the times in detail for each workload.
    """
    absent = not_timed(report)
    never = never_timed(report)
    for shape, rows in report.shapes.items():
        shown = {name: row for name, row in rows.items() if name not in never and name not in absent}
        yield _speed(shape, shown)
        if whole:
            yield from _times({name: row for name, row in shown.items() if row.samples_ns})
        yield cells.notes({name: row.reason for name, row in shown.items() if row.reason})
    yield cells.notes(without(absent, never))
    yield from those_not_here(absent)
    yield from cells.warnings(report.notes)
    if any(row.median_ns is not None for rows in report.shapes.values() for row in rows.values()):
        starts = report.settings.get("starts", 1)
        yield from cells.quiet(
            f"ratio: to {report.baseline}, below 1 is faster; ~ no difference shown",
            f"interval: of {starts} starts of each process"
            if starts != 1
            else "interval: of one start of each process; how much starts differ: --starts 5",
            "peak: the most memory until then, above that after importing packages",
            "load and first call: in a fresh process, after importing packages; the rest: warm"
            if whole
            else "load, first call, p90, p99: -v; every call: latency.json, attnport report",
        )


def show_latency_whole(report: LatencyReport) -> Iterator[doc.Block]:
    """As `show_latency`, with the times in detail."""
    yield from show_latency(report, whole=True)


def _speed(shape: str, rows_by_runtime: Mapping[str, LatencyRow]) -> doc.Table:
    numbers = ("median ms", "items/s", "tokens/s", "peak MiB")
    rows: list[tuple[doc.Line, ...]] = []
    for name, row in rows_by_runtime.items():
        if row.median_ns is None:
            rows.append((name, doc.Verdict("NOT_RUN")))
            continue
        ratio = _interval(row.ratio) if row.ratio else row.verdict
        rows.append(
            (
                name,
                _ms(row.median_ns),
                f"{ratio} ~" if row.verdict == "no difference shown" else ratio,
                _number(row.items_per_s),
                _number(row.tokens_per_s),
                "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}",
            )
        )
    columns = cells.columns("runtime", "median ms", "ratio (interval)", *numbers[1:], right=numbers)
    return doc.Table(f"latency: {shape}", columns, doc.rows(rows))


def _times(measured: Mapping[str, LatencyRow]) -> Iterator[doc.Block]:
    if not measured:
        return
    rows: list[tuple[doc.Line, ...]] = []
    for name, row in measured.items():
        times = (row.load_ns, row.first_ns, row.median_ns, row.p90_ns, row.p99_ns)
        rows.append((name, *map(_ms, times), f"{len(row.samples_ns):,}"))
        if row.cached_first_ns is not None:
            rows.append(("  with what it kept", _ms(row.cached_load_ns), _ms(row.cached_first_ns)))
    numbers = doc.numbers("load", "first call", "median", "p90", "p99", "calls")
    yield doc.Table("", (*doc.words("ms"), *numbers), doc.rows(rows))
    parts: list[tuple[doc.Line, ...]] = [
        (
            name,
            *(_ms(row.parts_ns.get(part)) for part in _PARTS),
            _interval(row.device_ratio) if row.device_ratio else row.verdict if row.verdict == "baseline" else "",
        )
        for name, row in measured.items()
        if row.parts_ns
    ]
    if parts:
        columns = (*_PARTS.values(), "ratio on device")
        yield doc.Table("", (*doc.words("ms, by events"), *doc.numbers(*columns)), doc.rows(parts))


def show_regression(report: RegressionReport) -> Iterator[doc.Block]:
    """A row for each runtime and workload, then the verdict."""
    numbers = ("before ms", "after ms")
    columns = cells.columns("runtime", *numbers, "after / before", "verdict", right=numbers, whole=("runtime",))
    for workload in dict.fromkeys(row.workload for row in report.rows):
        changes = [row for row in report.rows if row.workload == workload]
        rows = (
            (
                row.runtime,
                _ms(row.before_ns),
                _ms(row.after_ns),
                _interval(row.change) if row.change else "",
                _coloured(row.verdict),
            )
            for row in changes
        )
        yield doc.Table(f"change: {report.model}, {workload}", columns, doc.rows(rows))
        yield cells.notes({row.runtime: row.reason for row in changes if row.reason})
    yield from cells.warnings(report.notes)
    if report.relative:
        about = f"after / before: of the ratio to {report.baseline} in the same run; of {report.baseline}: of its times"
        yield from cells.quiet(about)
    if report.pairs > 1:
        yield from cells.quiet(
            f"each of the {report.pairs} pairs of runs is one observation; ms: the median of the runs"
        )
    yield doc.Text(("verdict: ", _coloured(report.verdict)))


def _coloured(verdict: str) -> doc.Verdict:
    style = {"REGRESSION": "fail", "slower": "fail", "faster": "pass", "NOT_COMPARED": "miss"}.get(verdict, "")
    return doc.Verdict(verdict, style)


def _interval(interval: Interval) -> str:
    low, middle, high = interval
    # Two digits are too few for a narrow interval, such as 1.00 [1.00, 1.01].
    digits = 3 if high - low < 0.1 * middle and middle < 10 else 2
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _ms(ns: float | None) -> str:
    if ns is None:
        return ""
    return f"{ns / 1e6:,.2f}" if ns >= 1e6 else f"{ns / 1e6:.3g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
