"""The files of one model for `gpu-check`: exported, lowered and built for each runtime that is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnport.artifacts import Capabilities, EngineRecord, FusionTable, Manifest
from attnport.errors import AttnportError, EngineBuildError, UsageError
from attnport.exporter.lowering import base as lowerings
from attnport.folder.openings import model_openings, why_none
from attnport.folder.portable import portable
from attnport.folder.workspace import open_folder
from attnport.parity.evaluate import Progress
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime
from attnport.verbs.build import build
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport.verbs.gpu.subjects import Subject


@dataclass
class Files:
    """What there is to open.

    Attributes:
        openings: By runtime.
        missing: By runtime, why there is nothing to open, with what brings it.
        fused: By runtime, attentions that one kernel covers, of those there are.
        notes: What was done otherwise than asked.
    """

    folder: Path
    manifest: Manifest
    grids: Sequence[str]
    openings: dict[str, tuple[Runtime, Opening]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def prepare(
    folder: Path, subject: Subject, plan: str, probed: Mapping[str, Capabilities], sm: int, progress: Progress
) -> Files:
    """Exports the model and makes what each runtime opens, in one plan; what is there and unchanged stays.

    A runtime whose file cannot be made is `missing`; the others go on.

    Args:
        probed: The runtimes; those that are not available get no file.
        sm: The device's compute capability, which TensorRT-RTX's engine is built for where it knows it.

    Raises:
        AttnportError: the model cannot be exported.
    """
    folder = folder.resolve()
    files = Files(folder, export(subject.spec, folder, progress=progress), subject.grids)
    for name, found in probed.items():
        if not found.available:
            files.missing[name] = f"{found.reason.rstrip('.')}{f'; {found.hint}' if found.hint else ''}"
        elif plan not in found.plans:
            files.missing[name] = f"it computes in {', '.join(found.plans)} here, not in {plan}"
        else:
            try:
                files.openings[name] = _made(files, base.get(name), subject, plan, sm, progress)
            except AttnportError as err:
                files.missing[name] = portable(f"{err.message} {err.hint}".strip(), folder)
    # Every verb has changed the manifest since the export.
    files.manifest = open_folder(folder)
    openings = {
        name: (one, dataclasses.replace(opened, io=files.manifest.io)) for name, (one, opened) in files.openings.items()
    }
    return dataclasses.replace(files, openings=openings)


def _made(
    files: Files, runtime: Runtime, subject: Subject, plan: str, sm: int, progress: Progress
) -> tuple[Runtime, Opening]:
    """What a runtime opens."""
    io = files.manifest.io
    if runtime.opens == "module":
        return runtime, Opening(io, plan=plan)
    if runtime.opens == "engine":
        record, table = _engine(files, runtime, subject, plan, sm, progress)
        files.fused[runtime.name] = str(table)
        # Others may lie beside it: of another GPU, or of other profiles.
        return runtime, Opening(io, plan=plan, model=files.folder / record.file, engine=record)
    lowering = lowerings.get(runtime.form)
    plans = {runtime.form: plan} if len(lowering.plans) > 1 else {}
    report = fuse(files.folder, targets=[runtime.form], plans=plans, progress=progress)
    files.fused[runtime.name] = str(report.targets[lowering.table_key(plan)])
    openings = model_openings(runtime, files.folder, open_folder(files.folder), (plan,), None)
    found = next((opening for opening in openings.values() if opening.plan == plan), None)
    if found is None:
        raise UsageError(f"{why_none(runtime)} (in {plan})")
    return runtime, found


def _engine(
    files: Files, runtime: Runtime, subject: Subject, plan: str, sm: int, progress: Progress
) -> tuple[EngineRecord, FusionTable]:
    """Builds an engine; for a GPU that the builder does not list, for its default list, to see what happens there."""
    given = files.folder, runtime.name, plan, subject.profiles
    if runtime.name != "tensorrt_rtx":
        return build(*given, progress=progress)
    try:
        return build(*given, (sm,), progress=progress)
    except (UsageError, EngineBuildError) as err:
        files.notes += (f"{runtime.name} is not built for SM {sm} alone but for its default list: {err.message}",)
        return build(*given, progress=progress)
