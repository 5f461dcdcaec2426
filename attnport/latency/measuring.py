"""Times runtimes in turns, each in a process of its own, and takes memory and cold times in further ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from attnport.artifacts import LatencyReport, LatencyRow, Manifest, Ran
from attnport.errors import AttnportError, IntegrityError, SpecError
from attnport.folder.openings import file_of
from attnport.folder.portable import portable
from attnport.latency.clocks import MOST_DRIFT_PPM, DriftWatch, processors
from attnport.latency.cold import Start
from attnport.latency.judging import drift, next_look, orders, precise, rows, settled
from attnport.latency.measured import SPINNING, TimedRuntime, samples_of
from attnport.latency.timing_worker import COMMAND
from attnport.latency.workloads import Workload
from attnport.parity.evaluate import Progress
from attnport.processes.child import Child, ChildError, reason_of
from attnport.processes.isolated import TIMEOUT_S, memory_limit_bytes, reason_of_failure
from attnport.processes.worker import save_feeds
from attnport.runtimes.base import Opening, Runtime

BASELINE = "torch_eager"
MIN_ROUNDS, MAX_ROUNDS = 12, 1000

_TURN_S, _MAX_CALLS = 0.02, 8
_LEAST_WINDOWS, _MOST_WINDOWS, _WARM_SHARE = 3, 12, 0.3
_DRIFTED = 0.1

Subject = tuple[Runtime, Opening | None, str]
"""A runtime, what it opens, and why there is nothing that it opens where that is None."""


@dataclass(frozen=True)
class Effort:
    """How a measurement is made; equal for all runtimes, recorded with it.

    Attributes:
        budget_s: About how long all of it may take; at least `MIN_ROUNDS` are made whatever it says.
        precision: A workload is done when every ratio is known within this share.
        samples: Calls that every runtime makes at least, if there is time: p99 needs 1000.
        pin: Whether processes stay on processors of their own, where the system allows it.
        baseline: The runtime that the others are compared with.
        timeout_s: Seconds for each answer of a process: opening, the calls of a turn.
    """

    threads: int
    budget_s: float = 60.0
    precision: float = 0.03
    samples: int = 0
    pin: bool = True
    seed: int = 0
    baseline: str = BASELINE
    timeout_s: float = TIMEOUT_S


class Measuring:
    """One measurement of an artifact folder."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        subjects: Mapping[str, Subject],
        workloads: Sequence[Workload],
        effort: Effort,
        scratch: Path,
        progress: Progress,
    ) -> None:
        """Writes the feeds into `scratch`, where the processes read them.

        Args:
            subjects: What is timed, by the name of its row.
        """
        self._subjects = subjects
        self._folder, self._manifest, self._workloads = folder, manifest, workloads
        self._effort, self._progress = effort, progress
        self._began = time.monotonic()
        self._watch = DriftWatch()
        self._memory_bytes = memory_limit_bytes()
        self._processors = processors(effort.threads) if effort.pin else []
        self._found: dict[str, TimedRuntime] = {}
        self._settings: dict[str, str | int | float | bool] = {}
        self._notes: list[str] = []
        self._feeds: dict[str, str] = {}
        for number, workload in enumerate(workloads):
            path = scratch / f"{number}.npz"
            save_feeds(path, workload.feeds)
            self._feeds[workload.name] = str(path)

    def report(self, settings: dict[str, str | int | float | bool]) -> LatencyReport:
        """Times everything, then takes memory and cold times; `settings` are recorded with what is found out here."""
        try:
            self._start()
            started_s = time.monotonic() - self._began
            for number, workload in enumerate(self._workloads):
                # What starting took, memory takes again: its processes start one after the other.
                left_s = self._effort.budget_s - (time.monotonic() - self._began) - started_s
                self._time(workload, left_s / (len(self._workloads) - number))
            self._stop()
            for name, found in self._found.items():
                self._take_cold(name, found)
        finally:
            self._stop()
        self._judge_clock()
        shares = {name: found.idle_cpu_ns / found.idle_ns for name, found in self._found.items() if found.idle_ns}
        self._settings["spinning"] = any(share > SPINNING for share in shares.values())
        self._settings |= {f"idle processor share {name}": round(share, 4) for name, share in shares.items()}
        return LatencyReport(
            baseline=self._effort.baseline,
            settings=settings | self._settings,
            shapes={workload.name: self._rows(workload, shares) for workload in self._workloads},
            items={workload.name: workload.items for workload in self._workloads},
            tokens={workload.name: workload.tokens for workload in self._workloads},
            model=self._manifest.name,
            weights=self._manifest.source.weights_digest,
            notes=tuple(self._notes),
        )

    def _rows(self, workload: Workload, shares: dict[str, float]) -> dict[str, LatencyRow]:
        samples = {name: samples_of(found, workload.name, shares.get(name, 0.0)) for name, found in self._found.items()}
        given = workload.items, workload.tokens, self._effort.seed
        return rows(samples, self._effort.baseline, *given, precision=self._effort.precision)

    def _start(self) -> None:
        """Opens everything, all at the same time."""
        for name, (runtime, opening, why_not) in self._subjects.items():
            found = self._found[name] = TimedRuntime(keeps=runtime.keeps)
            if opening is None:
                found.problem = why_not
                continue
            engines = [key for key, record in self._manifest.engines.items() if record == opening.engine]
            found.opening = {
                "runtime": runtime.name,
                "folder": str(self._folder),
                "threads": self._effort.threads,
                "plan": opening.plan,
                "model": file_of(opening, self._folder),
                "engine": engines[0] if engines else None,
                "form": opening.form,
            }
            self._progress(f"starting {name}")
            found.child = self._child()
            found.child.send("settle", processors=self._processors)
        for name, found in [(name, found) for name, found in self._found.items() if found.child]:
            answer = self._guarded(found, "", None)
            if answer and found.child:
                self._judge_pinning(answer)
                found.resolution_ns = answer["resolution_ns"]
                found.child.send("open", **found.opening)
                self._progress(f"opening {name}")
        for name, found in [(name, found) for name, found in self._found.items() if found.child]:
            answer = self._guarded(found, "", None)
            if answer:
                found.ran, found.modules = Ran(**answer["ran"]), answer["modules"]
                found.mode, *others = answer["modes"] or [""]
                for mode in others:
                    self._found[f"{name} ({mode})"] = found.in_mode(mode)

    def _time(self, workload: Workload, share_s: float) -> None:
        """All rounds of one workload."""
        deadline = time.monotonic() + share_s
        per_call_s = self._warm_up(workload, share_s)
        if not per_call_s:
            return
        calls = max(1, min(_MAX_CALLS, int(_TURN_S / median(per_call_s.values()))))
        # A turn of several calls begins with one untimed: the caches hold what the process before left there.
        warm = 1 if calls > 1 else 0
        least = max(MIN_ROUNDS, -(-self._effort.samples // calls))
        done, look, ended = 0, next_look(0), "rounds"
        for order in orders(list(per_call_s), max(MAX_ROUNDS, least), self._effort.seed):
            if done >= MIN_ROUNDS and time.monotonic() > deadline:
                ended = "time"
                break
            if done >= max(least, look):
                look = next_look(done)
                if self._precise(workload):
                    ended = "precision"
                    break
            done += 1
            self._progress(f"{workload.name}: round {done}/")
            for name in order:
                self._turn(self._found[name], workload.name, calls, warm)
        self._settings |= {
            f"rounds {workload.name}": done,
            f"calls a round {workload.name}": calls,
            f"ended by {workload.name}": ended,
        }
        self._judge_drift(workload)

    def _warm_up(self, workload: Workload, share_s: float) -> dict[str, float]:
        """Calls each runtime until its times settle; returns the seconds of a call."""
        per_call_s: dict[str, float] = {}
        alive = {name: found for name, found in self._found.items() if found.child}
        for name, found in alive.items():
            self._progress(f"{workload.name}: warming up {name}")
            if not self._load(found, workload):
                continue
            deadline = time.monotonic() + _WARM_SHARE * share_s / len(alive)
            windows: list[Sequence[int]] = []
            answer = self._guarded(found, workload.name, {"calls": 1, "warm": 0})
            made = 1
            while answer:
                per_call_s[name] = median(answer["ns"]) * 1e-9
                if settled(windows) or len(windows) == _MOST_WINDOWS:
                    break
                if len(windows) >= _LEAST_WINDOWS and time.monotonic() > deadline:
                    break
                calls = max(1, min(_MAX_CALLS, int(_TURN_S / per_call_s[name])))
                answer = self._guarded(found, workload.name, {"calls": calls, "warm": 0})
                if answer:
                    made += calls
                    windows.append(answer["ns"])
            if not answer:
                per_call_s.pop(name, None)
            elif not settled(windows):
                found.unsettled.add(workload.name)
            found.warm_calls[workload.name] = made
        return per_call_s

    def _turn(self, found: TimedRuntime, workload: str, calls: int, warm: int) -> None:
        """What one runtime does in one round."""
        if workload in found.problems or not found.child:
            return
        answer = self._guarded(found, workload, {"calls": calls, "warm": warm})
        if answer:
            found.rounds_ns.setdefault(workload, []).append(tuple(answer["ns"]))
            for part, times in answer.get("parts", {}).items():
                found.parts_ns.setdefault(workload, {}).setdefault(part, []).extend(times)

    def _precise(self, workload: Workload) -> bool:
        """Whether more rounds would say nothing new."""
        sampled = {
            name: found.rounds_ns[workload.name]
            for name, found in self._found.items()
            if workload.name in found.rounds_ns and workload.name not in found.problems
        }
        # Without the baseline there is no ratio that could become narrower.
        by = self._effort.baseline
        return by not in sampled or precise(sampled, by, self._effort.precision, self._effort.seed)

    def _judge_pinning(self, answer: dict[str, Any]) -> None:
        pinned = ",".join(map(str, answer["pinned"]))
        asked = "not asked for" if not self._effort.pin else "not possible on this system"
        self._settings["pinned to processors"] = pinned or answer["problem"] or asked

    def _judge_drift(self, workload: Workload) -> None:
        """Says when the machine itself was not the same at the end; turns make that fair, but not unimportant."""
        name = self._effort.baseline
        base = self._found[name].rounds_ns.get(workload.name, []) if name in self._found else []
        if not base:
            return
        share = drift(base)
        self._settings[f"drift {workload.name}"] = round(share, 4)
        if abs(share) > _DRIFTED:
            change = "slower" if share > 0 else "faster"
            self._notes.append(
                f"{workload.name}: {name} was {abs(share):.0%} {change} at the end than at the beginning; the "
                "medians are those of a machine that changed, the ratios compare like with like"
            )

    def _judge_clock(self) -> None:
        ppm = self._watch.ppm()
        self._settings["timer drift ppm"] = round(ppm, 1)
        steps = [found.resolution_ns for found in self._found.values() if found.resolution_ns]
        self._settings["timer resolution ns"] = max(steps, default=0)
        if abs(ppm) > MOST_DRIFT_PPM:
            self._notes.append(f"the timer ran {ppm:+.0f} parts in a million off the machine's raw clock")

    def _child(self) -> Child:
        return Child(self._effort.threads, COMMAND, self._memory_bytes)

    def _load(self, found: TimedRuntime, workload: Workload) -> bool:
        """Hands the feeds to a child."""
        assert found.child is not None
        dtypes = {spec.name: spec.dtype for spec in self._manifest.io.inputs}
        try:
            found.child.ask("feeds", name=workload.name, path=self._feeds[workload.name], dtypes=dtypes)
        except AttnportError as err:
            self._note(found, workload.name, err)
            return False
        return True

    def _guarded(self, found: TimedRuntime, workload: str, request: dict[str, Any] | None) -> dict[str, Any] | None:
        """An answer of a child, or None after its failure was noted; `request` None waits for one already sent.

        Raises:
            SpecError, IntegrityError: the folder is not what it was, which no other runtime can mend.
        """
        assert found.child is not None
        try:
            if request is not None:
                now = time.perf_counter_ns()
                found.idle_ns += now - found.answered_ns if found.answered_ns else 0
                found.child.send("run", name=workload, mode=found.mode, **request)
            answer = found.child.receive(timeout_s=self._effort.timeout_s)
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

    def _note(self, found: TimedRuntime, workload: str, err: AttnportError) -> None:
        """Keeps why a runtime has no figures: for this workload if it lives on, else for all that are not done."""
        child = found.child
        if workload and child and child.alive:
            found.problems[workload] = portable(reason_of(err), self._folder)
            return
        problem = reason_of_failure(err) if isinstance(err, ChildError) else reason_of(err)
        found.problem = portable(problem, self._folder)
        if workload:
            found.problems[workload] = found.problem
        if child:
            child.kill()
        found.child = None

    def _take_cold(self, name: str, found: TimedRuntime) -> None:
        """Load time, first calls and peak memory, in a fresh process with nothing else alive."""
        if found.problem or not found.rounds_ns:
            return
        self._progress(f"memory of {name}")
        measured = [workload for workload in self._workloads if workload.name in found.rounds_ns]
        dtypes = {spec.name: spec.dtype for spec in self._manifest.io.inputs}
        start = Start(self._child, self._processors, self._feeds, dtypes)
        try:
            start.cold(found, measured)
        except (SpecError, IntegrityError):
            raise
        except AttnportError as err:
            found.no_cold = f"its load time, first call and peak memory are not known: {err.message}"

    def _stop(self) -> None:
        for found in self._found.values():
            if found.child:
                found.child.kill()
                found.child = None
