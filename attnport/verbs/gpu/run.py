"""One run of `gpu-check`: its steps in order, each kept when it is done."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnport.artifacts import Capabilities, LatencyReport, Manifest, RuntimeParity
from attnport.errors import AttnportError, UnavailableError
from attnport.folder.machine import machine, versions
from attnport.folder.portable import portable
from attnport.folder.workspace import load_spec, toolchain
from attnport.jsonfile import digest_text
from attnport.latency.grid import parse_grid
from attnport.latency.measuring import Effort, Measuring
from attnport.latency.statistics import CONFIDENCE
from attnport.latency.workloads import Workload, workloads
from attnport.parity.evaluate import Progress
from attnport.processes.isolated import Limits, probe_all, process_failed
from attnport.runtimes import base
from attnport.verbs.gpu import peaks as gpu_peaks
from attnport.verbs.gpu.files import Files, prepare
from attnport.verbs.gpu.parity import Judging
from attnport.verbs.gpu.report import FORMAT, GpuReport, Piece, earlier, joined, keep, with_achieved
from attnport.verbs.gpu.subjects import SUBJECTS, Subject
from attnport.version import __version__

PLANS = ("fp16", "bf16")
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
CALL_S = 20.0
"""Seconds for each timed call of a piece, all runtimes together, where no budget is given."""
_PACKAGES = (
    *("torch", "triton", "onnxruntime", "onnxruntime-gpu", "onnxruntime-ep-nv-tensorrt-rtx"),
    *("tensorrt-cu13", "tensorrt-rtx", "numpy"),
)


@dataclass(frozen=True)
class Ground:
    """What is measured on. Tests put a processor here, so that all of it runs where there is no GPU.

    Attributes:
        find: The device's name and compute capability. Raises UnavailableError where there is none.
        device: What drives it in this process, for the peak rates.
        eager: The runtime by which the others are judged.
        runtimes: The runtimes that may be measured.
    """

    find: Callable[[], tuple[str, int]]
    device: Callable[[], gpu_peaks.Timer]
    eager: str
    runtimes: Callable[[], Sequence[str]]
    subjects: Sequence[Subject] = SUBJECTS
    peak_sizes: Sequence[int] = gpu_peaks.SIZES
    copy_bytes: int = gpu_peaks.COPY_BYTES


@dataclass
class Run:
    """What a run works with.

    Attributes:
        names: The runtimes, that by which the others are judged first.
        path: The report.
        until: No step is begun from then on, of `time.monotonic`; None = no limit.
    """

    ground: Ground
    device: str
    sm: int
    names: Sequence[str]
    path: Path
    work: Path
    threads: int
    until: float | None
    progress: Progress
    tell: Callable[[str], None]
    force: bool
    left: list[str] = field(default_factory=list)

    def all(self, subjects: Sequence[Subject], plans: Sequence[str]) -> GpuReport:
        """Every step for which there is time.

        Raises:
            UnavailableError: PyTorch cannot use the device.
        """
        self.progress("probing the runtimes")
        probed = probe_all([base.get(name) for name in self.names], Limits())
        self.probed = {name: without_paths(found, self.work) for name, found in probed.items()}
        eager = self.probed[self.ground.eager]
        if not eager.available:
            raise UnavailableError(
                f"{self.device} is there, but PyTorch, by which the others are judged, cannot use it: {eager.reason}",
                hint=eager.hint,
            )
        self.report = self._opened()
        todo = [(subject, plan) for subject in subjects for plan in plans]
        self._peaks(plans)
        for number, (subject, plan) in enumerate(todo):
            now = time.monotonic()
            share_s = None if self.until is None else (self.until - now) / (len(todo) - number)
            self._piece(subject, plan, None if share_s is None else now + share_s)
        self._keep(left=tuple(self.left))
        return self.report

    def _opened(self) -> GpuReport:
        """The report to go on with: an earlier one's pieces, where it speaks of this device."""
        fresh = GpuReport(
            FORMAT,
            __version__,
            self.device,
            self.ground.eager,
            machine(self.work.parent if self.work.parent.is_dir() else None),
            versions(_PACKAGES),
            self.probed,
        )
        before = None if self.force else earlier(self.path)
        if before is None or (before.device, before.eager) != (fresh.device, fresh.eager):
            return fresh
        return dataclasses.replace(
            fresh, peaks=before.peaks, pieces=before.pieces, runtimes={**before.runtimes, **fresh.runtimes}
        )

    def _keep(self, **changes: Any) -> None:
        self.report = dataclasses.replace(self.report, **changes)
        keep(self.report, self.path)

    def _keep_piece(self, key: str, piece: Piece, plan: str) -> Piece:
        piece = with_achieved(piece, plan, self.report.peaks)
        self._keep(pieces={**self.report.pieces, key: piece})
        return piece

    def _peaks(self, plans: Sequence[str]) -> None:
        had = self.report.peaks
        if had is not None and set(plans) <= set(had.flops):
            return
        if self._over():
            self._leave("peak rates")
            return
        wanted = list(dict.fromkeys((*PLANS, *plans)))
        able = [plan for plan in wanted if plan in self.probed[self.ground.eager].plans]
        try:
            peaks = gpu_peaks.measure(
                self.ground.device(), able, self.ground.peak_sizes, self.ground.copy_bytes, progress=self.progress
            )
        except RuntimeError as err:
            self.tell(f"peak rates were not measured: {str(err).strip().partition(chr(10))[0]}")
            return
        self._keep(peaks=peaks)

    def _leave(self, what: str) -> None:
        self.left.append(what)
        self.tell(f"out of time: {what} is left for the next run")

    def _over(self) -> bool:
        return self.until is not None and time.monotonic() > self.until

    def _piece(self, subject: Subject, plan: str, until: float | None) -> None:
        """Files, parity, then the calls, about until then; what was done before with the same inputs stays."""
        key = f"{subject.name} {plan}"
        if self._over():
            self._leave(key)
            return
        what = repr((subject.name, subject.spec, subject.grids, subject.profiles))
        able = [f"{name} {self.probed[name].available}" for name in self.names]
        inputs = digest_text(toolchain(*_PACKAGES), what, plan, self.device, *able)
        piece = self.report.pieces.get(key)
        if piece is None or piece.inputs != inputs:
            piece = Piece(subject.about, inputs)
        piece = dataclasses.replace(piece, problem="", exit_code=0)
        try:
            if plan not in self.probed[self.ground.eager].plans:
                raise UnavailableError(f"{self.ground.eager} does not compute in {plan} on {self.device}.")
            if _settled(piece) and piece.latency and len(piece.latency.shapes) == sum(map(_grid_size, subject.grids)):
                return
            self.progress(f"{key}: files")
            files = prepare(self.work / subject.name, subject, plan, self.probed, self.sm, self.progress)
            piece = dataclasses.replace(piece, fused=files.fused, notes=files.notes)
            piece = self._parity(key, piece, plan, files)
            self._latency(key, piece, plan, files, subject, until)
        except (AttnportError, MemoryError) as err:
            problem = portable(str(err), self.work)
            self.tell(f"{key}: {problem}")
            kept = self.report.pieces.get(key)  # with the calls that were timed before it failed
            piece = kept if kept is not None and kept.inputs == inputs else piece
            code = err.exit_code if isinstance(err, AttnportError) else UnavailableError.exit_code
            self._keep_piece(key, dataclasses.replace(piece, problem=problem, exit_code=code), plan)

    def _parity(self, key: str, piece: Piece, plan: str, files: Files) -> Piece:
        if _settled(piece):
            return piece
        if self._over():
            self._leave(f"{key}: parity")
            return piece
        io = files.manifest.io
        sizes = [size for grid in files.grids for size in parse_grid(grid, io.dims)]
        with tempfile.TemporaryDirectory(prefix="attnport-gpu-") as scratch:
            judging = Judging(
                files.folder, files.manifest, load_spec(files.manifest), plan, self.ground.eager, self.threads,
                Limits(), Path(scratch), self.progress,
            )  # fmt: skip
            judged = judging.judged(
                {name: files.openings[name] for name in self.names if name in files.openings}, sizes
            )
        missing = {name: RuntimeParity("NOT_RUN", reason, plan) for name, reason in files.missing.items()}
        parity = {name: (judged | missing)[name] for name in self.names}
        return self._keep_piece(key, dataclasses.replace(piece, parity=parity), plan)

    def _latency(self, key: str, piece: Piece, plan: str, files: Files, subject: Subject, until: float | None) -> None:
        calls = workloads(files.folder, files.manifest, files.grids, [], 0)
        done = piece.latency.shapes if piece.latency else {}
        todo = [call for call in calls if call.name not in done]
        if not todo:
            return
        if self._over():
            self._leave(f"{key}: latency")
            return
        work = {call.name: subject.work(_sizes(files.manifest, call), ELEMENT_BYTES[plan]) for call in calls}
        piece = dataclasses.replace(piece, work=work)
        budget_s = CALL_S * len(todo) if until is None else max(1.0, until - time.monotonic())
        effort = Effort(self.threads, budget_s, baseline=self.ground.eager)
        timed = {name: (*files.openings[name], "") for name in self.names if name in files.openings}
        settings: dict[str, str | int | float | bool] = {
            "threads": self.threads,
            "confidence": CONFIDENCE,
            "plan": plan,
            **{f"version {name}": version for name, version in versions(_PACKAGES).items()},
        }
        before = piece.latency

        def go_on(report: LatencyReport) -> bool:
            self._keep_piece(key, dataclasses.replace(piece, latency=joined(before, report)), plan)
            return not self._over()

        with tempfile.TemporaryDirectory(prefix="attnport-gpu-") as scratch:
            measuring = Measuring(files.folder, files.manifest, timed, todo, effort, Path(scratch), self.progress)
            report = measuring.report(settings, go_on)
        go_on(report)
        for call in todo:
            if call.name not in report.shapes:
                self._leave(f"{key}: {call.name}")


def without_paths(found: Capabilities, folder: Path) -> Capabilities:
    """What a probe found, without the paths of this machine: the report is made to be passed on."""
    reason, hint = (portable(text, folder) for text in (found.reason, found.hint))
    libraries = {name: Path(path).name for name, path in found.libraries.items()}
    return dataclasses.replace(found, reason=reason, hint=hint, libraries=libraries)


def _settled(piece: Piece) -> bool:
    """Whether parity is done: a process that failed may not fail again."""
    return bool(piece.parity) and not any(process_failed(row.reason) for row in piece.parity.values())


def _grid_size(grid: str) -> int:
    count = 1
    for part in grid.split(","):
        count *= part.count("/") + 1
    return count


def _sizes(manifest: Manifest, call: Workload) -> dict[str, int]:
    """The size of each dim of a call."""
    return {
        dim: size
        for spec in manifest.io.inputs
        for dim, size in zip(spec.dims, call.feeds[spec.name].shape, strict=True)
        if isinstance(dim, str)
    }
