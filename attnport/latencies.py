"""The content of `latency.json` and `tune.json`: rows by workload and runtime. Import these from `artifacts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnport.precisions import Score
from attnport.printed import Printed
from attnport_bundle.format.contract import Ran

Interval = tuple[float, float, float]
"""Low, middle and high of a ratio."""
DEVICE_PARTS = ("host_to_device", "device", "device_to_host")
"""The parts of a call that events on a device's stream time: copying inputs, computing, copying outputs."""


@dataclass(frozen=True)
class LatencyRow:
    """One runtime on one workload; times in ns, a sample for each call.

    Attributes:
        ratio: Low, middle and high of the interval of median / baseline median; below 1 is faster.
        verdict: `faster`, `slower`, `no difference shown`, `baseline`, or `NOT_RUN` without figures.
        reason: What the reader must know of the figures, or why there are none.
        kind: Why there are none: `unavailable`: it cannot run this here; `died`: its process ended; `late`: the time
            ran out. None if there are figures.
        p90_ns: None if there are too few samples for it; likewise `p99_ns`.
        samples_ns: In the order in which they were taken, `calls` in each round.
        starts: The number of rounds in each start of the processes, if there were several; `ratio` is then the interval
            of the mean over starts.
        peak_bytes: Peak memory of a child process above its level after imports, from a separate run.
        load_ns: The time to open the model in that run, with packages imported before and no other process alive.
        first_ns: The time of the first call of this workload there.
        cached_load_ns: As `load_ns`, in another process that used what the first one had compiled on the device and
            kept; None for a runtime that keeps nothing, or whose cache we must not empty.
        cached_first_ns: As `first_ns`, in that process.
        warm_calls: Calls before the first sample.
        parts_ns: Medians of times from events on the device, by part (`DEVICE_PARTS`); empty without a device.
        device_ratio: As `ratio`, for the part `device` only; None if this row or the baseline has no such times.
    """

    verdict: str = "NOT_RUN"
    reason: str = ""
    median_ns: float | None = None
    p90_ns: float | None = None
    samples_ns: tuple[int, ...] = ()
    ratio: Interval | None = None
    items_per_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    ran: Ran | None = None
    p99_ns: float | None = None
    calls: int = 1
    load_ns: int | None = None
    first_ns: int | None = None
    warm_calls: int = 0
    parts_ns: Mapping[str, float] = field(default_factory=dict)
    device_ratio: Interval | None = None
    cached_load_ns: int | None = None
    cached_first_ns: int | None = None
    starts: tuple[int, ...] = ()
    kind: Literal["unavailable", "died", "late"] | None = None

    @property
    def rounds_ns(self) -> list[tuple[int, ...]]:
        """The samples of each round."""
        return [self.samples_ns[start : start + self.calls] for start in range(0, len(self.samples_ns), self.calls)]


@dataclass(frozen=True)
class AskedWorkloads:
    """The options of `bench` that chose its workloads; without any, they are those of the contract.

    Attributes:
        text, lengths: The files, from the artifact folder on, or their names alone where that would tell more of the
            machine; "" = none.
        shapes: The grids of sizes.
        batch: The number of sentences or lengths in a batch.
    """

    text: str = ""
    lengths: str = ""
    shapes: tuple[str, ...] = ()
    batch: int = 32

    def __str__(self) -> str:
        """The options, as on the command line."""
        files = [f"--{name} {file}" for name, file in (("text", self.text), ("lengths", self.lengths)) if file]
        return " ".join([*files, *(f"--shape {shape}" for shape in self.shapes)])


@dataclass(frozen=True, repr=False)
class LatencyReport(Printed):
    """`latency.json`: rows by workload, then by runtime; `settings` records threads, spinning, seed and machine.

    Attributes:
        model: The model's name; two reports can only be compared if it is the same.
        weights, code: The digests of the model's weights, and of the code that it is made of.
        notes: What the reader must know about the whole run.
        absent: The runtimes that are not installed, or need hardware that this machine lacks, with the reason. They
            have no rows.
        models: By runtime, a digest of the model and of the files that were timed.
        asked: What chose the workloads.
    """

    schema: Literal["attnport/latency/3"] = field(default="attnport/latency/3", kw_only=True)
    baseline: str
    settings: Mapping[str, str | int | float | bool]
    shapes: Mapping[str, Mapping[str, LatencyRow]]
    items: Mapping[str, int]
    tokens: Mapping[str, int]
    model: str = ""
    weights: str = ""
    code: str = ""
    notes: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    asked: AskedWorkloads = AskedWorkloads()


@dataclass(frozen=True)
class Candidate:
    """One way to run a model that `tune` tried: a runtime, a precision plan and a number of threads.

    Attributes:
        form: The form's key in the manifest.
        verdict: `chosen`, `slower`, `no faster` (than one in a plainer precision), `refused` (by parity or the metric),
            `NOT_RUN`, or `earlier`: it was not asked for now, and what is said of it is what an earlier run found.
        reason: Why it was not chosen, or what is known of its numbers; of the chosen one, by what it was.
        score: What the metric says of it; None if it was not scored.
        drop: By how much that is below the score in float32, as a share.
        reference: That score, of the same runtime in float32.
        ms: The median by workload; empty if it was not timed.
        size_bytes: Of the files that the runtime opens: the model and its weights.
    """

    runtime: str
    form: str
    plan: str
    threads: int
    verdict: str
    reason: str
    score: Score | None = None
    drop: float | None = None
    reference: Score | None = None
    ms: Mapping[str, float] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, repr=False)
class TuneReport(Printed):
    """`tune.json`: every candidate, and the latencies behind the choice.

    Attributes:
        metric: What int8 is judged by, or every candidate where the user gave it.
        max_drop: The largest drop of it that is allowed, as a share.
        candidates: The chosen one first, then by time.
        latency: By the number of threads; nothing of candidates whose verdict is `earlier`.
        notes: What the reader must know.
    """

    schema: Literal["attnport/tune/1"] = field(default="attnport/tune/1", kw_only=True)
    metric: str
    max_drop: float
    candidates: tuple[Candidate, ...]
    latency: Mapping[int, LatencyReport]
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        """What is recommended; None if no candidate was timed and within the bound."""
        return next((one for one in self.candidates if one.verdict == "chosen"), None)
