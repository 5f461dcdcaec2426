"""How `gpu-check` is printed: the tables of check and bench for each piece, then rates beside the measured peaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.latency_tables import show_latency_whole
from attnport.console.parity_tables import show_parity_whole
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.verbs.gpu.peaks import Peaks
    from attnport.verbs.gpu.report import Achieved, GpuReport


def show_gpu_report(report: GpuReport) -> Iterator[doc.Block]:
    """The device, its peaks, every piece, and what is left for the next run."""
    yield doc.Text(f"GPU: {report.device}", "strong")
    yield from _peaks(report.peaks)
    for name, piece in report.pieces.items():
        yield doc.Text(f"{name}: {piece.about}", "strong")
        if piece.parity is not None:
            yield from show_parity_whole(piece.parity)
        if piece.fused:
            yield doc.Text(f"fused: {', '.join(f'{runtime} {count}' for runtime, count in piece.fused.items())}")
        if piece.latency is not None:
            yield from show_latency_whole(piece.latency)
            for call, rates in piece.achieved.items():
                yield _rates(f"rates: {call}", rates)
                yield from cells.warnings(dict.fromkeys(note for one in rates.values() for note in one.notes), "(!)")
            yield from cells.quiet(
                "rates: of the device's time of computing, or * of the whole call with its copies",
                "GB/s: of the least that has to move: weights, inputs and outputs; %: of the measured peak",
            )
        yield from cells.warnings(piece.notes)
        if piece.problem:
            yield doc.Text(f"{name}: {piece.problem}", "fail")
    yield from cells.warnings(report.left, "left for the next run")


def _peaks(peaks: Peaks | None) -> Iterator[doc.Block]:
    if peaks is None:
        yield doc.Text("peak rates: not measured", "miss")
        return
    lines = [f"{plan} {peak.per_s / 1e12:.3g} TFLOP/s ({peak.what})" for plan, peak in peaks.flops.items()]
    lines += [f"{peaks.copy.per_s / 1e9:.4g} GB/s ({peaks.copy.what})"] if peaks.copy else []
    for line in lines:
        yield doc.Text(f"measured peak: {line}")
    if peaks.gpu_before:
        yield doc.Text(f"GPU before and after: {peaks.gpu_before}; {peaks.gpu_after}")
    yield from cells.warnings([peaks.note] if peaks.note else [])


def _rates(title: str, found: Mapping[str, Achieved]) -> doc.Table:
    rows = (
        (
            name,
            _rate(rates.flops_per_s / 1e12, rates.flops_share, rates.by),
            _rate(rates.bytes_per_s / 1e9, rates.bytes_share, rates.by),
        )
        for name, rates in found.items()
    )
    return doc.Table(title, (*doc.words("runtime"), *doc.numbers("TFLOP/s", "GB/s")), doc.rows(rows))


def _rate(value: float, share: float | None, by: str) -> str:
    whole = "*" if by == "call" else ""
    doubt = " (!)" if (share or 0) > 1 else ""
    return f"{value:.3g}{whole}" if share is None else f"{value:.3g}{whole} {share:.0%}{doubt}"
