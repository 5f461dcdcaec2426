"""Texts and checks about times and memory other than the median: parts on a device, starts from a cache, peaks."""

from __future__ import annotations

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.reporting.facts import by_median
from attnport.reporting.measures import NONE

PARTS = {"host_to_device": "To device ms", "device": "On device ms", "device_to_host": "From device ms"}
"""Headings of the parts that events on a device time, by `artifacts.DEVICE_PARTS`."""
DEVICE = (
    "Parts of a call by events on the device’s stream: copying inputs there, computing, copying outputs back. A ratio "
    "here is of computing alone."
)
CACHED = "Load cached ms", "First call cached ms"
KEPT = "Cached: in a further process, which found what the first one had compiled and kept."
MEMORY = (
    "Peak memory is the most until the end of a workload, loading included, above the level after imports: one process "
    "runs all workloads, the smallest inputs first. Where a workload needs less than one before it, or than loading, "
    "its figure is that one’s."
)
Interval = tuple[float, float, float]


def on_device(report: LatencyReport) -> dict[str, list[tuple[str, LatencyRow]]]:
    """By workload, the rows with times from events, sorted by median; without workloads that have none."""
    timed = {
        workload: [(runtime, row) for runtime, row in by_median(rows) if row.parts_ns]
        for workload, rows in report.shapes.items()
    }
    return {workload: rows for workload, rows in timed.items() if rows}


def has_cached(report: LatencyReport) -> bool:
    """Whether any runtime was started again with what it had kept."""
    return any(row.cached_first_ns is not None or row.cached_load_ns is not None for row in _rows(report))


def has_memory(report: LatencyReport) -> bool:
    """Whether any peak was measured."""
    return any(row.peak_bytes is not None for row in _rows(report))


def ratio(interval: Interval | None, verdict: str = "") -> tuple[str, str]:
    """The middle of a ratio, or 1 for the baseline, and its interval."""
    if interval is None:
        return "1" if verdict == "baseline" else NONE, NONE
    return f"{interval[1]:.3f}", f"{interval[0]:.3f} to {interval[2]:.3f}"


def _rows(report: LatencyReport) -> list[LatencyRow]:
    return [row for rows in report.shapes.values() for row in rows.values()]
