"""How latency and its changes are printed: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import LatencyReport, LatencyRow
    from attnport.latency.regression import RegressionReport
    from attnport.latency.statistics import Interval

_PARTS = {"host_to_device": "to device", "device": "on device", "device_to_host": "from device"}


def show_latency(console: Console, report: LatencyReport) -> None:
    """Tables for each workload: speed and memory, then where the time goes; what never ran stands once, at the end."""
    never = _never(report)
    for shape, rows in report.shapes.items():
        shown = {name: row for name, row in rows.items() if name not in never}
        _show_speed(console, shape, shown)
        _show_times(console, shown)
        cells.notes(console, {name: row.reason for name, row in shown.items() if row.reason})
    if never:
        console.print("not run on any workload", style="bold")
        cells.notes(console, never)
    for note in report.notes:
        console.print(f"note: {cells.plain(note)}", style="yellow")
    lines = [
        f"ratio: to {report.baseline}, below 1 is faster; ~ no difference shown",
        "peak: the most memory until the end of the workload, above that with packages imported",
        "load and first call: in a fresh process, packages imported; median, p90 and p99: warm",
    ]
    if any(row.median_ns is not None for rows in report.shapes.values() for row in rows.values()):
        for line in lines:
            console.print(line, style="dim")


def _never(report: LatencyReport) -> dict[str, str]:
    """The runtimes that gave no figure for any workload, and why, where the reason is one and the same."""
    reasons: dict[str, set[str]] = {}
    ran = {name for rows in report.shapes.values() for name, row in rows.items() if row.median_ns is not None}
    for rows in report.shapes.values():
        for name, row in rows.items():
            reasons.setdefault(name, set()).add(row.reason)
    return {name: found.pop() for name, found in reasons.items() if name not in ran and len(found) == 1}


def _show_speed(console: Console, shape: str, rows: Mapping[str, LatencyRow]) -> None:
    numbers = ("median ms", "items/s", "tokens/s", "peak MiB")
    table = cells.table(
        f"latency: {cells.plain(shape)}", "runtime", "median ms", "ratio (interval)", *numbers[1:], right=numbers
    )
    for name, row in rows.items():
        if row.median_ns is None:
            table.add_row(name, cells.verdict("NOT_RUN"))
            continue
        ratio = _interval(row.ratio) if row.ratio else row.verdict
        table.add_row(
            name,
            _ms(row.median_ns),
            cells.plain(f"{ratio} ~" if row.verdict == "no difference shown" else ratio),
            _number(row.items_per_s),
            _number(row.tokens_per_s),
            "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}",
        )
    console.print(table)


def _show_times(console: Console, rows: Mapping[str, LatencyRow]) -> None:
    measured = {name: row for name, row in rows.items() if row.samples_ns}
    if not measured:
        return
    numbers = ("load", "first call", "median", "p90", "p99", "calls")
    table = cells.table("", "ms", *numbers, right=numbers)
    table.title = None
    for name, row in measured.items():
        times = (row.load_ns, row.first_ns, row.median_ns, row.p90_ns, row.p99_ns)
        table.add_row(name, *map(_ms, times), f"{len(row.samples_ns):,}")
        if row.cached_first_ns is not None:
            table.add_row("  with what it kept", _ms(row.cached_load_ns), _ms(row.cached_first_ns))
    console.print(table)
    if any(row.parts_ns for row in measured.values()):
        parts = cells.table("", "ms, by events", *_PARTS.values(), right=tuple(_PARTS.values()))
        parts.title = None
        for name, row in measured.items():
            if row.parts_ns:
                parts.add_row(name, *(_ms(row.parts_ns.get(part)) for part in _PARTS))
        console.print(parts)


def show_regression(console: Console, report: RegressionReport) -> None:
    """One row a runtime and workload, then the verdict."""
    numbers = ("before ms", "after ms")
    for workload in dict.fromkeys(row.workload for row in report.rows):
        title = f"change: {cells.plain(report.model)}, {cells.plain(workload)}"
        table = cells.table(title, "runtime", *numbers, "after / before", "verdict", right=numbers, whole=("runtime",))
        rows = [row for row in report.rows if row.workload == workload]
        for row in rows:
            change = _interval(row.change) if row.change else ""
            table.add_row(
                row.runtime, _ms(row.before_ns), _ms(row.after_ns), cells.plain(change), _coloured(row.verdict)
            )
        console.print(table)
        cells.notes(console, {row.runtime: row.reason for row in rows if row.reason})
    for note in report.notes:
        console.print(f"note: {cells.plain(note)}", style="yellow")
    if report.relative:
        about = f"after / before: of the ratio to {report.baseline} in the same run; of {report.baseline}: of its times"
        console.print(about, style="dim")
    console.print(f"verdict: {_coloured(report.verdict)}")


def _coloured(verdict: str) -> str:
    colour = {"REGRESSION": "bold red", "slower": "bold red", "faster": "green", "NOT_COMPARED": "yellow"}.get(verdict)
    return f"[{colour}]{verdict}[/]" if colour else verdict


def _interval(interval: Interval) -> str:
    low, middle, high = interval
    # Two digits hide what a narrow interval shows: 1.00 [1.00, 1.01].
    digits = 3 if high - low < 0.1 * middle and middle < 10 else 2
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _ms(ns: float | None) -> str:
    if ns is None:
        return ""
    return f"{ns / 1e6:,.2f}" if ns >= 1e6 else f"{ns / 1e6:.3g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
