"""How `gpu-check` is printed: the tables of check and bench for each piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.latency_tables import show_latency_whole
from attnport.console.parity_tables import show_parity_whole
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.verbs.gpu_check import GpuReport


def show_gpu_report(report: GpuReport) -> Iterator[doc.Block]:
    """The device, every piece, and what is left for the next run."""
    yield doc.Text(f"GPU: {report.device}", "strong")
    for name, piece in report.pieces.items():
        yield doc.Text(f"{name}: {piece.about}", "strong")
        if piece.parity is not None:
            yield from show_parity_whole(piece.parity)
        if piece.fused:
            yield doc.Text(f"fused: {', '.join(f'{runtime} {count}' for runtime, count in piece.fused.items())}")
        if piece.latency is not None:
            yield from show_latency_whole(piece.latency)
        yield from cells.warnings(piece.notes)
        if piece.problem:
            yield doc.Text(f"{name}: {piece.problem}", "fail")
    yield from cells.warnings(report.left, "left for the next run")
