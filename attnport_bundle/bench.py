"""Measures how long one call takes on this machine: one shape, after a warm-up, with every sample kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from . import feeds as feeding
from .arguments import integer, mapping, number
from .errors import FeedError
from .format.contract import IO
from .model import Model

if TYPE_CHECKING:
    import numpy as np

WINDOW = 5
"""Calls in a window; the median of each window is compared with that of the window before."""
AGREE = 0.05
MOST_SECONDS = 3600.0
P90_SAMPLES = 20
"""The fewest samples from which a 90th percentile is computed."""


@dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        sizes: The size of each named dim.
        settled: Whether the last two medians of the warm-up agreed within 5 % before its time was over.
        p90_ns: None with fewer than `P90_SAMPLES` samples.
    """

    form: str
    runtime: str
    version: str
    provider: str
    sizes: Mapping[str, int]
    warmup_runs: int
    settled: bool
    samples_ns: tuple[int, ...]
    median_ns: float
    p90_ns: float | None


def bench(
    model: Model,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 2.0,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Report:
    """Times `model.run` for about `seconds`, after a warm-up of at most as long.

    Args:
        model: An open model; load it with the number of threads that is to be measured.
        sizes: Sizes of named dims; a dim that is not named has its usual size.
        seconds: How long samples are taken, at most `MOST_SECONDS`; at least one is taken.
        clock: Returns the time in nanoseconds.

    Raises:
        FeedError: a dim is unknown, or its size or the time is out of range.
        BundleError: the runtime failed.
    """
    seconds = number("seconds", seconds, 0, MOST_SECONDS, above=True)
    feeds = sample_feeds(model.io, mapping("sizes", {} if sizes is None else sizes, "the size of each dim"))
    checked_sizes = feeding.check_feeds(model.io, feeds)

    def call() -> int:
        start = clock()
        model.run(**feeds)
        return clock() - start

    limit_ns = int(seconds * 1e9)
    warmup_runs, settled = _warm_up(call, limit_ns)
    samples = [call()]
    spent = samples[0]
    while spent < limit_ns:
        samples.append(call())
        spent += samples[-1]
    return Report(
        form=model.form,
        runtime=model.manifest.forms[model.form].runtime,
        version=model.version,
        provider=model.provider,
        sizes=checked_sizes,
        warmup_runs=warmup_runs,
        settled=settled,
        samples_ns=tuple(samples),
        median_ns=float(median(samples)),
        p90_ns=quantiles(samples, n=10, method="inclusive")[-1] if len(samples) >= P90_SAMPLES else None,
    )


def _warm_up(call: Callable[[], int], limit_ns: int) -> tuple[int, bool]:
    """Runs windows of calls until two medians in a row agree: the first calls allocate memory and are slower."""
    spent, runs, before = 0, 0, 0.0
    while True:
        window = [call() for _ in range(WINDOW)]
        spent, runs, now = spent + sum(window), runs + WINDOW, float(median(window))
        if abs(now - before) <= AGREE * now:
            return runs, True
        if spent >= limit_ns:
            return runs, False
        before = now


def sample_feeds(io: IO, sizes: Mapping[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs that the contract allows, without padding or hidden positions. Every call gives the same.

    Raises:
        FeedError: `sizes` names an unknown dim, or a size out of its dim's range.
    """
    import numpy as np

    known = {dim.name: dim for dim in io.dims}
    for name, size in sizes.items():  # before anything is allocated: a size out of range may not fit into memory
        if name not in known:
            raise FeedError(f"dim {name!r}: the model has no such dim; expected {', '.join(known)}.")
        if not known[name].takes(integer(f"dim {name!r}", size, 0)):
            raise FeedError(f"dim {name!r}: got {size}; expected {known[name].span}.")
    all_sizes = {dim.name: dim.opt for dim in io.dims} | dict(sizes)
    masks, feeds = {mask.input: mask for mask in io.masks if mask.input}, {}
    random = np.random.default_rng(0)
    for spec in io.inputs:
        shape, mask = spec.shape(all_sizes), masks.get(spec.name)
        if mask is not None:  # full lengths, ids of one document, or marks that make every position global
            value = all_sizes[mask.keys] if mask.keys else int(mask.carries != "mask" or mask.polarity == "keep")
            feeds[spec.name] = np.full(shape, value, dtype=spec.dtype)
        elif spec.dtype.startswith("float"):
            feeds[spec.name] = random.standard_normal(shape).astype(spec.dtype)
        else:  # without a limit of integers, the valid range is unknown: models are tried with 0 and 1
            feeds[spec.name] = random.integers(0, spec.high or 2, shape).astype(spec.dtype)
    return feeds
