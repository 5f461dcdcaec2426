"""Makes the recommendation for a folder, from its reports and from what a bundle can carry."""

from __future__ import annotations

import shlex
from pathlib import Path

from attnport.artifacts import LatencyReport, LatencyRow, Manifest, ParityReport, TuneReport
from attnport.bundling.backends import Backend, choose
from attnport.bundling.judging import judge
from attnport.errors import AttnportError
from attnport.folder.openings import name_of
from attnport.folder.verdicts import model_digest
from attnport.folder.workspace import read_report
from attnport.latency.statistics import Interval, ratio_interval
from attnport.reporting.recommendation import Embeddable, Recommendation, recommend
from attnport.runtimes import base


def advise(
    folder: Path, manifest: Manifest, parity: ParityReport | None, latency: LatencyReport | None
) -> Recommendation:
    """What to embed from a folder, according to its reports; see `recommend`.

    It is what `tune` chose, by its own timing, unless that form was made again, or `bench` would recommend one that
    `tune` did not try.
    """

    def by(timed: LatencyReport | None, chosen: str = "") -> Recommendation:
        choices = embeddable(folder, manifest, parity, timed)
        return recommend(parity, timed, choices, ratio, shlex.quote(str(folder)), chosen)

    benched = by(latency)
    report = read_report(TuneReport, folder, manifest, "tune.json")
    if report is None or report.chosen is None:
        return benched
    timed, name = report.latency[report.chosen.threads], name_of(report.chosen.runtime, report.chosen.plan)
    if benched.choice and not all(benched.choice.runtime in rows for rows in timed.shapes.values()):
        return benched
    tuned = by(timed, name)
    return tuned if tuned.choice and tuned.choice.runtime == name else benched


def embeddable(
    folder: Path, manifest: Manifest, parity: ParityReport | None, latency: LatencyReport | None
) -> dict[str, Embeddable]:
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
            (judged,) = judge(folder, manifest, [backend], parity)
            _, *weights = backend.copied(folder)
        except AttnportError:  # no reader opens it
            continue
        if backend.measured_as is None:
            continue
        problem = "" if judged.verdict == "PASS" else f"a bundle refuses {backend.name}: {judged.reason}"
        if not problem and latency is not None and not _are_times_of(latency, manifest, backend):
            problem = f"{backend.file} was made again after it was timed"
        choices[backend.measured_as] = Embeddable(
            backend.name, backend.form.plan, backend.file, problem, tuple(weights)
        )
    return choices


def _are_times_of(latency: LatencyReport, manifest: Manifest, backend: Backend) -> bool:
    """Whether what was timed is what the folder holds, as far as the report tells."""
    name = backend.measured_as or ""
    timed = latency.models.get(name)
    return timed is None or timed == model_digest(manifest, name, backend.form.plan)


def ratio(ours: LatencyRow, theirs: LatencyRow) -> Interval | None:
    """The interval of the ratio of two runtimes' medians on one workload, from the rounds in which both were timed."""
    try:
        sides = [row.rounds_ns for row in (ours, theirs)]
        shared = min(map(len, sides))
        return ratio_interval(sides[0][:shared], sides[1][:shared], starts=ours.starts)
    except ValueError:  # samples that do not pair up, as the file was edited
        return None
