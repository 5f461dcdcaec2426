"""What can be deployed of a folder or of a bundle: the files that a runtime opens, and which are recommended."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from attnport.artifacts import LatencyReport, Manifest, ParityReport, TuneReport, Verdict
from attnport.bundling.write import choose_backends, judge
from attnport.errors import AttnportError
from attnport.folder.workspace import if_whole, model_digest, name_of, read_parity, read_report
from attnport.latency.choice import choose
from attnport.reporting.choice import Choice, Deployable
from attnport.runtimes import base
from attnport_bundle.format.manifest import Manifest as BundleManifest

LATENCY, TUNED = "latency.json", "tune.json"
"""The reports by which one is recommended, with that of `check`."""


def of_folder(folder: Path, manifest: Manifest, parity: ParityReport | None) -> tuple[Deployable, ...]:
    """Every form and engine that a bundle can carry; one that was made again after it was checked has a problem."""
    found = []
    targets = [record.target for record in manifest.engines.values()]
    engines = (
        record.target if targets.count(record.target) == 1 else name for name, record in manifest.engines.items()
    )
    for name in (*engines, *manifest.forms):
        with suppress(AttnportError, OSError):  # no reader opens it, or a file is gone
            (backend,) = choose_backends(folder, manifest, [name])
            (judged,) = judge(folder, manifest, [backend], parity)
            files = {file: (folder / file).stat().st_size for file in backend.copied(folder)}
            fused = str(judged.fusion) if judged.fusion else ""
            problem = "" if judged.verdict == "PASS" else f"a bundle refuses {name}: {judged.reason}"
            own = name, backend.runtime, backend.form.plan, files, _ran(judged.verdict, judged.runtime), fused
            found.append(Deployable(*own, backend.measured_as or "", problem))
    return tuple(found)


def of_bundle(manifest: BundleManifest) -> tuple[Deployable, ...]:
    """Every form of a bundle, the preferred one first."""
    found = []
    for name, form in ((name, manifest.forms[name]) for name in manifest.order):
        files = {file: manifest.files[file].bytes for file in (form.file, *form.external)}
        fused = f"{form.fusion.fused}/{form.fusion.attentions}" if form.fusion else ""
        verdict = _ran(form.parity.verdict, form.parity.runtime)
        found.append(Deployable(name, form.runtime, form.plan, files, verdict, fused))
    return tuple(found)


def _ran(verdict: Verdict, runtime: Verdict) -> Verdict:
    """The verdict to show: that its graph passed elsewhere is no PASS of what was never run, such as an engine."""
    return runtime if verdict == "PASS" else verdict


def next_commands(folder: Path, manifest: Manifest, deployable: tuple[Deployable, ...]) -> tuple[str, ...]:
    """The command that bundles the form which is recommended, or the first that passed parity, or what is missing."""
    if not manifest.forms:
        return (f"attnport fuse {shlex.quote(str(folder))}",)
    choice = recommended(folder, manifest)
    passed = [one.name for one in deployable if one.parity == "PASS"]
    if choice.deploy is not None or not passed:
        return choice.commands
    name = "ort_cpu" if "ort_cpu" in passed else passed[0]
    return (f"attnport bundle {shlex.quote(str(folder))} -o app/ --form {shlex.quote(name)} --lang python",)


def recommended(folder: Path, manifest: Manifest) -> Choice:
    """As `advise`, by the reports that the folder holds."""
    latency = if_whole(read_report, LatencyReport, folder, manifest, LATENCY)
    return advise(folder, manifest, read_parity(folder, manifest), latency)


def advise(folder: Path, manifest: Manifest, parity: ParityReport | None, latency: LatencyReport | None) -> Choice:
    """What to deploy of a folder, according to its reports; see `choose`.

    It is what `tune` chose, by its own timing, unless that form was made again, or `bench` would recommend a form for a
    GPU, which `tune` never tries.
    """
    deployable = of_folder(folder, manifest, parity)

    def by(timed: LatencyReport | None) -> Choice:
        able = [_with_problem(manifest, one, timed) for one in deployable]
        return choose(shlex.quote(str(folder)), able, parity, timed)

    benched = by(latency)
    report = if_whole(read_report, TuneReport, folder, manifest, TUNED)
    if report is None or report.chosen is None:
        return benched
    best = report.chosen
    timed = report.latency[best.threads]
    if benched.deploy and base.get(base.Key.parse(benched.deploy.measured_as).runtime).gpu:
        return benched
    tuned = by(timed)
    if tuned.deploy is None or tuned.deploy.measured_as != name_of(best.runtime, best.plan):
        return benched
    return replace(tuned, notes=(*tuned.notes, f"tune chose it, timed with --threads {best.threads}"))


def _with_problem(manifest: Manifest, one: Deployable, latency: LatencyReport | None) -> Deployable:
    """The problem that the times are not those of what the folder holds, as far as the report tells."""
    timed = latency.models.get(one.measured_as) if latency else None
    if one.problem or timed is None or timed == model_digest(manifest, one.measured_as, one.plan):
        return one
    return replace(one, problem=f"{next(iter(one.files))} was made again after it was timed")
