"""Times runtimes in turns, each in a process of its own, then measures cold starts and memory in new processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attnport.artifacts import LatencyReport, LatencyRow, Manifest, Ran
from attnport.errors import AttnportError, IntegrityError, SpecError
from attnport.folder.openings import file_of
from attnport.folder.portable import portable
from attnport.latency.cold import Start
from attnport.latency.effort import Effort, Subject
from attnport.latency.gpu_state import gpu_state
from attnport.latency.judging import drift, next_look, orders, precise, rows, settled
from attnport.latency.measured import SPINNING, TimedRuntime
from attnport.latency.timing_worker import COMMAND
from attnport.latency.workloads import Workload
from attnport.parity.evaluate import Progress
from attnport.processes.child import Child, ChildError, reason_of
from attnport.processes.deadline import OutOfTime, end_s
from attnport.processes.isolated import memory_limit_bytes, reason_of_failure
from attnport.processes.worker import save_feeds
from attnport.runtimes.base import physical_cores

MIN_ROUNDS, MAX_ROUNDS = 12, 1000

LATE = "the time was over before it was measured"
"""The reason in rows of a workload that was left out; the next run measures it."""

_TURN_S, _MAX_CALLS = 0.02, 8
_COLD_CALLS = 3
"""What the first calls of a fresh process take, in usual calls: there are two, and the first is slower."""
_LEAST_WINDOWS, _MOST_WINDOWS, _WARM_SHARE = 3, 12, 0.3
_DRIFTED, _OVER_BUDGET = 0.1, 0.1


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
        began_s: float | None = None,
    ) -> None:
        """Writes the feeds into `scratch`, from where the processes read them.

        Args:
            subjects: What to time, by the name of its row.
            began_s: The time (of `time.monotonic`) from which the budget counts; None = now.
        """
        self._subjects = subjects
        self._folder, self._manifest, self._workloads = folder, manifest, workloads
        self._effort, self._progress = effort, progress
        self._began = time.monotonic() if began_s is None else began_s
        self._until = min(self._began + effort.budget_s, end_s())
        self._on_gpu = any(runtime.gpu and opening is not None for runtime, opening, _ in subjects.values())
        self._reserved_s = 0.0
        self._calls: dict[str, int] = {}
        self._memory_bytes = memory_limit_bytes()
        self._processors = processors(effort.threads) if effort.pin else []
        self._timed_runtimes: dict[str, TimedRuntime] = {}
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
            for starts_left in range(self._effort.starts, 0, -1):
                before_s = time.monotonic()
                self._start()
                took_s = time.monotonic() - before_s
                alive = sum(timed.child is not None for timed in self._timed_runtimes.values())
                # Cold starts are measured one after the other; these processes started at once, on all cores.
                if self._effort.cold and not self._calls:
                    self._reserved_s = took_s * max(1, min(alive, physical_cores()))
                left_s = self._until - time.monotonic() - self._reserved_s - (starts_left - 1) * took_s
                self._time_all(time.monotonic() + left_s / starts_left)
                self._stop()
            self._take_cold()
        finally:
            self._stop()
        self._judge_budget()
        shares = self._idle_shares()
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

    def _idle_shares(self) -> dict[str, float]:
        """The share of a core that each process took while others ran; of one that is alone there is none."""
        timed_ones = {name: timed for name, timed in self._timed_runtimes.items() if timed.was_timed}
        if len({str(timed.opening) for timed in timed_ones.values()}) < 2:
            return {}
        return {name: timed.idle_cpu_ns / timed.idle_ns for name, timed in timed_ones.items() if timed.idle_ns}

    def _rows(self, workload: Workload, shares: dict[str, float]) -> dict[str, LatencyRow]:
        samples = {
            name: timed.samples(workload.name, shares.get(name, 0.0)) for name, timed in self._timed_runtimes.items()
        }
        counts = workload.items, workload.tokens, self._effort.seed
        return rows(samples, self._effort.baseline, *counts, precision=self._effort.precision)

    def _start(self) -> None:
        """Opens everything, all at the same time."""
        for name, (runtime, opening, why_not) in self._subjects.items():
            timed = self._timed_runtimes.setdefault(name, TimedRuntime(keeps=runtime.keeps))
            timed.answered_ns = 0
            if opening is None or timed.problem:  # a process that failed is not started again
                timed.problem = timed.problem or why_not
                continue
            engines = [key for key, record in self._manifest.engines.items() if record == opening.engine]
            timed.opening = {
                "runtime": runtime.name,
                "folder": str(self._folder),
                "threads": self._effort.threads,
                "plan": opening.plan,
                "model": file_of(opening, self._folder),
                "engine": engines[0] if engines else None,
                "form": opening.form,
            }
            self._progress(f"starting {name}")
            timed.child = self._child()
            timed.child.send("settle", processors=self._processors)
        for name, timed in [(name, timed) for name, timed in self._timed_runtimes.items() if timed.child]:
            answer = self._guarded(timed, "", None)
            if answer and timed.child:
                self._judge_pinning(answer)
                timed.child.send("open", **timed.opening)
                self._progress(f"opening {name}")
        for name, timed in [(name, timed) for name, timed in self._timed_runtimes.items() if timed.child]:
            answer = self._guarded(timed, "", None)
            if answer:
                timed.ran, timed.modules = Ran(**answer["ran"]), answer["modules"]
                timed.mode, *others = answer["modes"] or [""]
                for mode in others:
                    key = f"{name} ({mode})"
                    self._timed_runtimes.setdefault(key, timed.in_mode(mode)).child = timed.child

    def _time_all(self, until_s: float) -> None:
        """Times every workload in the processes that have started; leaves out those for which no time is left.

        Raises:
            OutOfTime: there was none for the first of them.
        """
        for number, workload in enumerate(self._workloads):
            left_s = until_s - time.monotonic()
            try:
                self._time(workload, left_s / (len(self._workloads) - number))
            except OutOfTime:
                if not number:
                    raise
                for late in self._workloads[number:]:
                    for timed in self._timed_runtimes.values():
                        if not timed.problem and not timed.of[late.name].problem:
                            timed.of[late.name].problem = LATE
                return

    def _time(self, workload: Workload, share_s: float) -> None:
        """Times all rounds of one workload."""
        deadline = time.monotonic() + share_s
        per_call_s = self._warm_up(workload, share_s)
        if not per_call_s:
            return
        if self._effort.cold and workload.name not in self._calls:
            again_s = _COLD_CALLS * sum(per_call_s.values())
            self._reserved_s += again_s
            deadline -= again_s
        fitting = int(_TURN_S / median(per_call_s.values()))
        calls = self._calls.setdefault(workload.name, max(1, min(_MAX_CALLS, fitting)))
        # A turn of several calls begins with an untimed one, as another process has used the caches before.
        warm = 1 if calls > 1 else 0
        least = max(MIN_ROUNDS, -(-self._effort.samples // (calls * self._effort.starts)))
        done, look, ended = 0, next_look(0), "rounds"
        self._tell_gpu(f"before {workload.name}")
        for order in orders(list(per_call_s), max(MAX_ROUNDS, least), self._effort.seed):
            if done >= MIN_ROUNDS and time.monotonic() > deadline:
                ended = "time"
                break
            if done >= max(least, look):
                look = next_look(done)
                if self._precise(workload, done):
                    ended = "precision"
                    break
            done += 1
            left_s = deadline - time.monotonic()
            place = f"{done}, at most {left_s:.0f} s more" if left_s > 0 else f"{done}/{max(done, MIN_ROUNDS)}"
            self._progress(f"{workload.name}: round {place}")
            for name in order:
                self._turn(self._timed_runtimes[name], workload.name, calls, warm)
        self._tell_gpu(f"after {workload.name}")
        for name in per_call_s:
            self._timed_runtimes[name].of[workload.name].starts.append(done)
        self._settings |= {
            f"rounds {workload.name}": int(self._settings.get(f"rounds {workload.name}", 0)) + done,
            f"calls a round {workload.name}": calls,
            f"ended by {workload.name}": ended,
        }
        self._judge_drift(workload, done)

    def _warm_up(self, workload: Workload, share_s: float) -> dict[str, float]:
        """Calls each runtime until its times settle; returns the seconds of a call."""
        per_call_s: dict[str, float] = {}
        alive = {name: timed for name, timed in self._timed_runtimes.items() if timed.child}
        for name, timed in alive.items():
            self._progress(f"{workload.name}: warming up {name}")
            if not self._load(timed, workload):
                continue
            deadline = time.monotonic() + _WARM_SHARE * share_s / len(alive)
            windows: list[Sequence[int]] = []
            answer = self._guarded(timed, workload.name, {"calls": 1, "warm": 0})
            calls_made = 1
            while answer:
                per_call_s[name] = median(answer["ns"]) * 1e-9
                if settled(windows) or len(windows) == _MOST_WINDOWS:
                    break
                if len(windows) >= _LEAST_WINDOWS and time.monotonic() > deadline:
                    break
                calls = max(1, min(_MAX_CALLS, int(_TURN_S / per_call_s[name])))
                answer = self._guarded(timed, workload.name, {"calls": calls, "warm": 0})
                if answer:
                    calls_made += calls
                    windows.append(answer["ns"])
            if not answer:
                per_call_s.pop(name, None)
            elif not settled(windows):
                timed.of[workload.name].warm = False
            timed.of[workload.name].warm_calls = calls_made
        return per_call_s

    def _turn(self, timed: TimedRuntime, workload: str, calls: int, warm: int) -> None:
        """Times one runtime in one round."""
        samples = timed.of[workload]
        if samples.problem or not timed.child:
            return
        answer = self._guarded(timed, workload, {"calls": calls, "warm": warm})
        if answer:
            samples.rounds_ns.append(tuple(answer["ns"]))
            for part, times in answer.get("parts", {}).items():
                samples.parts_ns.setdefault(part, []).extend(times)

    def _precise(self, workload: Workload, done: int) -> bool:
        """Whether every ratio is known precisely enough, from the rounds of this start."""
        sampled = {
            name: samples.rounds_ns[-done:]
            for name, timed in self._timed_runtimes.items()
            if (samples := timed.of[workload.name]).rounds_ns and not samples.problem
        }
        # Without the baseline there is no ratio.
        baseline = self._effort.baseline
        return baseline not in sampled or precise(sampled, baseline, self._effort.precision, self._effort.seed)

    def _judge_pinning(self, answer: dict[str, Any]) -> None:
        pinned = ",".join(map(str, answer["pinned"]))
        why_not = "not asked for" if not self._effort.pin else "not possible on this system"
        self._settings["pinned to processors"] = pinned or answer["problem"] or why_not

    def _tell_gpu(self, when: str) -> None:
        """Records the state of the GPU, if anything is timed on one."""
        if not self._on_gpu:
            return
        state, unknown = gpu_state()
        if state:
            self._settings[f"gpu {when}"] = state
        elif unknown not in self._notes:
            self._notes.append(unknown)

    def _judge_drift(self, workload: Workload, done: int) -> None:
        """Adds a note if the machine itself became slower or faster during the workload's rounds of this start."""
        name = self._effort.baseline
        base = self._timed_runtimes[name].of[workload.name].rounds_ns if name in self._timed_runtimes else []
        if not base:
            return
        share = drift(base[-done:])
        self._settings[f"drift {workload.name}"] = round(share, 4)
        if abs(share) > _DRIFTED:
            change = "slower" if share > 0 else "faster"
            self._notes.append(
                f"{workload.name}: {name} was {abs(share):.0%} {change} at the end than at the beginning; this affects "
                "the medians, but not the ratios, as runtimes took turns"
            )

    def _judge_budget(self) -> None:
        """Adds a note if the fewest rounds, with starts and warm-up, took longer than was asked for."""
        took_s, budget_s = time.monotonic() - self._began, self._effort.budget_s
        if (left_s := self._until - self._began) < budget_s:
            self._notes.append(f"only {max(0.0, left_s):.0f} s of its budget of {budget_s:.0f} s were left")
        if took_s > budget_s * (1 + _OVER_BUDGET):
            self._notes.append(
                f"it took {took_s:.0f} s of a budget of {budget_s:.0f} s: {MIN_ROUNDS} rounds of each workload are the "
                "least that an interval is made of"
            )

    def _child(self) -> Child:
        return Child(self._effort.threads, COMMAND, self._memory_bytes)

    def _load(self, timed: TimedRuntime, workload: Workload) -> bool:
        """Makes a child load the feeds."""
        assert timed.child is not None
        dtypes = {spec.name: spec.dtype for spec in self._manifest.io.inputs}
        try:
            timed.child.ask("feeds", name=workload.name, path=self._feeds[workload.name], dtypes=dtypes)
        except AttnportError as err:
            self._note(timed, workload.name, err)
            return False
        return True

    def _guarded(self, timed: TimedRuntime, workload: str, request: dict[str, Any] | None) -> dict[str, Any] | None:
        """A child's answer, or None after recording its failure; `request` None waits for a request already sent.

        Raises:
            SpecError, IntegrityError: the folder has changed, which affects every runtime.
        """
        assert timed.child is not None
        try:
            if request is not None:
                now = time.perf_counter_ns()
                timed.idle_ns += now - timed.answered_ns if timed.answered_ns else 0
                timed.child.send("run", name=workload, mode=timed.mode, **request)
            answer = timed.child.receive(timeout_s=self._effort.timeout_s)
        except (SpecError, IntegrityError):
            raise
        except AttnportError as err:
            self._note(timed, workload, err)
            return None
        if timed.answered_ns and request is not None:
            timed.idle_cpu_ns += answer["idle_cpu_ns"]
        if request is not None:
            timed.answered_ns = time.perf_counter_ns()
        return answer

    def _note(self, timed: TimedRuntime, workload: str, err: AttnportError) -> None:
        """Records why a runtime has no figures: for this workload if its process lives, otherwise from now on."""
        child = timed.child
        if workload and child and child.alive:
            timed.of[workload].problem = portable(reason_of(err), self._folder)
            return
        problem = reason_of_failure(err) if isinstance(err, ChildError) else reason_of(err)
        timed.problem = portable(problem, self._folder)
        if workload:
            timed.of[workload].problem = timed.problem
        if self._effort.starts > 1:  # not every start was timed
            for samples in timed.of.values():
                samples.rounds_ns.clear()
        if child:
            child.kill()
        timed.child = None

    def _take_cold(self) -> None:
        """Measures load time, first calls and peak memory in fresh processes, with no other process alive."""
        figures = "load time, first call and peak memory"
        if not self._effort.cold:
            self._notes.append(f"{figures} were not measured, as was asked for")
            return
        dtypes = {spec.name: spec.dtype for spec in self._manifest.io.inputs}
        start = Start(self._child, self._processors, self._feeds, dtypes, self._effort.timeout_s)
        left_out = start.every(self._timed_runtimes, self._workloads, self._until, self._progress)
        if left_out:
            self._notes.append(f"{figures} of {', '.join(left_out)} were not measured: the time was over")

    def _stop(self) -> None:
        for timed in self._timed_runtimes.values():
            if timed.child:
                timed.child.kill()
                timed.child = None


def processors(threads: int) -> list[int]:
    """The logical processors to stay on for `threads` threads: one for each thread, on the last cores.

    Most systems handle interrupts on the first processor. The result is all usable processors if there are more threads
    than cores, and empty if the system cannot restrict a process to processors.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    usable = sorted(os.sched_getaffinity(0))
    if threads > physical_cores():
        return usable
    cores: dict[str, int] = {}
    for cpu in usable:
        siblings_file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings_file.read_text().strip() if siblings_file.is_file() else str(cpu), cpu)
    return sorted(cores.values())[-threads:]
