"""`attnport bench`: the latency of every runtime, each in a process of its own, taking turns."""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attnport.artifacts import LatencyReport, Manifest, Ran
from attnport.compare.latency import CONFIDENCE, Samples, orders, rows
from attnport.compare.text import read_sentences
from attnport.errors import ArtifactError, AttnportError, IntegrityError, SpecError
from attnport.jsonfile import digest_text, read, to_json
from attnport.pipeline.child import Child, ChildError, reason_of
from attnport.pipeline.evaluate import Progress
from attnport.pipeline.machine import machine, versions
from attnport.pipeline.openings import MODEL_SUFFIXES, model_openings, why_none
from attnport.pipeline.portable import portable
from attnport.pipeline.worker import save_feeds
from attnport.pipeline.workloads import Workload, workloads
from attnport.pipeline.workspace import change, check_files, fresh, open_folder, toolchain
from attnport.runtimes import base
from attnport.runtimes.base import Runtime, physical_cores

STAGE = "bench"
FILE = "latency.json"
BASELINE = "torch_eager"
MIN_ROUNDS, MAX_ROUNDS = 12, 100

_WARM_CALLS = 2
_TURN_S, _MAX_CALLS = 0.02, 8
_SPINNING = 0.05
_DISTRIBUTIONS = ("torch", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt-rtx", "tensorrt-cu13", "numpy")


def bench(
    folder: Path,
    runtimes: Sequence[str] | None = None,
    shapes: Sequence[str] | None = None,
    text: Path | None = None,
    threads: int | None = None,
    *,
    budget_s: float = 60.0,
    seed: int = 0,
    force: bool = False,
    progress: Progress = lambda message: None,
) -> LatencyReport:
    """Measures an artifact folder and writes `latency.json`; returns the earlier report when nothing changed.

    Args:
        folder: An artifact folder.
        runtimes: Names; None = every runtime there is. PyTorch eager, the baseline, is always measured.
        shapes: Such as `batch=8,seq=128`, each without padding.
        text: A file of sentences, one a line, for models that read text.
        threads: Compute threads of every runtime; None = the physical cores.
        budget_s: About how long it may take in all; decides the rounds, of which there are at least 12.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were.
        UsageError: an unknown runtime, a shape or text that does not fit.
    """
    open_folder(folder)
    chosen = [base.get(name) for name in (runtimes if runtimes is not None else base.names())]
    if BASELINE not in {runtime.name for runtime in chosen}:
        chosen.insert(0, base.get(BASELINE))
    sentences = read_sentences(text) if text else []
    threads = threads or physical_cores()
    with change(folder) as edit:
        manifest = edit.manifest
        if manifest is None:
            raise ArtifactError(f"{folder} is no artifact.")
        models = [name for name in manifest.files if Path(name).suffix in MODEL_SUFFIXES]
        check_files(folder, manifest, *models)
        settings = _settings(threads, seed, budget_s)
        digest = digest_text(
            toolchain(*_DISTRIBUTIONS),
            json.dumps([asdict(manifest.source), {name: manifest.files[name] for name in models}, settings]),
            json.dumps([[runtime.name for runtime in chosen], list(shapes or ()), sentences]),
        )
        if not force and fresh(folder, manifest, STAGE, digest):
            return read(LatencyReport, folder / FILE)
        todo = workloads(folder, manifest, shapes, sentences, seed)
        with tempfile.TemporaryDirectory(prefix="attnport-bench-") as scratch:
            run = _Bench(folder.resolve(), manifest, todo, threads, budget_s, seed, Path(scratch), progress)
            report = run.report(chosen, settings)
        edit.path(FILE).write_text(to_json(report), encoding="utf-8")
        edit.finish(STAGE, digest)
    return report


def _settings(threads: int, seed: int, budget_s: float) -> dict[str, str | int | float | bool]:
    """What is equal for all runtimes, and what they run on."""
    return {
        "threads": threads,
        "seed": seed,
        "confidence": CONFIDENCE,
        "budget_s": budget_s,
        "machine": machine().cpu,
        "python": platform.python_version(),
        **{f"version {name}": version for name, version in versions(_DISTRIBUTIONS).items()},
    }


@dataclass
class _Measured:
    """One runtime: its process while it lives, and what it gave by workload."""

    child: Child | None = None
    opening: dict[str, Any] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    ran: Ran | None = None
    problem: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    rounds_ns: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    no_peaks: str = ""
    idle_cpu_ns: int = 0
    idle_ns: int = 0
    answered_ns: int = 0


@dataclass
class _Bench:
    """One run of the verb."""

    folder: Path
    manifest: Manifest
    workloads: list[Workload]
    threads: int
    budget_s: float
    seed: int
    scratch: Path
    progress: Progress

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._found: dict[str, _Measured] = {}
        self._feeds: dict[str, str] = {}
        for number, workload in enumerate(self.workloads):
            path = self.scratch / f"{number}.npz"
            save_feeds(path, workload.feeds)
            self._feeds[workload.name] = str(path)

    def report(self, chosen: Sequence[Runtime], settings: dict[str, str | int | float | bool]) -> LatencyReport:
        """Times everything, then takes memory in processes of their own."""
        try:
            self._start(chosen)
            started_s = time.monotonic() - self._began
            for number, workload in enumerate(self.workloads):
                # What starting took, memory takes again: its processes start one after the other.
                left_s = self.budget_s - (time.monotonic() - self._began) - started_s
                settings |= self._time(workload, left_s / (len(self.workloads) - number))
            self._stop()
            for name, found in self._found.items():
                self._take_memory(name, found)
        finally:
            self._stop()
        shares = {name: found.idle_cpu_ns / found.idle_ns for name, found in self._found.items() if found.idle_ns}
        settings["spinning"] = any(share > _SPINNING for share in shares.values())
        settings |= {f"idle processor share {name}": round(share, 4) for name, share in shares.items()}
        return LatencyReport(
            baseline=BASELINE,
            settings=settings,
            shapes={
                workload.name: rows(
                    {
                        name: _samples(found, workload.name, shares.get(name, 0.0))
                        for name, found in self._found.items()
                    },
                    BASELINE,
                    workload.items,
                    workload.tokens,
                    self.seed,
                )
                for workload in self.workloads
            },
            items={workload.name: workload.items for workload in self.workloads},
            tokens={workload.name: workload.tokens for workload in self.workloads},
        )

    def _start(self, chosen: Sequence[Runtime]) -> None:
        """Opens every runtime, all at the same time."""
        for runtime in chosen:
            found = self._found[runtime.name] = _Measured()
            if not runtime.timed:
                found.problem = "not timed: it exists to be right, not to be fast"
                continue
            found.opening = {"runtime": runtime.name, "folder": str(self.folder), "threads": self.threads}
            found.opening |= {"plan": "fp32", "model": None, "engine": None}
            if runtime.opens != "module":
                # The probe is the child's: the file is chosen by fp32 here, or for engines by the record.
                openings = model_openings(runtime, self.folder, self.manifest, ("fp32",), self.threads)
                if not openings:
                    found.problem = why_none(runtime)
                    continue
                opening = next(iter(openings.values()))
                engines = [key for key, record in self.manifest.engines.items() if record == opening.engine]
                found.opening |= {"plan": opening.plan, "engine": engines[0] if engines else None}
                found.opening["model"] = opening.model.relative_to(self.folder).as_posix() if opening.model else None
            self.progress(f"starting {runtime.name}")
            found.child = Child(self.threads)
            found.child.send("open", **found.opening)
        for name, found in self._found.items():
            if found.child:
                self.progress(f"opening {name}")
                answer = self._guarded(found, "", None)
                if answer:
                    found.ran, found.modules = Ran(**answer["ran"]), answer["modules"]

    def _time(self, workload: Workload, share_s: float) -> dict[str, str | int | float | bool]:
        """All rounds of one workload; returns its settings."""
        began = time.monotonic()
        per_call_s: dict[str, float] = {}
        for name, found in self._alive().items():
            self.progress(f"{workload.name}: warming up {name}")
            if self._load(found, workload) and (
                answer := self._guarded(found, workload.name, {"calls": _WARM_CALLS, "warm": 1})
            ):
                per_call_s[name] = min(answer["ns"]) * 1e-9
        if not per_call_s:
            return {}
        calls = max(1, min(_MAX_CALLS, int(_TURN_S / statistics.median(per_call_s.values()))))
        # A turn of several calls begins with one untimed: the caches hold what the process before left there.
        warm = 1 if calls > 1 else 0
        round_s = sum(per_call_s.values()) * (calls + warm)
        rounds = int((share_s - (time.monotonic() - began)) / round_s)
        rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, rounds))
        for number, order in enumerate(orders(list(per_call_s), rounds, self.seed), start=1):
            self.progress(f"{workload.name}: round {number}/{rounds}")
            for name in order:
                found = self._found[name]
                if workload.name not in found.problems and found.child:
                    answer = self._guarded(found, workload.name, {"calls": calls, "warm": warm})
                    if answer:
                        found.rounds_ns.setdefault(workload.name, []).append(tuple(answer["ns"]))
        return {f"rounds {workload.name}": rounds, f"calls a round {workload.name}": calls}

    def _load(self, found: _Measured, workload: Workload) -> bool:
        """Hands the feeds to a child."""
        assert found.child is not None
        dtypes = {spec.name: spec.dtype for spec in self.manifest.io.inputs}
        try:
            found.child.ask("feeds", name=workload.name, path=self._feeds[workload.name], dtypes=dtypes)
        except AttnportError as err:
            self._note(found, workload.name, err)
            return False
        return True

    def _guarded(self, found: _Measured, workload: str, request: dict[str, Any] | None) -> dict[str, Any] | None:
        """An answer of a child, or None after its failure was noted; `request` None waits for one already sent.

        Raises:
            SpecError, IntegrityError: the folder is not what it was, which no other runtime can mend.
        """
        assert found.child is not None
        try:
            if request is not None:
                now = time.perf_counter_ns()
                found.idle_ns += now - found.answered_ns if found.answered_ns else 0
                found.child.send("run", name=workload, **request)
            answer = found.child.receive(timeout_s=600.0)
        except (SpecError, IntegrityError):
            raise
        except AttnportError as err:
            self._note(found, workload, err)
            return None
        if found.answered_ns and request is not None:
            found.idle_cpu_ns += answer["idle_cpu_ns"]
        if request is not None:
            found.answered_ns = time.perf_counter_ns()
        return answer

    def _note(self, found: _Measured, workload: str, err: AttnportError) -> None:
        """Keeps why a runtime has no figures: for this workload if it lives on, else for all that are not done."""
        child = found.child
        if workload and child and child.alive:
            found.problems[workload] = portable(reason_of(err), self.folder)
            return
        problem = f"its process failed: {err.message}" if isinstance(err, ChildError) else reason_of(err)
        found.problem = portable(problem, self.folder)
        if workload:
            found.problems[workload] = found.problem
        if child:
            child.kill()
        found.child = None

    def _take_memory(self, name: str, found: _Measured) -> None:
        """Peak memory by workload in a fresh process, the small ones first, so that a peak is its own."""
        if found.problem or not found.rounds_ns:
            return
        self.progress(f"memory of {name}")
        child = Child(self.threads)
        dtypes = {spec.name: spec.dtype for spec in self.manifest.io.inputs}
        try:
            ordered = sorted(self.workloads, key=lambda one: sum(array.size for array in one.feeds.values()))
            ordered = [workload for workload in ordered if workload.name in found.rounds_ns]
            for workload in ordered:
                child.ask("feeds", name=workload.name, path=self._feeds[workload.name], dtypes=dtypes)
            child.ask("level", modules=found.modules)
            child.ask("open", **found.opening)
            for workload in ordered:
                child.ask("run", name=workload.name, calls=2, warm=0)
                found.peaks[workload.name] = int(child.ask("peak")["peak_bytes"])
        except (SpecError, IntegrityError):
            raise
        except AttnportError as err:
            found.no_peaks = f"its peak memory is not known: {err.message}"
        finally:
            child.kill()

    def _alive(self) -> dict[str, _Measured]:
        return {name: found for name, found in self._found.items() if found.child}

    def _stop(self) -> None:
        for found in self._found.values():
            if found.child:
                found.child.kill()
                found.child = None


def _samples(found: _Measured, workload: str, idle_share: float) -> Samples:
    """A runtime's samples; those of a workload that it did not finish are left out."""
    problem = found.problems.get(workload, "")
    rounds = () if problem else tuple(found.rounds_ns.get(workload, ()))
    spun = f"its threads took {idle_share:.0%} of a core while others ran" if idle_share > _SPINNING else ""
    note = "; ".join(filter(None, (spun, found.no_peaks)))
    samples = Samples(rounds, problem, note, found.ran, found.peaks.get(workload))
    return samples if rounds or problem else replace(samples, problem=found.problem)
