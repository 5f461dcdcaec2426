"""How `gpu-check` is printed: for each model and plan the verdicts, then a table a call with rates beside the peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import LatencyRow
    from attnport.verbs.gpu.peaks import Peaks
    from attnport.verbs.gpu.report import Achieved, GpuReport, Piece

_AROUND = ("to device", "from device", "load", "first call")
_MARK = {"faster": "", "slower": "", "baseline": "", "no difference shown": " ~"}


def show_gpu_report(console: Console, report: GpuReport) -> None:
    """The device, its peaks, every piece, what is left."""
    console.print(f"GPU: {cells.plain(report.device)}", style="bold")
    _show_peaks(console, report.peaks)
    timed = False
    for name, piece in report.pieces.items():
        _show_parity(console, name, piece)
        for call, rows in (piece.latency.shapes if piece.latency else {}).items():
            _show_call(console, f"{name}, {call}", rows, piece.achieved.get(call, {}))
            _show_around(console, rows)
            cells.notes(console, {row_name: row.reason for row_name, row in rows.items() if row.reason})
            timed = True
        for note in (*piece.notes, *(piece.latency.notes if piece.latency else ())):
            console.print(f"note: {cells.plain(note)}", style="yellow")
        if piece.problem:
            console.print(f"{cells.plain(name)}: {cells.plain(piece.problem)}", style="bold red")
    for what in report.left:
        console.print(f"left for the next run: {cells.plain(what)}", style="yellow")
    if timed:
        for line in (
            f"ratio: to {report.eager}, of device times where both have them, else of calls; ~ no difference shown",
            "device ms: computing alone, by events; rates are of that time, or * of the whole call with its copies",
            "to, from device: copying inputs and outputs, by events",
            "load, first call: in a fresh process; with what it kept: in a further one",
            "GB/s: of the least that has to move: weights, inputs and outputs; %: of the peak that was measured here",
        ):
            console.print(line, style="dim")


def _show_peaks(console: Console, peaks: Peaks | None) -> None:
    if peaks is None:
        console.print("peak rates: not measured", style="yellow")
        return
    found = [f"{plan} {peak.per_s / 1e12:.3g} TFLOP/s ({peak.what})" for plan, peak in peaks.flops.items()]
    found += [f"{peaks.copy.per_s / 1e9:.4g} GB/s ({peaks.copy.what})"] if peaks.copy else []
    for line in found:
        console.print(f"measured peak: {cells.plain(line)}")


def _show_parity(console: Console, name: str, piece: Piece) -> None:
    if not piece.parity:
        return
    from attnport.verbs.gpu.report import verdict_of

    console.print(f"{cells.plain(name)}: {cells.verdict(verdict_of(piece))}", style="bold")
    table = cells.table(cells.plain(piece.about), "runtime", "parity", "fused")
    for runtime, found in piece.parity.items():
        table.add_row(runtime, cells.verdict(found.verdict), piece.fused.get(runtime, ""))
    console.print(table)
    cells.notes(console, {runtime: found.reason for runtime, found in piece.parity.items() if found.reason})


def _show_call(console: Console, title: str, rows: Mapping[str, LatencyRow], rates: Mapping[str, Achieved]) -> None:
    numbers = ("call ms", "device ms", "ratio", "TFLOP/s", "GB/s")
    table = cells.table(cells.plain(title), "runtime", *numbers, right=numbers)
    for name, row in rows.items():
        if row.median_ns is None:
            table.add_row(name, cells.verdict("NOT_RUN"))
            continue
        found = rates.get(name)
        table.add_row(
            name,
            _ms(row.median_ns),
            _ms(row.parts_ns.get("device")),
            _ratio(row),
            _rate(found.flops_per_s / 1e12, found.flops_share, found.by) if found else "",
            _rate(found.bytes_per_s / 1e9, found.bytes_share, found.by) if found else "",
        )
    console.print(table)


def _show_around(console: Console, rows: Mapping[str, LatencyRow]) -> None:
    """What lies around computing: the copies, and the start, again from what a runtime had compiled and kept."""
    found: list[tuple[str, dict[str, float | None]]] = []
    for name, row in rows.items():
        if row.median_ns is None:
            continue
        copies = (row.parts_ns.get("host_to_device"), row.parts_ns.get("device_to_host"))
        found.append((name, dict(zip(_AROUND, (*copies, row.load_ns, row.first_ns), strict=True))))
        if row.cached_load_ns is not None or row.cached_first_ns is not None:
            cached = (None, None, row.cached_load_ns, row.cached_first_ns)
            found.append(("  with what it kept", dict(zip(_AROUND, cached, strict=True))))
    columns = [column for column in _AROUND if any(times[column] is not None for _, times in found)]
    if not columns:
        return
    table = cells.table("", "ms", *columns, right=columns, whole=columns)
    table.title = None
    for name, times in found:
        table.add_row(name, *(_ms(times[column]) for column in columns))
    console.print(table)


def _ratio(row: LatencyRow) -> str:
    if row.device_ratio is not None:
        low, middle, high = row.device_ratio
        return f"{middle:.2f}x{' ~' if low <= 1 <= high else ''}"
    return f"{row.ratio[1]:.2f}x{_MARK.get(row.verdict, '')}" if row.ratio else ""


def _rate(value: float, share: float | None, by: str) -> str:
    whole = "*" if by == "call" else ""
    return f"{value:.3g}{whole}" if share is None else f"{value:.3g}{whole} {share:.0%}"


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns * 1e-6:.3f}" if ns < 1e7 else f"{ns * 1e-6:.2f}"
