"""`attnport gpu-check`: `check` and `bench` of every GPU runtime on models of usual sizes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from attnport.artifacts import Capabilities, FusionTable, LatencyReport, ParityReport, plan_of
from attnport.errors import AttnportError, ParityFailed, UnavailableError, UsageError, refuse_list
from attnport.exporter.targets import base as lowerings
from attnport.folder.given import Given
from attnport.folder.machine import find_gpus
from attnport.folder.portable import portable
from attnport.latency.workloads import parse_grid
from attnport.options import Force, Option, Progress
from attnport.parity.comparing import EAGER_ON_GPU
from attnport.printed import Printed
from attnport.processes.isolated import OutOfTime, ending_at, in_time, probe_all
from attnport.reporting import document as doc
from attnport.runtimes import base
from attnport.runtimes.base import Runtime
from attnport.verbs import check as checking
from attnport.verbs._arguments import verb
from attnport.verbs._gpu_models import SUBJECTS, Subject
from attnport.verbs.bench import bench
from attnport.verbs.build import build
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

EAGER = EAGER_ON_GPU
"""The runtime by which the others are judged and compared."""
PLANS = ("fp16", "bf16", "fp32")
NAMED_ALONE = ("torch_compile_tuned_cuda",)
"""Runtimes that take minutes for each call, and are measured only where they are named."""
CALL_S = 20.0
"""Seconds of `bench` for each call, all runtimes together."""
COMPILE_S = 40.0
"""Seconds more for each call and each runtime that compiles: so long takes a size that it has not seen."""

OVER = "the time was over; the same command goes on here"


@dataclass(frozen=True)
class Piece:
    """One model in one precision plan.

    Attributes:
        problem: Why it was not measured, or not all of it; "" where all is there.
        exit_code: That of the problem; 0 where the time was over.
        fused: By runtime, attentions that one kernel covers, of those there are; where something could look.
        notes: Forms and engines that could not be made.
        parity: What `check` found; None where it was not run.
        latency: What `bench` found.
    """

    problem: str = ""
    exit_code: int = 0
    fused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parity: ParityReport | None = None
    latency: LatencyReport | None = None


@dataclass(frozen=True, repr=False)
class GpuReport(Printed):
    """What was measured.

    Attributes:
        device: The GPU, as the driver calls it.
        pieces: By model and plan, `bert_encoder fp16`.
    """

    schema: Literal["attnport/gpu-check/3"] = field(default="attnport/gpu-check/3", kw_only=True)
    device: str
    pieces: Mapping[str, Piece]


def gpu_runtimes() -> list[str]:
    """The runtimes that compute on a GPU."""
    return [name for name in base.names() if base.get(name).gpu]


@verb
def gpu_check(
    output: Annotated[
        Path, Option("A folder for each model, several GB; kept for the next run.", "-o --output")
    ] = Path("out/gpu-check"),
    *,
    only: Annotated[Sequence[str], Option("A model, bert_encoder or llama_decoder; default: both.")] = (),
    precisions: Annotated[
        Sequence[str],
        Option(
            "fp16, bf16 or fp32; several allowed; default: fp16, and bf16 where the GPU has it.", "--dtype --precision"
        ),
    ] = (),
    runtimes: Annotated[
        Sequence[str], Option("A runtime; default: all but torch_compile_tuned_cuda.", "--runtime")
    ] = (),
    shapes: Annotated[
        Sequence[str], Option('With one --only: other calls, "batch=8,seq=512"; grids as in bench.', "--shape")
    ] = (),
    budget_s: Annotated[
        float | None, Option("Seconds; what is not done by then is left for the next run.", "--budget", above=0)
    ] = None,
    cold: Annotated[bool, Option("Measure load, first call and memory in new processes.")] = True,
    force: Force = False,
    progress: Progress = lambda message: None,
) -> GpuReport:
    """Exports, fuses, checks and times each model in a folder of its own; what is there already is not done again.

    PyTorch eager on the GPU is always measured. When the budget ends, an export and the build of an engine are
    finished; the step that runs is ended.

    Raises:
        UnavailableError: there is no GPU, or PyTorch cannot use it.
        UsageError: an unknown model, plan or runtime. ProfileError: shapes that do not fit.
    """
    until_s = None if budget_s is None else time.monotonic() + budget_s
    subjects, names = _chosen(only, shapes), _runtimes(runtimes)
    precisions = tuple(map(plan_of, precisions))
    if unknown := set(precisions) - set(PLANS):
        raise UsageError(f"--precision {min(unknown)!r}: expected one of {', '.join(PLANS)}.")
    gpus, why_none, _ = find_gpus()
    if not gpus:
        raise UnavailableError(
            f"there is no CUDA GPU here: {why_none.rstrip('.')}.",
            hint="Run on a machine with an NVIDIA GPU and its driver; docs/gpu.md says what to install there.",
        )
    device = gpus[0]
    progress("probing the runtimes")
    probed = probe_all([base.get(name) for name in names])
    if not (eager := probed[EAGER]).available:
        raise UnavailableError(
            f"{device.name} is there, but PyTorch, by which the others are judged, cannot use it: {eager.reason}",
            hint=eager.hint,
        )
    run = _Run(output.resolve(), names, probed, device.sm, cold, force, progress)
    pieces: dict[str, Piece] = {}
    with ending_at(until_s):
        for subject in subjects:
            for plan in dict.fromkeys(precisions) or [plan for plan in PLANS[:2] if plan in eager.plans]:
                pieces[f"{subject.name} {plan}"] = run.piece(subject, plan, named=runtimes)
    return GpuReport(device.name, pieces)


@dataclass(frozen=True)
class _Run:
    """What is the same for all pieces; `sm` is the GPU's compute capability."""

    output: Path
    names: Sequence[str]
    probed: Mapping[str, Capabilities]
    sm: int
    cold: bool
    force: bool
    progress: Progress

    def piece(self, subject: Subject, plan: str, named: Sequence[str]) -> Piece:
        """As much of a piece as there is time for, and as succeeds."""
        piece = Piece()
        try:
            in_time()
            for piece in self._steps(subject, plan):  # noqa: B007  # the last one counts
                pass
            if piece.parity is not None:
                checking.raise_for(piece.parity, named)
        except OutOfTime:
            return dataclasses.replace(piece, problem=OVER)
        except (AttnportError, MemoryError) as err:
            code = err.exit_code if isinstance(err, AttnportError) else UnavailableError.exit_code
            return dataclasses.replace(piece, problem=portable(str(err), self.output), exit_code=code)
        return piece

    def _steps(self, subject: Subject, plan: str) -> Iterator[Piece]:
        """The piece after each step."""
        folder = self.output / subject.name
        self.progress(f"{subject.name} {plan}: export")
        dims = export(subject.spec, folder, progress=self.progress).io.dims
        fused, notes = self._files(folder, subject, plan)
        piece = Piece(fused=fused, notes=notes)
        yield piece

        def step(message: str) -> None:
            in_time()
            self.progress(f"{subject.name} {plan}: {message}")

        quick = [name for name in self.names if not base.get(name).by_name]
        calls = sum(len(parse_grid(grid, dims)) for grid in subject.grids)
        budget_s = calls * (CALL_S + COMPILE_S * (len(self.names) - len(quick)))
        options: dict[str, Any] = {"precision": plan, "force": self.force, "progress": step}
        judged = {"eager": EAGER, "shapes": subject.checked, **options}
        timed = {"baseline": EAGER, "budget_s": budget_s, "cold": self.cold, **options}
        piece = dataclasses.replace(piece, parity=check(folder, quick, **judged))
        yield piece
        piece = dataclasses.replace(piece, latency=bench(folder, self.names, subject.grids, **timed))
        yield piece
        if len(quick) < len(self.names):  # compiling for every size of every case takes the longest
            yield dataclasses.replace(piece, parity=check(folder, self.names, **judged))

    def _files(self, folder: Path, subject: Subject, plan: str) -> tuple[dict[str, str], tuple[str, ...]]:
        """Makes what the runtimes open; returns by runtime what is fused, and notes of what could not be made."""
        fused: dict[str, str] = {}
        notes: list[str] = []
        for runtime in map(base.get, self.names):
            if plan not in self.probed[runtime.name].plans or runtime.opens == "module":
                continue
            in_time()
            try:
                if runtime.opens == "engine":
                    table = self._engine(folder, runtime, subject, plan)
                else:
                    report = fuse(folder, [f"{runtime.form}.{plan}"], progress=self.progress)
                    table = report.targets[lowerings.get(runtime.form).table_key(plan)]
                fused[runtime.name] = str(table)
            except AttnportError as err:
                notes.append(portable(f"{runtime.name}: {err.message} {err.hint}".strip(), folder))
        return fused, tuple(notes)

    def _engine(self, folder: Path, runtime: Runtime, subject: Subject, plan: str) -> FusionTable:
        wanted = folder, runtime.name, plan, subject.profiles
        if runtime.name == "tensorrt_rtx":
            with suppress(UsageError):  # a GPU newer than the builder's targets: its default list covers it
                return build(*wanted, (self.sm,), progress=self.progress)[1]
        return build(*wanted, progress=self.progress)[1]


