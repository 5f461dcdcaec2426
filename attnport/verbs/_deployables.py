"""What can be deployed of a folder or of a bundle: the files that a runtime opens, and which are recommended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import Interval, LatencyReport, LatencyRow, Manifest, ParityReport, TuneReport
from attnport.bundling.backends import Backend, choose
from attnport.bundling.judging import judge
from attnport.bundling.write import Judged
from attnport.errors import AttnportError
from attnport.folder.openings import name_of
from attnport.folder.verdicts import model_digest, read_parity
from attnport.folder.workspace import read_report
from attnport.latency.statistics import ratio_interval
from attnport.reporting.recommendation import Embeddable, Recommendation, recommend
from attnport.runtimes import base
from attnport_bundle.format.manifest import Manifest as BundleManifest


@dataclass(frozen=True)
class Deployable:
    """A form or an engine.

    Attributes:
        name: Its name for `attnport bundle --form`: of an engine its target, where that has no other.
        runtime: The package that opens it.
        files: Sizes in bytes by name: the file that is opened, then its weights.
        fused: Attentions that one kernel covers, of all; "" if that was not examined.
    """

    name: str
    runtime: str
    plan: str
    files: Mapping[str, int]
    parity: str
    fused: str


def of_folder(folder: Path, manifest: Manifest) -> tuple[Deployable, ...]:
    """Every form and engine that a bundle can carry."""
    found, parity = [], read_parity(folder, manifest)
    targets = [record.target for record in manifest.engines.values()]
    engines = (
        record.target if targets.count(record.target) == 1 else name for name, record in manifest.engines.items()
    )
    for name in (*engines, *manifest.forms):
        for judged, copied in _carried(folder, manifest, name, parity):
            files = {file: (folder / file).stat().st_size for file in copied}
            fused = str(judged.fusion) if judged.fusion else ""
            backend = judged.backend
            found.append(Deployable(name, backend.runtime, backend.form.plan, files, judged.verdict, fused))
    return tuple(found)


def _carried(
    folder: Path, manifest: Manifest, name: str, parity: ParityReport | None
) -> Iterator[tuple[Judged, list[str]]]:
    """A form or an engine as a bundle judges it, and the files that it would copy; nothing where no reader opens it."""
    with suppress(AttnportError):
        (backend,) = choose(folder, manifest, [name])
        (judged,) = judge(folder, manifest, [backend], parity)
        yield judged, backend.copied(folder)


def of_bundle(manifest: BundleManifest) -> tuple[Deployable, ...]:
    """Every form of a bundle, the preferred one first."""
    found = []
    for name, form in ((name, manifest.forms[name]) for name in manifest.order):
        files = {file: manifest.files[file].bytes for file in (form.file, *form.external)}
        fused = f"{form.fusion.fused}/{form.fusion.attentions}" if form.fusion else ""
        found.append(Deployable(name, form.runtime, form.plan, files, form.parity.verdict, fused))
    return tuple(found)


def next_commands(folder: Path, manifest: Manifest, deployable: tuple[Deployable, ...]) -> tuple[str, ...]:
    """The command that bundles the form which is recommended, or the first that passed parity, or what is missing."""
    quoted = shlex.quote(str(folder))
    passed = [one.name for one in deployable if one.parity == "PASS"]
    if not manifest.forms:
        return (f"attnport fuse {quoted}",)
    latency = read_report(LatencyReport, folder, manifest, "latency.json")
    advice = advise(folder, manifest, read_parity(folder, manifest), latency)
    if advice.choice is not None:
        return (advice.choice.command,)
    if not passed:
        return advice.commands
    name = "ort_cpu" if "ort_cpu" in passed else passed[0]
    return (f"attnport bundle {quoted} -o app/ --form {shlex.quote(name)} --lang python",)


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
        for judged, (_, *weights) in _carried(folder, manifest, name, parity):
            backend = judged.backend
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
