"""What `latency.json` holds: rows by workload and runtime. Everything imports these from `artifacts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnport_bundle.contract import STRICT, Ran

DEVICE_PARTS = ("host_to_device", "device", "device_to_host")
"""What events on a device's stream tell apart: copying inputs there, computing, copying outputs back."""


@dataclass(frozen=True)
class LatencyRow:
    """One runtime on one workload; times in ns, one sample a call.

    Attributes:
        ratio: Low, middle and high of the bootstrap interval of median / baseline median; below 1 is faster.
        verdict: `faster`, `slower`, `no difference shown`, `baseline` or `NOT_RUN`.
        p90_ns: None where there are too few samples to support it; so `p99_ns`.
        samples_ns: In the order in which they were taken, `calls` to a round.
        peak_bytes: Peak memory of a child process above its level after imports, from a separate run.
        load_ns: What opening the model took in that run, its packages imported and nothing else alive.
        first_ns: What the first call of this workload took there.
        cached_load_ns: As `load_ns`, in a further process that found what that one had compiled on the device and kept;
            None for a runtime that keeps nothing, or whose cache is not ours to empty.
        cached_first_ns: As `first_ns`, there.
        warm_calls: Calls before the first sample.
        parts_ns: Medians of what events on the device timed, by part (`DEVICE_PARTS`); empty without a device.
        device_ratio: As `ratio`, of the part `device` alone; None where this row or the baseline has no such times.
    """

    verdict: str
    reason: str
    median_ns: float | None = None
    p90_ns: float | None = None
    samples_ns: tuple[int, ...] = ()
    ratio: tuple[float, float, float] | None = None
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
    device_ratio: tuple[float, float, float] | None = None
    cached_load_ns: int | None = None
    cached_first_ns: int | None = None

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class LatencyReport:
    """`latency.json`: rows by workload, then by runtime; `settings` records threads, spinning, seed and machine.

    Attributes:
        model: The model's name, and `weights` the digest of its weights: what two reports must share to be compared.
        notes: What the reader must know about the whole run.
    """

    baseline: str
    settings: Mapping[str, str | int | float | bool]
    shapes: Mapping[str, Mapping[str, LatencyRow]]
    items: Mapping[str, int]
    tokens: Mapping[str, int]
    model: str = ""
    weights: str = ""
    notes: tuple[str, ...] = ()

    __pydantic_config__ = STRICT
