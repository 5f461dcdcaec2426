"""What `attnport gpu-check` writes: `gpu-NAME.json`, the reports of check and bench for each model and precision."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from attnport.artifacts import Capabilities, LatencyReport, LatencyRow, ParityReport
from attnport.errors import AttnportError, IntegrityError, ParityFailed, UnavailableError
from attnport.folder.machine import Machine
from attnport.folder.openings import of_runtime
from attnport.jsonfile import read
from attnport.verbs import check as checking
from attnport.verbs.gpu.costs import Work
from attnport.verbs.gpu.peaks import Peaks

FORMAT = 2
TOO_FAST = "TFLOP/s: more than the measured peak, so that was measured too low, or the clocks changed"
FROM_CACHE = "GB/s: more than a copy in the device's memory, so some of it may have come from the cache"


@dataclass(frozen=True)
class Achieved:
    """The rates of one runtime on one call.

    Attributes:
        by: `events`: the time of computing alone, as the device tells; `call`: the whole call with its copies, by the
            clock, for a runtime that tells no more.
        flops_per_s: Operations of its matrix products, see `costs`, in a second.
        bytes_per_s: The least that it has to move, in a second.
        flops_share: Of the measured peak of that precision plan; None where no peak was measured.
        bytes_share: Of the measured peak of a copy.
        notes: Why a share is above 1, which cannot be right.
    """

    by: str
    flops_per_s: float
    bytes_per_s: float
    flops_share: float | None
    bytes_share: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """One model in one precision plan.

    Attributes:
        problem: Why there is nothing, or not all; "" where there is.
        exit_code: That of the problem: 4 where its float64 run cannot be trusted, 3 where the device cannot do it.
        fused: By runtime, attentions that one kernel covers, of those there are; where something could look.
        notes: What was done otherwise than asked, and files that could not be made.
        parity: What `check` found; None where it was not run.
        latency: What `bench` found.
        work: By call.
        achieved: By call and runtime.
    """

    about: str
    problem: str = ""
    exit_code: int = 0
    fused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parity: ParityReport | None = None
    latency: LatencyReport | None = None
    work: Mapping[str, Work] = field(default_factory=dict)
    achieved: Mapping[str, Mapping[str, Achieved]] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuReport:
    """`gpu-NAME.json`.

    Attributes:
        device: What it was measured on, as the driver calls it.
        eager: The runtime by which the others are judged and compared.
        runtimes: What each runtime's probe found.
        pieces: By model and plan, `bert_encoder fp16`.
        left: What was asked for and not done, since the time was over; the same command goes on there.
    """

    schema: Literal["attnport/gpu-check/2"] = field(default="attnport/gpu-check/2", kw_only=True)
    format: int
    attnport: str
    device: str
    eager: str
    machine: Machine
    versions: Mapping[str, str]
    runtimes: Mapping[str, Capabilities]
    peaks: Peaks | None = None
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def file_name(device: str) -> str:
    """`gpu-nvidia-h100-80gb-hbm3.json`."""
    plain = re.sub(r"\s*\(SM \d+\)$", "", device)
    return f"gpu-{re.sub(r'[^a-z0-9]+', '-', plain.lower()).strip('-')}.json"


def earlier(path: Path) -> GpuReport | None:
    """What an earlier run left; None where there is nothing that this version reads, which is then written anew."""
    if not path.is_file():
        return None
    try:
        found = read(GpuReport, path)
    except IntegrityError:
        raise
    except AttnportError:
        return None
    return found if found.format == FORMAT else None


def achieved(row: LatencyRow, work: Work, plan: str, peaks: Peaks | None) -> Achieved | None:
    """The rates of a row, by events where it has them; None for a row without a time."""
    device_ns = row.parts_ns.get("device")
    ns = device_ns or row.median_ns
    if not ns:
        return None
    flops, moved = work.flops / (ns * 1e-9), work.moved_bytes / (ns * 1e-9)
    best = peaks.flops.get(plan) if peaks else None
    copy = peaks.copy if peaks else None
    flops_share, bytes_share = flops / best.per_s if best else None, moved / copy.per_s if copy else None
    notes = (TOO_FAST, (flops_share or 0) > 1), (FROM_CACHE, (bytes_share or 0) > 1)
    return Achieved(
        "events" if device_ns else "call",
        flops,
        moved,
        flops_share,
        bytes_share,
        tuple(note for note, so in notes if so),
    )


def with_achieved(piece: Piece, plan: str, peaks: Peaks | None) -> Piece:
    """The piece with the rates of every row that it has."""
    shapes = piece.latency.shapes if piece.latency else {}
    found = {
        call: {name: rates for name, row in rows.items() if (rates := achieved(row, piece.work[call], plan, peaks))}
        for call, rows in shapes.items()
    }
    return dataclasses.replace(piece, achieved=found)


def raise_for(report: GpuReport, named: tuple[str, ...] = ()) -> None:
    """Turns a report into the exception that it calls for.

    Args:
        named: Runtimes that the user asked for by name: one that ran in no piece is an error.

    Raises:
        ParityFailed: a runtime is outside its bound, or there was nothing sound to judge by.
        UnavailableError: a named runtime was not run, a piece could not be measured, or nothing was. What the device
            cannot do is no error while it does something else.
    """
    judged = {name: piece.parity for name, piece in report.pieces.items() if piece.parity is not None}
    for name, parity in judged.items():
        try:
            checking.raise_for(parity)
        except ParityFailed as err:
            raise ParityFailed(f"{name}: {err.message}", hint=err.hint) from err
    for name, piece in report.pieces.items():
        if piece.problem and (piece.exit_code != UnavailableError.exit_code or not judged):
            kind = ParityFailed if piece.exit_code == ParityFailed.exit_code else UnavailableError
            raise kind(f"{name} was not measured: {piece.problem.rstrip('.')}.")
    for wanted in (one.replace("-", "_") for one in named):
        probed = report.runtimes.get(wanted)
        if probed is not None and not probed.available:
            raise UnavailableError(f"{wanted} was not run: {probed.reason}", hint=probed.hint)
        rows = [row for one in judged.values() for key, row in one.runtimes.items() if of_runtime(key, wanted)]
        if rows and all(row.verdict == "NOT_RUN" for row in rows):
            raise UnavailableError(f"{wanted} was not run: {rows[0].reason.rstrip('.')}.")
