"""Makes the recommendation for a folder, from its reports and from what a bundle can carry."""

from __future__ import annotations

import shlex
from pathlib import Path

from attnport.artifacts import LatencyReport, LatencyRow, Manifest, ParityReport
from attnport.bundling.backends import Backend, choose
from attnport.bundling.judging import judge, made_last
from attnport.errors import AttnportError
from attnport.latency.statistics import Interval, ratio_interval
from attnport.reporting.recommendation import Embeddable, Recommendation, recommend
from attnport.runtimes import base

_BENCH = "bench"


def advise(
    folder: Path, manifest: Manifest, parity: ParityReport | None, latency: LatencyReport | None
) -> Recommendation:
    """What to embed from a folder, according to its reports; see `recommend`."""
    return recommend(parity, latency, embeddable(folder, manifest), ratio, shlex.quote(str(folder)))


def embeddable(folder: Path, manifest: Manifest) -> dict[str, Embeddable]:
    """For each runtime in the reports, what a bundle can carry, or why it cannot.

    A form that was made again after it was checked is refused by `bundle`; one that was made again after it was timed
    is not recommended, as the times are not its own.
    """
    choices = {
        name: Embeddable("", "", "", "it runs the module in PyTorch, which no bundle carries")
        for name in base.names()
        if base.get(name).opens == "module"
    }
    for name in (*manifest.forms, *manifest.engines):
        choices[f"bundle.{name}"] = Embeddable("", "", "", f"it is {name} through the reader of a bundle")
        try:
            (backend,) = choose(folder, manifest, [name])
            (judged,) = judge(folder, manifest, [backend])
            _, *weights = backend.copied(folder)
        except AttnportError:  # no reader opens it
            continue
        if backend.measured_as is None:
            continue
        problem = "" if judged.verdict == "PASS" else f"a bundle refuses {backend.name}: {judged.reason}"
        if not problem and _older_times(manifest, backend):
            problem = f"{backend.file} was made again after it was timed"
        choices[backend.measured_as] = Embeddable(
            backend.name, backend.form.plan, backend.file, problem, tuple(weights)
        )
    return choices


def _older_times(manifest: Manifest, backend: Backend) -> bool:
    return _BENCH in manifest.stages and manifest.stages[_BENCH].made < made_last(manifest, backend)


def ratio(ours: LatencyRow, theirs: LatencyRow) -> Interval | None:
    """The interval of the ratio of two runtimes' medians on one workload, from the rounds in which both were timed."""
    try:
        sides = [row.rounds_ns for row in (ours, theirs)]
        shared = min(map(len, sides))
        return ratio_interval(sides[0][:shared], sides[1][:shared], starts=ours.starts)
    except ValueError:  # samples that do not pair up, as the file was edited
        return None
