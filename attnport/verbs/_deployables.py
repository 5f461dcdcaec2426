"""What can be deployed of a folder or of a bundle: the files that a runtime opens, and the command that comes next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import LatencyReport, Manifest
from attnport.bundling.backends import choose
from attnport.bundling.judging import judge
from attnport.errors import AttnportError
from attnport.folder.verdicts import read_parity
from attnport.folder.workspace import read_report
from attnport.verbs._advice import advise
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
        with suppress(AttnportError):  # no reader opens it
            (backend,) = choose(folder, manifest, [name])
            (judged,) = judge(folder, manifest, [backend], parity)
            files = {file: (folder / file).stat().st_size for file in backend.copied(folder)}
            fused = str(judged.fusion) if judged.fusion else ""
            found.append(Deployable(name, backend.runtime, backend.form.plan, files, judged.verdict, fused))
    return tuple(found)


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
