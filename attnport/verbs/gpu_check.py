"""`attnport gpu-check`: check and bench of every GPU runtime on models of usual sizes.

Each model has an artifact folder. What was exported, built, checked and measured there with the same inputs stays, as
for any folder, so a run that is ended, or out of time, is continued by the next.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from attnport.artifacts import Capabilities, FusionTable, IOContract, LatencyReport, ParityReport
from attnport.errors import AttnportError, ParityFailed, UnavailableError, UsageError
from attnport.exporter.lowering import base as lowerings
from attnport.folder.given import Given
from attnport.folder.machine import Machine, find_gpus, machine, versions
from attnport.folder.openings import not_in
from attnport.folder.portable import portable
from attnport.jsonfile import read, to_json
from attnport.latency.workloads import parse_grid
from attnport.options import Force, Option, Progress, Tell, Threads
from attnport.parity.eager import EAGER_ON_GPU
from attnport.printed import Printed
from attnport.processes.deadline import OutOfTime, ending_at, in_time
from attnport.processes.isolated import probe_all
from attnport.reporting import document as doc
from attnport.runtimes import base
from attnport.runtimes.base import Runtime
from attnport.verbs import check as checking
from attnport.verbs._arguments import verb
from attnport.verbs._gpu_models import SUBJECTS, Subject
from attnport.verbs._saving import save
from attnport.verbs.bench import bench
from attnport.verbs.build import build
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport.version import __version__

EAGER = EAGER_ON_GPU
"""The runtime by which the others are judged and compared."""
PLANS = ("fp16", "bf16")
DTYPES = ("fp32", *PLANS)
NAMED_ALONE = ("torch_compile_tuned_cuda",)
"""Runtimes that take minutes for each call, and are measured only where they are named."""
CALL_S = 20.0
"""Seconds of `bench` for each call, all runtimes together."""
COMPILE_S = 40.0
"""Seconds more for each call and each runtime that compiles: so long takes a size that it has not seen."""
MOST_ELEMENTS = 1 << 24
"""Of an output of a timed call that is a case of `check` too: comparing takes NumPy seconds from there on."""


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
    """

    about: str
    problem: str = ""
    exit_code: int = 0
    fused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parity: ParityReport | None = None
    latency: LatencyReport | None = None


@dataclass(frozen=True)
class GpuReport(Printed):
    """`gpu-NAME.json`.

    Attributes:
        device: What it was measured on, as the driver calls it.
        eager: The runtime by which the others are judged and compared.
        runtimes: What each runtime's probe found.
        pieces: By model and plan, `bert_encoder fp16`.
        left: What the last run was asked for and had no time for; the same command goes on there.
    """

    schema: Literal["attnport/gpu-check/2"] = field(default="attnport/gpu-check/2", kw_only=True)
    attnport: str
    device: str
    eager: str
    machine: Machine
    versions: Mapping[str, str]
    runtimes: Mapping[str, Capabilities]
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def file_name(device: str) -> str:
    """`gpu-nvidia-h100-80gb-hbm3.json`."""
    plain = re.sub(r"\s*\(SM \d+\)$", "", device)
    return f"gpu-{re.sub(r'[^a-z0-9]+', '-', plain.lower()).strip('-')}.json"


def found_gpu() -> tuple[str, int]:
    """The first GPU's name and compute capability.

    Raises:
        UnavailableError: no driver, or no GPU; says what was looked for.
    """
    gpus, note, _ = find_gpus()
    if gpus:
        return gpus[0].name, gpus[0].sm
    torch_says = base.get(EAGER).probe()
    raise UnavailableError(
        f"there is no CUDA GPU here. The driver: {note.rstrip('.')}. PyTorch: {torch_says.reason}",
        hint="Run on a machine with an NVIDIA GPU and its driver; docs/gpu.md says what to install there.",
    )


