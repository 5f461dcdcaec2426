"""Processor time and memory of models side by side: a child process each, taking turns, as in `attnport bench`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import LatencyRow
from attnport.cases.inputs import full_case
from attnport.folder.workspace import open_folder
from attnport.latency.rows import Measured, orders, rows
from attnport.processes.isolated import Child, as_message
from attnport.processes.worker import save_feeds
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from claims._findings import Progress, Ratio

THREADS = 1
"""Compute threads of each child: with one, its processor time is what a call costs (see `_worker`)."""
_MAX_CALLS, _TURN_S = 8, 0.02
_WORKER = (str(Path(__file__).resolve().parent / "_worker.py"),)

Feeds = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Model:
    """A model as one runtime opens it: a file of an artifact folder, and the precision it is computed in."""

    folder: Path
    runtime: str
    file: str
    plan: str = "fp32"

    def feeds(self, sizes: Mapping[str, int]) -> Feeds:
        """Random feeds of given sizes, without padding."""
        return full_case(open_folder(self.folder).io, sizes).feeds


@dataclass(frozen=True)
class Effort:
    """How long a comparison may take: rounds for about `budget_s` a workload, at least `least` and at most `most`."""

    budget_s: float = 8.0
    least: int = 12
    most: int = 60


def race(
    workloads: Mapping[str, Mapping[str, Feeds]], models: Mapping[str, Model], effort: Effort, progress: Progress
) -> dict[str, dict[str, LatencyRow]]:
    """Times models in turns; the first of a workload is what the others' ratios are to.

    Args:
        workloads: By name, the feeds of each model that takes part in it.

    Returns:
        By workload, then by model.
    """
    found: dict[str, dict[str, LatencyRow]] = {}
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch, _children(models) as children:
        for workload, feeds in workloads.items():
            turns = {name: children[name] for name in feeds}
            for name, child in turns.items():
                _hand(child, models[name], feeds[name], Path(scratch))
            samples = _rounds(workload, turns, effort, progress)
            found[workload] = rows(samples, next(iter(turns)), items=1, tokens=1)
    return found


def ratio(row: LatencyRow) -> Ratio:
    """What a row has as its ratio to the first of its workload."""
    if row.ratio is None:
        raise ValueError(f"the row has no ratio: {row.reason or row.verdict}")
    return row.ratio


def median_ms(row: LatencyRow) -> float:
    """A row's median in milliseconds."""
    if row.median_ns is None:
        raise ValueError(f"the row has no time: {row.reason}")
    return row.median_ns / 1e6


def _rounds(workload: str, turns: Mapping[str, Child], effort: Effort, progress: Progress) -> dict[str, Measured]:
    """All rounds of one workload."""
    once_s = {}
    for name, child in turns.items():
        progress(f"{workload}: warming up {name}")
        once_s[name] = min(child.ask("run", name="feeds", calls=1, warm=2)["ns"]) * 1e-9
    calls = max(1, min(_MAX_CALLS, int(_TURN_S / statistics.median(once_s.values()))))
    # A turn of several calls begins with one untimed: the caches hold what the process before left there.
    warm = 1 if calls > 1 else 0
    rounds = int(effort.budget_s / (sum(once_s.values()) * (calls + warm)))
    rounds = max(effort.least, min(effort.most, rounds))
    progress(f"{workload}: {rounds} rounds")
    taken: dict[str, list[tuple[int, ...]]] = {name: [] for name in turns}
    for order in orders(list(turns), rounds, seed=0):
        for name in order:
            taken[name].append(tuple(turns[name].ask("run", name="feeds", calls=calls, warm=warm)["ns"]))
    return {name: Measured(each) for name, each in taken.items()}


def peaks(model: Model, first: Feeds, workloads: Mapping[str, Feeds]) -> dict[str, int]:
    """The most memory that a run takes above what a process holds after it ran `first`, in bytes.

    A process each: what a runtime keeps from a larger run would hide a smaller one. `first` is small; behind it, what
    a runtime takes once and for all at its first run is there already.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch:
        for workload, feeds in workloads.items():
            with _children({"model": model}) as children:
                child = children["model"]
                _hand(child, model, first, Path(scratch))
                child.ask("run", name="feeds", calls=1, warm=1)
                _hand(child, model, feeds, Path(scratch))
                child.ask("level", modules=[])
                child.ask("run", name="feeds", calls=1, warm=1)
                found[workload] = int(child.ask("peak")["peak_bytes"])
    return found


@contextmanager
def _children(models: Mapping[str, Model]) -> Iterator[dict[str, Child]]:
    """A process for each model, which has opened it."""
    children = {}
    try:
        for name, model in models.items():
            children[name] = child = Child(THREADS, _WORKER)
            manifest = open_folder(model.folder)
            opening = Opening(manifest.io, model.plan, model.folder / model.file, threads=THREADS)
            child.send("open", **as_message(base.get(model.runtime), opening, model.folder, manifest))
        for child in children.values():
            child.receive(timeout_s=600.0)
        yield children
    finally:
        for child in children.values():
            child.kill()


def _hand(child: Child, model: Model, feeds: Feeds, scratch: Path) -> None:
    """Gives a child its feeds, under one name: the earlier ones are dropped."""
    path = scratch / "feeds.npz"
    save_feeds(path, feeds)
    dtypes = {spec.name: spec.dtype for spec in open_folder(model.folder).io.inputs}
    child.ask("feeds", name="feeds", path=str(path), dtypes=dtypes)
