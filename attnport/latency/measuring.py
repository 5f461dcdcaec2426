"""Times runtimes in turns, each in a process of its own, then measures cold starts and memory in new processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from attnport.artifacts import LatencyReport, LatencyRow, Manifest, Ran
from attnport.errors import AttnportError, IntegrityError, SpecError
from attnport.folder.portable import portable
from attnport.latency.gpu_state import gpu_state
from attnport.latency.rows import Measured, drift, next_look, orders, precise, rows, settled
from attnport.latency.workloads import Workload
from attnport.processes.isolated import (
    TIMEOUT_S,
    WORKER,
    Child,
    ChildError,
    OutOfTime,
    as_message,
    end_s,
    memory_limit_bytes,
    reason_of,
    reason_of_failure,
)
from attnport.processes.worker import save_feeds
from attnport.runtimes.base import Opening, Runtime, cores, physical_cores
from attnport_bundle import arguments

BASELINE = "torch_eager"
MIN_ROUNDS, MAX_ROUNDS = 12, 1000
SPINNING = 0.05
"""The share of a core that an idle process may take; more would disturb the one being timed."""

_TURN_S, _MAX_CALLS = 0.02, 8
_COLD_CALLS = 3
"""Time to reserve for the two first calls of a fresh process, as a multiple of a warm call."""
_LEAST_WINDOWS, _MOST_WINDOWS, _WARM_SHARE = 3, 12, 0.3
_DRIFTED, _OVER_BUDGET = 0.1, 0.1
_COLD = "load time, first call and peak memory"
_LATE = "the time was over before it was measured"

Subject = tuple[Runtime, Opening | str]
"""A runtime, and what it opens, or why there is nothing to open."""


@dataclass(frozen=True)
class Effort:
    """The settings of a measurement, which are equal for all runtimes and recorded in the report: arguments of `bench`.

    `precision` is its `within`: a workload is finished once every ratio is known within this share. At least
    `MIN_ROUNDS` rounds are always made, whatever the time.
    """

    threads: int
    budget_s: float = 60.0
    precision: float = 0.03
    samples: int = 0
    pin: bool = True
    seed: int = 0
    baseline: str = BASELINE
    timeout_s: float = TIMEOUT_S
    cold: bool = True
    starts: int = 1

    def __post_init__(self) -> None:
        """Raises FeedError for a number that has no meaning."""
        arguments.threads(self.threads)
        arguments.integer("samples", self.samples, 0)
        arguments.integer("starts", self.starts, 1)
        arguments.number("budget_s", self.budget_s, 0)
        arguments.number("precision", self.precision, 0)
        arguments.number("timeout_s", self.timeout_s, 0, above=True)


@dataclass
class _Timed:
    """A runtime in one of its modes: its process while that lives, and what was measured of it, by workload.

    Attributes:
        keeps: Whether it keeps what it compiles on the device.
        lost: A row that says why it has no figures for workloads that were not timed; None if nothing prevents it.
        idle_cpu_ns: Processor time that it took while others ran, which was `idle_ns` in all.
        answered_ns: When it last answered; 0 in a process that has not run yet.
    """

    child: Child | None = None
    opening: dict[str, Any] = field(default_factory=dict)
    mode: str = ""
    modules: list[str] = field(default_factory=list)
    ran: Ran | None = None
    keeps: bool = False
    lost: LatencyRow | None = None
    of: defaultdict[str, Measured] = field(default_factory=lambda: defaultdict(Measured))
    idle_cpu_ns: int = 0
    idle_ns: int = 0
    answered_ns: int = 0

    def in_mode(self, mode: str) -> _Timed:
        """The same process in another mode, with nothing measured yet."""
        return _Timed(self.child, self.opening, mode, self.modules, self.ran, self.keeps)

    @property
    def was_timed(self) -> bool:
        """Whether any call was."""
        return any(own.rounds_ns for own in self.of.values())

    def lose(self, workload: str, lost: LatencyRow) -> None:
        """Records why it has no figures for a workload."""
        own = self.of[workload]
        own.row = replace(own.row, kind=lost.kind, reason=lost.reason)


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
        progress: Callable[[str], None],
        began_s: float | None = None,
    ) -> None:
        """Writes the feeds into `scratch`, from where the processes read them.

        Args:
            subjects: What to time, by the name of its row.
            began_s: The time (of `time.monotonic`) from which the budget counts; None = now.
        """
        self._subjects, self._folder, self._manifest, self._workloads = subjects, folder, manifest, workloads
        self._effort, self._progress = effort, progress
        self._began = time.monotonic() if began_s is None else began_s
        self._until = min(self._began + effort.budget_s, end_s())
        self._on_gpu = any(runtime.gpu and isinstance(opening, Opening) for runtime, opening in subjects.values())
        self._reserved_s = 0.0
        self._calls: dict[str, int] = {}
        self._memory_bytes = memory_limit_bytes()
        self._processors = processors(effort.threads) if effort.pin else []
        self._timed: dict[str, _Timed] = {}
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
                alive = sum(timed.child is not None for timed in self._timed.values())
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
            code=self._manifest.source.code_digest,
            notes=tuple(self._notes),
        )

    def _idle_shares(self) -> dict[str, float]:
        """The share of a core that each process took while others ran; of one that is alone there is none."""
        timed_ones = {name: timed for name, timed in self._timed.items() if timed.was_timed}
        if len({str(timed.opening) for timed in timed_ones.values()}) < 2:
            return {}
        return {name: timed.idle_cpu_ns / timed.idle_ns for name, timed in timed_ones.items() if timed.idle_ns}

    def _rows(self, workload: Workload, shares: Mapping[str, float]) -> dict[str, LatencyRow]:
        measured = {}
        for name, timed in self._timed.items():
            measured[name] = own = timed.of[workload.name]
            if (share := shares.get(name, 0.0)) > SPINNING:
                own.notes.insert(0, f"its threads took {share:.0%} of a core while others ran")
            own.row = replace(own.row, ran=timed.ran)
            if timed.lost and not own.row.kind and not own.rounds_ns:
                timed.lose(workload.name, timed.lost)
        counts = workload.items, workload.tokens, self._effort.seed
        return rows(measured, self._effort.baseline, *counts, precision=self._effort.precision)

    def _start(self) -> None:
        """Opens everything, all at the same time."""
        for name, (runtime, opening) in self._subjects.items():
            timed = self._timed.setdefault(name, _Timed(keeps=runtime.keeps))
            timed.answered_ns = 0
            if isinstance(opening, str):
                timed.lost = LatencyRow(reason=opening, kind="unavailable")
                continue
            if timed.lost:  # a process that failed is not started again
                continue
            timed.opening = as_message(runtime, opening, self._folder, self._manifest)
            self._progress(f"starting {name}")
            timed.child = self._child()
            timed.child.send("settle", processors=self._processors)
        for name, timed in [(name, timed) for name, timed in self._timed.items() if timed.child]:
            answer = self._guarded(timed, "", None)
            if answer and timed.child:
                self._judge_pinning(answer)
                timed.child.send("open", **timed.opening)
                self._progress(f"opening {name}")
        for name, timed in [(name, timed) for name, timed in self._timed.items() if timed.child]:
            answer = self._guarded(timed, "", None)
            if answer:
                timed.ran, timed.modules = Ran(**answer["ran"]), answer["modules"]
                timed.mode, *others = answer["modes"] or [""]
                for mode in others:
                    key = f"{name} ({mode})"
                    self._timed.setdefault(key, timed.in_mode(mode)).child = timed.child

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
                    for timed in self._timed.values():
                        if not timed.lost and not timed.of[late.name].row.kind:
                            timed.lose(late.name, LatencyRow(reason=_LATE, kind="late"))
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
                self._turn(self._timed[name], workload.name, calls, warm)
        self._tell_gpu(f"after {workload.name}")
        for name in per_call_s:
            self._timed[name].of[workload.name].starts.append(done)
        self._settings |= {
            f"rounds {workload.name}": int(self._settings.get(f"rounds {workload.name}", 0)) + done,
            f"calls a round {workload.name}": calls,
            f"ended by {workload.name}": ended,
        }
        self._judge_drift(workload, done)

    def _warm_up(self, workload: Workload, share_s: float) -> dict[str, float]:
        """Calls each runtime until its times settle; returns the seconds of a call."""
        per_call_s: dict[str, float] = {}
        alive = {name: timed for name, timed in self._timed.items() if timed.child}
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
            own = timed.of[workload.name]
            if not answer:
                per_call_s.pop(name, None)
            elif not settled(windows):
                own.warm = False
            own.row = replace(own.row, warm_calls=calls_made)
        return per_call_s

    def _turn(self, timed: _Timed, workload: str, calls: int, warm: int) -> None:
        """Times one runtime in one round."""
        own = timed.of[workload]
        if own.row.kind or not timed.child:
            return
        answer = self._guarded(timed, workload, {"calls": calls, "warm": warm})
        if answer:
            own.rounds_ns.append(tuple(answer["ns"]))
            for part, times in answer["parts"].items():
                own.parts_ns.setdefault(part, []).extend(times)

    def _precise(self, workload: Workload, done: int) -> bool:
        """Whether every ratio is known precisely enough, from the rounds of this start."""
        sampled = {
            name: own.rounds_ns[-done:]
            for name, timed in self._timed.items()
            if (own := timed.of[workload.name]).rounds_ns and not own.row.kind
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
        base = self._timed[name].of[workload.name].rounds_ns if name in self._timed else []
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
            self._notes.append(f"{max(0.0, left_s):.1f} s of its budget of {budget_s:.0f} s were left when it began")
        if took_s > budget_s * (1 + _OVER_BUDGET):
            self._notes.append(
                f"it took {took_s:.0f} s of a budget of {budget_s:.0f} s: {MIN_ROUNDS} rounds of each workload are the "
                "least that an interval is made of"
            )

    def _child(self) -> Child:
        return Child(self._effort.threads, WORKER, self._memory_bytes)

    def _load(self, timed: _Timed, workload: Workload) -> bool:
        """Makes a child load the feeds."""
        assert timed.child is not None
        try:
            timed.child.ask("feeds", **self._of_feeds(workload))
        except AttnportError as err:
            self._note(timed, workload.name, err)
            return False
        return True

    def _of_feeds(self, workload: Workload) -> dict[str, Any]:
        dtypes = {spec.name: spec.dtype for spec in self._manifest.io.inputs}
        return {"name": workload.name, "path": self._feeds[workload.name], "dtypes": dtypes}

    def _guarded(self, timed: _Timed, workload: str, request: dict[str, Any] | None) -> dict[str, Any] | None:
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

    def _note(self, timed: _Timed, workload: str, err: AttnportError) -> None:
        """Records why a runtime has no figures: for this workload if its process lives, otherwise from now on."""
        child = timed.child
        lives = bool(workload and child and child.alive)
        died = isinstance(err, ChildError) and not lives
        text = portable(reason_of_failure(err) if died else reason_of(err), self._folder)
        lost = LatencyRow(reason=text, kind="died" if died else "unavailable")
        if workload:
            timed.lose(workload, lost)
        if lives:
            return
        timed.lost = lost
        if self._effort.starts > 1:  # not every start was timed
            for own in timed.of.values():
                own.rounds_ns.clear()
        if child:
            child.kill()
        timed.child = None

    def _take_cold(self) -> None:
        """Measures load time, first calls and peak memory in fresh processes, one alone at a time.

        Raises:
            SpecError, IntegrityError: the folder has changed, which affects every runtime.
        """
        if not self._effort.cold:
            self._notes.append(f"{_COLD} were not measured, as was asked for")
            return
        late = []
        for name, timed in self._timed.items():
            if timed.lost or not timed.was_timed:
                continue
            try:
                if time.monotonic() > self._until:
                    raise OutOfTime
                self._progress(f"memory of {name}")
                with tempfile.TemporaryDirectory(prefix="attnport-kept-") as folder:
                    cache = folder if timed.keeps else None
                    self._cold_start(timed, cache)
                    if cache:
                        self._cold_start(timed, cache, cached=True)
            except OutOfTime:
                late.append(name)
            except (SpecError, IntegrityError):
                raise
            except AttnportError as err:
                for own in timed.of.values():
                    own.notes.append(f"its {_COLD} are unknown: {err.message}")
        if late:
            self._notes.append(f"{_COLD} of {', '.join(late)} were not measured: the time was over")

    def _cold_start(self, timed: _Timed, cache: str | None, *, cached: bool = False) -> None:
        """Times a fresh process on the workloads that were timed, small ones first: peaks include those before.

        Args:
            cache: Where the runtime keeps what it compiles. The process is then closed, so that it fills it.
            cached: Whether an earlier process has filled it.

        Raises:
            AttnportError: the process died, or answered with this error.
        """
        workloads = [workload for workload in self._workloads if timed.of[workload.name].rounds_ns]
        workloads.sort(key=lambda workload: sum(array.size for array in workload.feeds.values()))
        child = self._child()
        ask = partial(child.ask, timeout_s=self._effort.timeout_s)
        try:
            ask("settle", processors=self._processors)
            for workload in workloads:
                ask("feeds", **self._of_feeds(workload))
            ask("level", modules=timed.modules)
            load_ns = int(ask("open", **timed.opening | {"cache": cache})["load_ns"])
            for workload in workloads:
                own = timed.of[workload.name]
                first_ns = ask("run", name=workload.name, calls=2, warm=0, mode=timed.mode)["ns"][0]
                if cached:
                    own.row = replace(own.row, cached_load_ns=load_ns, cached_first_ns=first_ns)
                else:
                    peak_bytes = int(ask("peak")["peak_bytes"])
                    own.row = replace(own.row, load_ns=load_ns, first_ns=first_ns, peak_bytes=peak_bytes)
            if cache:
                ask("close")
        finally:
            child.kill()

    def _stop(self) -> None:
        for timed in self._timed.values():
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
    return cores()[-threads:] if threads <= physical_cores() else sorted(os.sched_getaffinity(0))