def gpu_runtimes() -> list[str]:
    """The runtimes that compute on a GPU."""
    return [name for name in base.names() if base.get(name).gpu]


@verb
def gpu_check(
    output: Annotated[Path, Option("Where gpu-NAME.json is written.", "-o --output")] = Path("benchmarks"),
    work: Annotated[Path, Option("Artifacts, several GB; kept.")] = Path("out/gpu-check"),
    *,
    only: Annotated[Sequence[str], Option("A model, bert_encoder or llama_decoder; default: both.")] = (),
    precisions: Annotated[
        Sequence[str], Option("fp16, bf16 or fp32; several allowed; default: fp16, bf16.", "--precision")
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
    threads: Threads = None,
    force: Force = False,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> GpuReport:
    """Measures and writes `gpu-NAME.json` into `output`; what an earlier run did with the same inputs stays.

    Other models and precisions stay in the file. PyTorch eager on the GPU is always measured. When the budget ends, an
    export and the build of an engine are finished; the step that runs is ended.

    Raises:
        UnavailableError: there is no GPU, or PyTorch cannot use it.
        UsageError: an unknown model, plan or runtime, or shapes that do not fit.
        ArtifactError: the file is there, and is not read: another version of attnport wrote it, or it is damaged.
    """
    until = None if budget_s is None else time.monotonic() + budget_s
    subjects, plans, names = _chosen(only, shapes), _plans(precisions), _runtimes(runtimes)
    device, sm = found_gpu()
    progress("probing the runtimes")
    probed = probe_all([base.get(name) for name in names])
    if not probed[EAGER].available:
        raise UnavailableError(
            f"{device} is there, but PyTorch, by which the others are judged, cannot use it: {probed[EAGER].reason}",
            hint=probed[EAGER].hint,
        )
    there = machine(work.parent if work.parent.is_dir() else None)
    found = {name: without_paths(one, work) for name, one in probed.items()}
    packages = versions(["numpy", *base.distributions(names)])
    report = GpuReport(__version__, device, EAGER, there, packages, found)
    path = output / file_name(device)
    if path.exists() and not force:
        before = read(GpuReport, path)
        report = dataclasses.replace(report, pieces=before.pieces, runtimes={**before.runtimes, **found})

    def saying(message: str) -> None:
        in_time()
        progress(message)

    options = {"threads": threads, "force": force, "progress": saying}
    run = _Run(report, path, work.resolve(), names, sm, until, options, saying, tell, progress, cold)
    for subject in subjects:
        for plan in plans:
            run.piece(subject, plan)
    run.keep(left=tuple(run.left))
    return run.report


@dataclass
class _Run:
    """A run: its steps in order, and the report, written after each.

    Attributes:
        path: The report.
        names: The runtimes.
        sm: The device's compute capability.
        until: The step that runs is ended then, of `time.monotonic`; None = no limit.
        options: Of `check` and `bench` alike.
        progress: Raises OutOfTime in a step that has to end.
        making: Is told of an export, a form or an engine, which is finished once it has begun.
        cold: Of `bench`.
        left: The steps for which there was no time.
    """

    report: GpuReport
    path: Path
    work: Path
    names: Sequence[str]
    sm: int
    until: float | None
    options: Mapping[str, Any]
    progress: Progress
    tell: Callable[[str], None]
    making: Progress
    cold: bool = True
    left: list[str] = field(default_factory=list)

    def keep(self, **changes: Any) -> None:
        """Writes the report, whole or not at all: a run may be ended at any time."""
        self.report = dataclasses.replace(self.report, **changes)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save(to_json(self.report), self.path)

    def piece(self, subject: Subject, plan: str) -> None:
        """Files, check and bench of a model in a precision plan, as far as there is time."""
        key = f"{subject.name} {plan}"
        piece, folder = Piece(subject.about), self.work / subject.name
        options: dict[str, Any] = {**self.options, "precision": plan}
        try:
            if why := not_in(self.report.runtimes[EAGER], plan):
                raise UnavailableError(f"{EAGER}: {why}.")
            with self._step(f"{key}: files", key):
                self.progress(f"{key}: files")
                io = export(subject.spec, folder, progress=self.making).io
                in_time()
                fused, notes = self._files(folder, subject, plan)
            piece = dataclasses.replace(piece, fused=fused, notes=notes)
            calls = [sizes for grid in subject.grids for sizes in parse_grid(grid, io.dims)]
            names = {",".join(f"{dim}={size}" for dim, size in sizes.items()): sizes for sizes in calls}
            how = {**options, "eager": EAGER, "shapes": _small(names, io)}
            quick = [name for name in self.names if not base.get(name).by_name]
            with self._step(f"{key}: parity"):
                parity = check(folder, quick, **how)
            piece = dataclasses.replace(piece, parity=parity)
            self._keep_piece(key, piece)
            call_s = CALL_S + COMPILE_S * (len(self.names) - len(quick))
            options |= {"baseline": EAGER, "budget_s": call_s * len(names), "cold": self.cold}
            with self._step(f"{key}: latency"):
                latency = bench(folder, self.names, subject.grids, **options)
            piece = dataclasses.replace(piece, latency=latency)
            self._keep_piece(key, piece)
            if any(row.why and row.why.kind == "late" for rows in latency.shapes.values() for row in rows.values()):
                self.left.append(f"{key}: latency of some calls")
            if len(quick) < len(self.names):  # compiling for every size of every case takes the longest
                with self._step(f"{key}: parity of what is compiled"):
                    piece = dataclasses.replace(piece, parity=check(folder, self.names, **how))
                self._keep_piece(key, piece)
        except OutOfTime:
            return
        except (AttnportError, MemoryError) as err:
            problem = portable(str(err), self.work)
            self.tell(f"{key}: {problem}")
            code = err.exit_code if isinstance(err, AttnportError) else UnavailableError.exit_code
            self._keep_piece(key, dataclasses.replace(piece, problem=problem, exit_code=code))

    def _keep_piece(self, key: str, piece: Piece) -> None:
        self.keep(pieces={**self.report.pieces, key: piece})

    @contextmanager
    def _step(self, step: str, left: str = "") -> Iterator[None]:
        """A step, which says how long it took.

        Args:
            left: The name under `left` if time runs out; "" = the step's.

        Raises:
            OutOfTime: there is none, or no more.
        """
        try:
            with ending_at(self.until):
                in_time()
                began_s = time.monotonic()
                try:
                    yield
                finally:
                    self.tell(f"{step}, {time.monotonic() - began_s:.0f} s")
        except OutOfTime:
            self.left.append(left or step)
            self.tell(f"out of time: {left or step} is left for the next run")
            raise

    def _files(self, folder: Path, subject: Subject, plan: str) -> tuple[dict[str, str], tuple[str, ...]]:
        """Makes what the runtimes open.

        Returns:
            By runtime the attentions that one kernel covers; and notes, of what could not be made among others.
        """
        fused: dict[str, str] = {}
        notes: list[str] = []
        for runtime in map(base.get, self.names):
            if plan not in self.report.runtimes[runtime.name].plans or runtime.opens == "module":
                continue
            in_time()
            try:
                if runtime.opens == "engine":
                    fused[runtime.name] = str(self._engine(folder, runtime, subject, plan, notes))
                else:
                    report = fuse(folder, [f"{runtime.form}.{plan}"], progress=self.making)
                    fused[runtime.name] = str(report.targets[lowerings.get(runtime.form).table_key(plan)])
            except AttnportError as err:
                notes.append(portable(f"{runtime.name}: {err.message} {err.hint}".strip(), folder))
        return fused, tuple(notes)

    def _engine(self, folder: Path, runtime: Runtime, subject: Subject, plan: str, notes: list[str]) -> FusionTable:
        """Builds an engine; on a GPU newer than the builder's targets, for its default list, which covers it."""
        given = folder, runtime.name, plan, subject.profiles
        try:
            return build(*given, (self.sm,) if runtime.name == "tensorrt_rtx" else (), progress=self.making)[1]
        except UsageError as err:
            if runtime.name != "tensorrt_rtx":
                raise
            notes.append(f"{runtime.name} is not built for SM {self.sm} alone but for its default list: {err.message}")
            return build(*given, progress=self.making)[1]


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
        rows = [row for one in judged.values() for key, row in one.runtimes.items() if base.Key(wanted).covers(key)]
        if rows and all(row.verdict == "NOT_RUN" for row in rows):
            raise UnavailableError(f"{wanted} was not run: {rows[0].reason.rstrip('.')}.")


def without_paths(found: Capabilities, folder: Path) -> Capabilities:
    """What a probe found, without the paths of this machine: the report is made to be passed on."""
    reason, hint = (portable(text, folder) for text in (found.reason, found.hint))
    libraries = {name: Path(path).name for name, path in found.libraries.items()}
    return dataclasses.replace(found, reason=reason, hint=hint, libraries=libraries)


def _small(names: Mapping[str, Mapping[str, int]], io: IOContract) -> list[str]:
    """The calls that are cases of `check` too."""
    elements = {
        name: max(int(np.prod(spec.shape(sizes), dtype=np.int64)) for spec in io.outputs)
        for name, sizes in names.items()
    }
    return [name for name, count in elements.items() if count <= MOST_ELEMENTS]


def _chosen(only: Sequence[str], shapes: Sequence[str]) -> list[Subject]:
    known = {subject.name: subject for subject in SUBJECTS}
    wanted = [name.replace("-", "_") for name in only]
    for name in wanted:
        if name not in known:
            raise UsageError(f"model {name!r}: gpu-check has {', '.join(known)}.")
    found = [subject for name, subject in known.items() if name in wanted or not wanted]
    if not shapes:
        return found
    if len(set(wanted)) != 1:
        raise UsageError(
            f"--shape {shapes[0]}: it goes with one model.", hint=f"Name it with --only: {', '.join(known)}."
        )
    dims = Given(found[0].spec).spec().io.dims
    for grid in shapes:
        parse_grid(grid, dims)
    return [dataclasses.replace(found[0], grids=tuple(shapes))]


def _plans(precisions: Sequence[str]) -> list[str]:
    for plan in precisions:
        if plan not in DTYPES:
            raise UsageError(f"--precision {plan!r}: expected one of {', '.join(DTYPES)}.")
    return list(dict.fromkeys(precisions)) or list(PLANS)


def _runtimes(wanted: Sequence[str]) -> list[str]:
    there = gpu_runtimes()
    for name in wanted:
        if base.get(name).name not in there:
            raise UsageError(f"runtime {name!r}: gpu-check measures {', '.join(there)}.")
    asked = [base.get(name).name for name in wanted] or [name for name in there if name not in NAMED_ALONE]
    return [EAGER, *(name for name in there if name in asked and name != EAGER)]


@doc.blocks.register(GpuReport)
def _blocks(report: GpuReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """The device, every piece, and what is left for the next run."""
    yield doc.Text(f"GPU: {report.device}", "strong")
    for name, piece in report.pieces.items():
        yield doc.Text(f"{name}: {piece.about}", "strong")
        if piece.parity is not None:
            yield from doc.blocks(piece.parity, "whole")
        if piece.fused:
            yield doc.Text(f"fused: {', '.join(f'{runtime} {count}' for runtime, count in piece.fused.items())}")
        if piece.latency is not None:
            yield from doc.blocks(piece.latency, "whole")
        yield from doc.warnings(piece.notes)
        if piece.problem:
            yield doc.Text(f"{name}: {piece.problem}", "fail")
    yield from doc.warnings(report.left, "left for the next run")
