"""What `gpu-check` prints: for each model and plan the verdicts, then a table of rates for each workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.artifacts import LatencyRow
    from attnport.verbs.gpu.peaks import Peaks
    from attnport.verbs.gpu.report import Achieved, GpuReport, Piece

_AROUND = ("to device", "from device", "load", "first call")
_MARK = {"faster": "", "slower": "", "baseline": "", "no difference shown": " ~"}


def show_gpu_report(report: GpuReport) -> Iterator[doc.Block]:
    """The device, its peaks, every piece, and what is left for the next run."""
    yield doc.Text(f"GPU: {report.device}", "strong")
    yield from _peaks(report.peaks)
    timed = False
    for name, piece in report.pieces.items():
        yield from _parity(name, piece)
        for call, rows in (piece.latency.shapes if piece.latency else {}).items():
            yield _call(f"{name}, {call}", rows, piece.achieved.get(call, {}))
            yield from _around(rows)
            yield cells.notes({row_name: row.reason for row_name, row in rows.items() if row.reason})
            timed = True
        yield from cells.warnings((*piece.notes, *(piece.latency.notes if piece.latency else ())))
        if piece.problem:
            yield doc.Text(f"{name}: {piece.problem}", "fail")
    yield from cells.warnings(report.left, "left for the next run")
    if timed:
        yield from cells.quiet(
            f"ratio: to {report.eager}, of device times if both have them, else of calls; ~ no difference shown",
            "device ms: computing only, by events; rates are of that time, or * of the whole call with its copies",
            "to, from device: copying inputs and outputs, by events",
            "load, first call: in a fresh process; with what it kept: in another one",
            "GB/s: for weights, inputs and outputs, the least that must move; %: of the peak measured here",
        )


def _peaks(peaks: Peaks | None) -> Iterator[doc.Block]:
    if peaks is None:
        yield doc.Text("peak rates: not measured", "miss")
        return
    lines = [f"{plan} {peak.per_s / 1e12:.3g} TFLOP/s ({peak.what})" for plan, peak in peaks.flops.items()]
    lines += [f"{peaks.copy.per_s / 1e9:.4g} GB/s ({peaks.copy.what})"] if peaks.copy else []
    for line in lines:
        yield doc.Text(f"measured peak: {line}")


def _parity(name: str, piece: Piece) -> Iterator[doc.Block]:
    if not piece.parity:
        return
    from attnport.verbs.gpu.report import verdict_of

    yield doc.Text((f"{name}: ", doc.Verdict(verdict_of(piece))), "strong")
    rows = (
        (runtime, doc.Verdict(parity.verdict), piece.fused.get(runtime, "")) for runtime, parity in piece.parity.items()
    )
    yield doc.Table(piece.about, doc.words("runtime", "parity", "fused"), doc.rows(rows))
    yield cells.notes({runtime: parity.reason for runtime, parity in piece.parity.items() if parity.reason})


def _call(title: str, rows_by_runtime: Mapping[str, LatencyRow], rates: Mapping[str, Achieved]) -> doc.Table:
    rows: list[tuple[doc.Line, ...]] = []
    for name, row in rows_by_runtime.items():
        if row.median_ns is None:
            rows.append((name, doc.Verdict("NOT_RUN")))
            continue
        rate = rates.get(name)
        rows.append(
            (
                name,
                _ms(row.median_ns),
                _ms(row.parts_ns.get("device")),
                _ratio(row),
                _rate(rate.flops_per_s / 1e12, rate.flops_share, rate.by) if rate else "",
                _rate(rate.bytes_per_s / 1e9, rate.bytes_share, rate.by) if rate else "",
            )
        )
    numbers = doc.numbers("call ms", "device ms", "ratio", "TFLOP/s", "GB/s")
    return doc.Table(title, (*doc.words("runtime"), *numbers), doc.rows(rows))


def _around(rows: Mapping[str, LatencyRow]) -> Iterator[doc.Block]:
    """The times around computing: copies, and the start, also with what the runtime compiled and kept before."""
    starts: list[tuple[str, dict[str, float | None]]] = []
    for name, row in rows.items():
        if row.median_ns is None:
            continue
        copies = (row.parts_ns.get("host_to_device"), row.parts_ns.get("device_to_host"))
        starts.append((name, dict(zip(_AROUND, (*copies, row.load_ns, row.first_ns), strict=True))))
        if row.cached_load_ns is not None or row.cached_first_ns is not None:
            cached = (None, None, row.cached_load_ns, row.cached_first_ns)
            starts.append(("  with what it kept", dict(zip(_AROUND, cached, strict=True))))
    shown = [column for column in _AROUND if any(times[column] is not None for _, times in starts)]
    if shown:
        lines = ((name, *(_ms(times[column]) for column in shown)) for name, times in starts)
        yield doc.Table("", cells.columns("ms", *shown, right=shown, whole=shown), doc.rows(lines))


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
