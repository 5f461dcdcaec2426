"""What `attnport gpu-check` writes: `gpu-NAME.json`, a piece for each model and precision plan, kept as it grows."""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnport.artifacts import Capabilities, LatencyReport, LatencyRow, RuntimeParity, Verdict
from attnport.dims import STRICT
from attnport.errors import AttnportError, IntegrityError, ParityFailed, UnavailableError
from attnport.folder.machine import Machine
from attnport.jsonfile import read, to_json
from attnport.verbs.gpu.costs import Work
from attnport.verbs.gpu.peaks import Peaks

FORMAT = 1


@dataclass(frozen=True)
class Achieved:
    """The rates of one runtime on one call.

    Attributes:
        by: `events`: the time of computing alone, as the device tells; `call`: the whole call with its copies, by the
            clock, for a runtime that tells no more.
        flops_per_s: Operations of its matrix products, see `gpu_costs`, in a second.
        bytes_per_s: The least that it has to move, in a second.
        flops_share: Of the measured peak of that precision plan; None where no peak was measured.
        bytes_share: Of the measured peak of a copy.
    """

    by: str
    flops_per_s: float
    bytes_per_s: float
    flops_share: float | None
    bytes_share: float | None

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Piece:
    """One model in one precision plan.

    Attributes:
        inputs: A digest of what it was measured with; a piece of other inputs is measured again.
        problem: Why there is nothing, or not all; "" where there is.
        exit_code: That of the problem: 4 where its float64 run cannot be trusted, 3 where the device cannot do it.
        fused: By runtime, attentions that one kernel covers, of those there are; where something could look.
        notes: What was done otherwise than asked.
        parity: By runtime; of the cases those that fail.
        latency: Rows by call and runtime, of the calls that were timed so far.
        work: By call.
        achieved: By call and runtime.
    """

    about: str
    inputs: str
    problem: str = ""
    exit_code: int = 0
    fused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parity: Mapping[str, RuntimeParity] = field(default_factory=dict)
    latency: LatencyReport | None = None
    work: Mapping[str, Work] = field(default_factory=dict)
    achieved: Mapping[str, Mapping[str, Achieved]] = field(default_factory=dict)

    __pydantic_config__ = STRICT


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

    __pydantic_config__ = STRICT


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


def keep(report: GpuReport, path: Path) -> None:
    """Writes the report, whole or not at all: a run may be ended at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not `tempfile`, whose files nobody else may read: a report is for others too.
    temporary = path.with_name(f".gpu-check-{secrets.token_hex(8)}")
    try:
        temporary.write_text(to_json(report), encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def achieved(row: LatencyRow, work: Work, plan: str, peaks: Peaks | None) -> Achieved | None:
    """The rates of a row, by events where it has them; None for a row without a time."""
    device_ns = row.parts_ns.get("device")
    ns = device_ns or row.median_ns
    if not ns:
        return None
    flops, moved = work.flops / (ns * 1e-9), work.moved_bytes / (ns * 1e-9)
    best = peaks.flops.get(plan) if peaks else None
    copy = peaks.copy if peaks else None
    return Achieved(
        "events" if device_ns else "call",
        flops,
        moved,
        flops / best.per_s if best else None,
        moved / copy.per_s if copy else None,
    )


def with_achieved(piece: Piece, plan: str, peaks: Peaks | None) -> Piece:
    """The piece with the rates of every row that it has."""
    shapes = piece.latency.shapes if piece.latency else {}
    found = {
        call: {name: rates for name, row in rows.items() if (rates := achieved(row, piece.work[call], plan, peaks))}
        for call, rows in shapes.items()
    }
    return dataclasses.replace(piece, achieved=found)


def joined(before: LatencyReport | None, now: LatencyReport) -> LatencyReport:
    """Two reports of one piece: calls that both have are the later one's."""
    if before is None:
        return now
    return dataclasses.replace(
        now,
        settings={**before.settings, **now.settings},
        shapes={**before.shapes, **now.shapes},
        items={**before.items, **now.items},
        tokens={**before.tokens, **now.tokens},
        notes=tuple(dict.fromkeys((*before.notes, *now.notes))),
    )


def verdict_of(piece: Piece) -> Verdict:
    """FAIL if any runtime fails, PASS if one passes, else NOT_RUN."""
    found = {one.verdict for one in piece.parity.values()}
    return "FAIL" if "FAIL" in found else "PASS" if "PASS" in found else "NOT_RUN"


def raise_for(report: GpuReport, named: tuple[str, ...] = ()) -> None:
    """Turns a report into the exception that it calls for.

    Args:
        named: Runtimes that the user asked for by name: one that ran in no piece is an error.

    Raises:
        ParityFailed: a runtime is outside its bound, or there was nothing sound to judge by.
        UnavailableError: a named runtime was not run, a piece could not be measured, or nothing was. What the device
            cannot do is no error while it does something else.
    """
    for name, piece in report.pieces.items():
        for runtime, found in piece.parity.items():
            if found.verdict == "FAIL":
                raise ParityFailed(f"{name}: {runtime} fails: {found.reason}.")
    for name, piece in report.pieces.items():
        if piece.problem and (piece.exit_code != UnavailableError.exit_code or not _judged(report)):
            kind = ParityFailed if piece.exit_code == ParityFailed.exit_code else UnavailableError
            raise kind(f"{name} was not measured: {piece.problem.rstrip('.')}.")
    for wanted in (one.replace("-", "_") for one in named):
        probed = report.runtimes.get(wanted)
        if probed is not None and not probed.available:
            raise UnavailableError(f"{wanted} was not run: {probed.reason}", hint=probed.hint)
        rows = [piece.parity[wanted] for piece in report.pieces.values() if wanted in piece.parity]
        if rows and all(row.verdict == "NOT_RUN" for row in rows):
            raise UnavailableError(f"{wanted} was not run: {rows[0].reason.rstrip('.')}.")


def _judged(report: GpuReport) -> bool:
    return any(piece.parity for piece in report.pieces.values())