def raise_for(report: GpuReport) -> None:
    """Turns a report into the exception that it calls for.

    Raises:
        ParityFailed: a runtime is outside its bound, or there was nothing sound to judge by.
        UnavailableError: a model could not be measured, or a runtime that was named was not run.
    """
    for kind in (ParityFailed, UnavailableError):
        for name, piece in report.pieces.items():
            if piece.exit_code and (kind is UnavailableError or piece.exit_code == kind.exit_code):
                raise kind(f"{name}: {piece.problem}")


def _chosen(only: Sequence[str], shapes: Sequence[str]) -> list[Subject]:
    known = {subject.name: subject for subject in SUBJECTS}
    wanted = {name.replace("-", "_") for name in only}
    if unknown := wanted - known.keys():
        raise UsageError(f"model {min(unknown)!r}: gpu-check has {', '.join(known)}.")
    if not shapes:
        return [subject for name, subject in known.items() if name in wanted or not wanted]
    if len(wanted) != 1:
        raise UsageError(
            f"--shape {shapes[0]}: it goes with one model.", hint=f"Name it with --only: {', '.join(known)}."
        )
    subject = known[wanted.pop()]
    dims = Given(subject.spec).spec().io.dims
    for grid in shapes:
        parse_grid(grid, dims)
    return [dataclasses.replace(subject, grids=tuple(shapes), checked=tuple(shapes))]


def _runtimes(wanted: Sequence[str]) -> list[str]:
    known = gpu_runtimes()
    for name in wanted:
        refuse_list("--runtime", name)
    asked = [base.get(name).name for name in wanted] or [name for name in known if name not in NAMED_ALONE]
    if unknown := set(asked) - set(known):
        raise UsageError(f"runtime {min(unknown)!r}: gpu-check measures {', '.join(known)}.")
    return [EAGER, *(name for name in known if name in asked and name != EAGER)]


@doc.blocks.register(GpuReport)
def _blocks(report: GpuReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    yield doc.Text(f"GPU: {report.device}", "strong")
    for name, piece in report.pieces.items():
        yield doc.Text(name, "strong")
        for found in filter(None, (piece.parity, piece.latency)):
            yield from doc.blocks(found, "whole")
        if piece.fused:
            yield doc.Text(f"fused: {', '.join(f'{runtime} {count}' for runtime, count in piece.fused.items())}")
        yield from doc.warnings(piece.notes)
        if piece.problem:
            yield doc.Text(f"{name}: {piece.problem}", "fail" if piece.exit_code else "miss")
