"""`attnport bench`: the latency of every runtime, each in a process of its own, taking turns."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from attnport.artifacts import Capabilities, LatencyReport, Manifest, plan_of
from attnport.cases.choosing import read_sentences
from attnport.errors import UnavailableError, UsageError
from attnport.folder.loading import require
from attnport.folder.machine import machine, versions
from attnport.folder.workspace import (
    bundle_digest,
    check_files,
    check_source,
    if_whole,
    model_digest,
    model_files,
    of_keys,
    of_plan,
    open_folder,
    read_report,
    stage,
    stage_of,
    to_open,
    toolchain,
)
from attnport.jsonfile import digest_text, read
from attnport.latencies import AskedWorkloads
from attnport.latency.measuring import BASELINE, Effort, Measuring, Subject
from attnport.latency.statistics import CONFIDENCE
from attnport.latency.workloads import MANY, parse_grid, read_lengths, workloads
from attnport.options import (
    Batch,
    Folder,
    Force,
    Lengths,
    Option,
    Progress,
    Seed,
    Shapes,
    Tell,
    Text,
    Threads,
    Timeout,
    Trust,
)
from attnport.processes.isolated import TIMEOUT_S, Limits, probe_all
from attnport.runtimes import base
from attnport.runtimes.base import Key, Opening, Runtime, physical_cores
from attnport.verbs._arguments import verb
from attnport.verbs._needs import ready

STAGE = "bench"
FILE = "latency.json"


@verb
def bench(
    folder: Folder,
    runtimes: Annotated[
        Sequence[str],
        Option(
            "A runtime, or one precision of it, openvino.bf16; default: all but torch_compile and those of "
            "JavaScript. The report has only these, and the baseline.",
            "--runtime",
        ),
    ] = (),
    shapes: Shapes = (),
    text: Text = None,
    threads: Threads = None,
    *,
    lengths: Lengths = None,
    batch: Batch = MANY,
    precision: Annotated[
        str | None,
        Option("One precision alone, modules cast to it; writes latency.PRECISION.json.", "--dtype --precision"),
    ] = None,
    baseline: Annotated[str, Option("The runtime that others are compared with.")] = BASELINE,
    bundle: Annotated[
        Path | None, Option("A bundle of this folder, measured through its own reader as the runtime bundle.")
    ] = None,
    pin: Annotated[bool, Option("Keep processes on as many cores as threads.")] = True,
    cold: Annotated[bool, Option("Measure load, first call and memory in new processes.")] = True,
    within: Annotated[float, Option("Measure until every ratio is known within this share.", above=0, most=1)] = 0.03,
    samples: Annotated[int, Option("The fewest calls of each runtime, if there is time; p99 needs 1000.", least=0)] = 0,
    starts: Annotated[
        int,
        Option(
            "Starts of each process; with several, intervals include how much they differ, and from 5 on are narrow.",
            "--repeats --starts",
            least=1,
            most=50,
        ),
    ] = 1,
    budget_s: Annotated[
        float,
        Option(
            "Seconds in total, starts included; each workload has 12 rounds at least in each start.",
            "--budget",
            least=1,
        ),
    ] = 60.0,
    timeout_s: Timeout = TIMEOUT_S,
    trust_source: Trust = False,
    force: Force = False,
    seed: Seed = 0,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> LatencyReport:
    """Measures an artifact folder and writes `latency.json`; returns the earlier report if nothing has changed.

    Without options for workloads, those of the report that the folder has are measured again.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were.
        SpecError: to load the source would run code that was not asked for on this machine; names it.
        UsageError: an unknown runtime or precision, a shape, text or lengths that do not fit.
    """
    began_s = time.monotonic()
    precision = precision and plan_of(precision)
    name, file = stage_of(STAGE, FILE, precision)
    manifest = open_folder(folder)
    asked = AskedWorkloads(_from(folder, text), _from(folder, lengths), tuple(shapes or ()), batch)
    if not str(asked):
        asked = _as_before(folder, manifest, file, asked, tell)
        text, lengths = (folder / each if each else None for each in (asked.text, asked.lengths))
        shapes, batch = asked.shapes, asked.batch
    sentences = read_sentences(text) if text else []
    histogram = read_lengths(lengths) if lengths else {}
    for shape in shapes or ():
        parse_grid(shape, manifest.io.dims)
    chosen = [one for one in base.chosen(runtimes, bundle=bundle is not None) if runtimes or one.timed]
    keys = [Key.parse(name) for name in runtimes or ()]
    baseline = base.get(baseline).name
    if baseline not in {runtime.name for runtime in chosen}:
        chosen.insert(0, base.get(baseline))
    ready(folder, runtimes or (), progress, precision)
    effort = Effort(
        threads or physical_cores(), budget_s, within, samples, pin, seed, baseline, timeout_s, cold, starts
    )
    manifest = open_folder(folder)
    manifest = of_plan(manifest, precision) if precision else manifest
    models = model_files(manifest)
    check_files(folder, manifest, *models)
    require(manifest.source, given=trust_source)
    progress("probing the runtimes")
    probed = probe_all(chosen, Limits(timeout_s))
    settings = _settings(effort, probed) | ({"plan": precision} if precision else {})
    digest = digest_text(
        toolchain("numpy", *base.distributions(probed)),
        json.dumps([asdict(capabilities) for capabilities in probed.values()]),
        json.dumps([asdict(manifest.source), {each: manifest.files[each] for each in models}, settings]),
        json.dumps([[runtime.name for runtime in chosen], list(map(str, keys)), list(shapes or []), sentences]),
        json.dumps([list(histogram.items()), batch, asdict(effort), bundle_digest(bundle)], default=str),
    )
    with stage(folder, name, digest, force=force, began_s=began_s) as run:
        if run.kept:
            check_source(manifest)
            tell(f"{folder / file} is up to date, so that nothing was timed; --force times again")
            return read(LatencyReport, folder / file)
        todo = workloads(folder, manifest, shapes, sentences, seed, histogram, batch)
        with tempfile.TemporaryDirectory(prefix="attnport-bench-") as scratch:
            named = of_keys(manifest, keys)
            lacking = {one.name: probed[one.name].problem for one in chosen if probed[one.name].absent}
            able = [one for one in chosen if one.name not in lacking]
            timed = subjects(able, probed, folder.resolve(), named, effort.threads, bundle, precision)
            measuring = Measuring(folder.resolve(), manifest, timed, todo, effort, Path(scratch), progress, began_s)
            digests = {
                key: model_digest(manifest, key, opening.plan)
                for key, (_, opening) in timed.items()
                if isinstance(opening, Opening)
            }
            report = replace(measuring.report(settings), models=digests, absent=lacking, asked=asked)
        run.write(file, report)
        lost = {row.kind for rows in report.shapes.values() for row in rows.values()}
        run.record(final=lost.isdisjoint(("late", "died")))
    return report


def _from(folder: Path, file: Path | None) -> str:
    """A file as a path from a folder on; its name alone where the two have nothing but the root in common."""
    if file is None:
        return ""
    apart = os.path.commonpath([file.resolve(), folder.resolve()]) == folder.resolve().anchor
    return file.name if apart else os.path.relpath(file.resolve(), folder.resolve())


def _as_before(folder: Path, manifest: Manifest, file: str, asked: AskedWorkloads, tell: Tell) -> AskedWorkloads:
    """The workloads of the report that a folder has, or `asked` where it has none, which chooses a batch at most.

    A run without options would else replace by others what `ship` measured, and what is recommended by it.

    Raises:
        UsageError: a file that they were made of is gone.
    """
    known = if_whole(read_report, LatencyReport, folder, manifest, file)
    if known is None or not str(known.asked):
        return asked
    for option in ("text", "lengths"):
        given = getattr(known.asked, option)
        if given and not (folder / given).is_file():
            raise UsageError(
                f"{folder / file} was measured with --{option} {given}, which is not there.",
                hint=f"Name the file with --{option}, or other workloads: --shape batch=8,seq=128",
            )
    tell(f"measuring the workloads that {folder / file} has: {known.asked}; --shape or --text chooses others")
    return known.asked if asked.batch == MANY else replace(known.asked, batch=asked.batch)


def subjects(
    chosen: Sequence[Runtime],
    probed: Mapping[str, Capabilities],
    folder: Path,
    manifest: Manifest,
    threads: int,
    bundle: Path | None = None,
    plan: str | None = None,
) -> dict[str, Subject]:
    """What to time in a folder, by the name in reports: each runtime with each file that it opens.

    The module is timed as it is, in float32 or in `plan`.

    Raises:
        ArtifactError, IntegrityError: `bundle` is not a bundle.
    """
    timed: dict[str, Subject] = {}
    for runtime in chosen:
        openings = to_open(runtime, probed[runtime.name], folder, manifest, threads, plan, bundle)
        if not runtime.timed:
            openings = "it is made for correctness, not for speed"
        if isinstance(openings, str):
            timed[runtime.name] = runtime, openings
        else:
            timed |= {name: (runtime, opening) for name, opening in openings.items()}
    return timed


def raise_for(report: LatencyReport, named: Sequence[str]) -> None:
    """Raises UnavailableError if a runtime that the user named was not run on any workload."""
    every = [(name, row) for rows in report.shapes.values() for name, row in rows.items()]
    for key in map(Key.parse, named):
        # What has nothing to open in this precision, and an engine, is called by the runtime's name.
        found = [row for name, row in every if key.covers(name)]
        own_rows = found or [row for name, row in every if Key(key.runtime).covers(name)]
        if all(row.median_ns is None for row in own_rows):
            lacks = report.absent.get(key.runtime)
            reasons = [lacks] if lacks else [row.reason for row in own_rows if row.kind]
            reason = next(iter(reasons), "it is not in the report")
            raise UnavailableError(f"{key} was not run: {reason.rstrip('.')}.")


def _settings(effort: Effort, runtimes: Iterable[str]) -> dict[str, str | int | float | bool]:
    """The settings that are equal for all runtimes, and the machine."""
    return {
        "threads": effort.threads,
        "seed": effort.seed,
        "confidence": CONFIDENCE,
        "precision": effort.precision,
        "starts": effort.starts,
        "budget_s": effort.budget_s,
        "machine": machine().cpu,
        "python": platform.python_version(),
        **{f"version {name}": version for name, version in versions(["numpy", *base.distributions(runtimes)]).items()},
    }
