"""`attnport fuse`: lowers the attentions for each target and proves with the installed runtimes that they are fused."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.artifacts import (
    AUTO,
    EngineRecord,
    Evidence,
    Form,
    FusionItem,
    FusionReport,
    FusionTable,
    IntegerPlan,
    Manifest,
    PrecisionPlan,
)
from attnport.errors import (
    ArtifactError,
    AttnportError,
    BundleError,
    EngineBuildError,
    FusionMissing,
    IntegrityError,
    UsageError,
)
from attnport.exporter.engine import EngineText, build_engine, prove, read_engine_text, read_layers
from attnport.exporter.light_copy import light_copy
from attnport.exporter.lowering import base as lowerings
from attnport.exporter.lowering.base import BLOCKS, REAL_TOKENS, Lowered, Lowering
from attnport.folder.portable import portable
from attnport.folder.workspace import Change, change, check_files, fresh, open_folder, read_report, toolchain
from attnport.jsonfile import digest_text, read, to_json
from attnport.runtimes import base as runtimes
from attnport.verbs.export import MODEL, WEIGHTS

if TYPE_CHECKING:
    import onnx_ir as ir

FILE = "fusion.json"
ENGINE = "engine"
"""The name of the prover that is a TensorRT engine and not a runtime."""
MOST_TRIES = 16
"""Forms that are tried to find the part that a runtime refuses."""
Progress = Callable[[str], None]
Rewrite = Callable[["ir.Model", Collection[str]], None]
"""Writes the linear layers of a lowered graph in integers, in place, but those with these names."""


def fuse(
    folder: Path,
    *,
    targets: Sequence[str] | None = None,
    plans: Mapping[str, str] | str | None = None,
    require: bool = False,
    force: bool = False,
    progress: Progress = lambda message: None,
) -> FusionReport:
    """Writes a lowered form for each target, and `fusion.json`.

    If the runtime that proves a form cannot open or run it, the attentions for which this is so stay as exported, with
    what the runtime said as the reason. If it cannot run the model without any lowered attention either, the form is
    kept, and none of its attentions is proved fused.

    Args:
        folder: An artifact folder.
        targets: Names, also with a precision plan, as `openvino.bf16`; None = all targets.
        plans: Precision plan by target, or one for all that take it; without one, the target's default.
        require: Raise where an attention is not fused.
        force: Run again even if nothing has changed.

    Raises:
        UsageError: a target is unknown, or does not take the plan.
        FusionMissing: `require`, and an attention is not fused.
        ArtifactError, IntegrityError: the folder is not an artifact, its model was changed, or a runtime cannot run a
            model that has no attention.
        ExportError: an operator has no form at a target's opset.
    """
    targets = (targets,) if isinstance(targets, str) else targets
    chosen, plans = asked(targets, plans)
    manifest = open_folder(folder)
    for number, lowering in enumerate(chosen, start=1):
        plan = plans.get(lowering.name, lowering.plans[0])
        manifest = _fuse_one(folder, manifest, lowering, plan, force, numbered(progress, number, len(chosen)))
    report = read(FusionReport, folder / FILE)
    if require:
        require_fused(report, chosen, plans, named=bool(targets))
    return report


def asked(
    targets: Sequence[str] | None, plans: Mapping[str, str] | str | None
) -> tuple[list[Lowering], dict[str, str]]:
    """The targets, and the plan of those that do not use their default; arguments and errors as of `fuse`."""
    parts = [name.partition(".") for name in targets or lowerings.names()]
    chosen = list(dict.fromkeys(lowerings.get(name) for name, _, _ in parts))
    if plans is None or isinstance(plans, str):
        plans = plans_of(chosen, plans.replace("-", "_") if plans else None, named=bool(targets))
    return chosen, {**plans, **{lowerings.get(name).name: plan for name, _, plan in parts if plan}}


def require_fused(report: FusionReport, chosen: Sequence[Lowering], plans: Mapping[str, str], *, named: bool) -> None:
    """Raises FusionMissing unless all attentions are fused by the targets; if none is named, by those that prove it."""
    keys = [lowering.table_key(plans.get(lowering.name, lowering.plans[0])) for lowering in chosen]
    require(report, [key for key in keys if named or report.targets[key].proved_by is not None])


def numbered(progress: Progress, number: int, count: int) -> Progress:
    """Progress of one target of several."""
    return (lambda step: progress(f"target {number}/{count}, {step}")) if count > 1 else progress


def plans_of(chosen: Sequence[Lowering], plan: str | None, *, named: bool) -> dict[str, str]:
    """The plan by target, for targets that do not use their default.

    Args:
        named: Whether the user named the targets. Then all get the plan; otherwise only those that take it.

    Raises:
        UsageError: no target takes the plan. If a named target does not take it, `fuse` raises.
    """
    if plan is None:
        return {}
    plans = {lowering.name: plan for lowering in chosen if named or plan in lowering.plans}
    if not plans:
        known = sorted({target_plan for lowering in chosen for target_plan in lowering.plans})
        raise UsageError(
            f"no target takes the plan {plan!r}; expected one of {', '.join(known)}.",
            hint=f"{AUTO} is searched by: attnport build FOLDER --target TARGET --dtype {AUTO}",
        )
    return plans


def require(report: FusionReport, keys: Sequence[str]) -> None:
    """Raises FusionMissing unless every attention in the tables `keys` is fused; names the first that is not."""
    missing = [
        f"{key}: {item.attention}: {item.reason}"
        for key in keys
        for item in report.targets[key].items
        if not item.fused
    ]
    if missing:
        raise FusionMissing(
            f"{len(missing)} attentions are not fused: {missing[0]}", hint="attnport fuse FOLDER --explain lists all."
        )


def fuse_searched(
    folder: Path, lowering: Lowering, found: PrecisionPlan, *, force: bool = False, progress: Progress
) -> Manifest:
    """Writes the form of the plan `auto` with the islands in `found`; raises as `fuse`."""
    return _fuse_one(folder, open_folder(folder), lowering, AUTO, force, progress, found)


def fuse_integers(
    folder: Path, lowering: Lowering, plan: str, found: IntegerPlan, rewrite: Rewrite, progress: Progress
) -> Manifest:
    """Writes the form of a plan with layers in integers, as `rewrite` writes them; raises as `fuse`."""
    return _fuse_one(folder, open_folder(folder), lowering, plan, True, progress, integers=(found, rewrite))


def drop_forms(changing: Change, keys: Collection[str]) -> None:
    """Removes forms from a folder, with their tables, their engines and their files."""
    forms = changing.manifest.forms
    tables = _tables(changing.folder, changing.manifest)
    files = {forms[key].file for key in keys}
    for key in keys:
        for name in _files_of(forms[key], changing.manifest):
            changing.remove(name)
        _drop_engines(changing, key)
    left = {name: table for name, table in tables.items() if table.file not in files}
    changing.write(FILE, FusionReport(left))
    stages = {f"{stage}:{key}" for stage in ("fuse", "lower") for key in keys}
    changing.manifest = dataclasses.replace(
        changing.manifest,
        forms={key: form for key, form in forms.items() if key not in keys},
        stages={name: stage for name, stage in changing.manifest.stages.items() if name not in stages},
    )


def _fuse_one(
    folder: Path,
    manifest: Manifest,
    lowering: Lowering,
    plan: str,
    force: bool,
    progress: Progress,
    searched: PrecisionPlan | None = None,
    integers: tuple[IntegerPlan, Rewrite] | None = None,
) -> Manifest:
    began_s = time.monotonic()
    key = lowering.form_key(plan)
    stage = f"fuse:{key}"
    provers = [lowering.name if prover == ENGINE else prover for prover in lowering.proved_by]
    digest = digest_text(
        toolchain("onnx_ir", "onnxscript", "numpy", *runtimes.distributions(provers)),
        key,
        manifest.files.get(MODEL, ""),
        manifest.files.get(WEIGHTS, ""),
        *([to_json(searched)] if searched else []),
        *([to_json(integers[0])] if integers else []),
    )
    table_key = lowering.table_key(plan)
    if not force and fresh(folder, manifest, stage, digest) and table_key in _tables(folder, manifest):
        return manifest
    check_files(folder, manifest, MODEL, *(name for name in (WEIGHTS,) if name in manifest.files))

    def attempt(without: Mapping[str, str], problem: str = "") -> tuple[Form, FusionTable]:
        progress(f"{key}: lowering")
        lowered, form = _write_form(folder, lowering, plan, searched, integers, without)
        progress(f"{key}: proving")
        table = _table(folder, open_folder(folder), lowering, plan, form, lowered, problem)
        return form, dataclasses.replace(table, padding=lowered.padding)

    steps = [BLOCKS, REAL_TOKENS] if lowering.real_tokens else [BLOCKS]
    form, table = _accepted(attempt, steps, [attention.name for attention in manifest.attentions])
    with change(folder, began_s) as changing:
        tables = _tables(folder, changing.manifest)
        changing.write(FILE, FusionReport({**tables, table_key: table}))
        return changing.finish(stage, digest, extra=_files_of(form, changing.manifest))


class _Refused(ArtifactError):
    """The runtime that proves a form cannot open or run it."""


def _accepted(
    attempt: Callable[..., tuple[Form, FusionTable]], steps: Sequence[str], attentions: Sequence[str]
) -> tuple[Form, FusionTable]:
    """Lowers what the runtime takes: a step or an attention without which the form runs is left out, with the reason.

    Args:
        attempt: Writes and proves a form without some parts, each with the reason; or only writes it, if it is given a
            reason why nothing is proved.

    Raises:
        _Refused: there is no attention that could carry the reason.
    """

    def refusal(without: Collection[str]) -> str:
        try:
            attempt(dict.fromkeys(without, "left out for a trial"))
        except _Refused as err:
            return err.message
        return ""

    try:
        return attempt({})
    except _Refused as err:
        if not attentions:
            raise
        whole = err.message
    for step in steps:
        with contextlib.suppress(_Refused):
            return attempt({step: whole})
    if unlowered := refusal([*steps, *attentions]):  # so it is the model, or another part of it
        return attempt({}, unlowered)
    refused: dict[str, str] = {}
    groups, tries = collections.deque([list(attentions)]), 0
    while groups:
        group, tries = groups.popleft(), tries + 1
        others = [name for name in attentions if name not in group]
        said = refusal([*steps, *others]) if tries <= MOST_TRIES else whole
        if said and len(group) > 1 and tries < MOST_TRIES:
            groups.extend((group[: len(group) // 2], group[len(group) // 2 :]))
        elif said:
            refused |= dict.fromkeys(group, said)
    for without in (refused, refused | dict.fromkeys(steps, whole)):
        with contextlib.suppress(_Refused):
            return attempt(without)
    return attempt(dict.fromkeys([*steps, *attentions], whole))  # what is refused only together


def _files_of(form: Form, manifest: Manifest) -> tuple[str, ...]:
    names = (form.file, form.file.removesuffix(".onnx") + ".bin")
    return tuple(name for name in names if name in manifest.files)


def earlier_tables(folder: Path, manifest: Manifest) -> Mapping[str, FusionTable]:
    """The fusion tables of a folder; raises as `read_report`."""
    report = read_report(FusionReport, folder, manifest, FILE)
    return report.targets if report else {}


def _tables(folder: Path, manifest: Manifest) -> Mapping[str, FusionTable]:
    """As `earlier_tables`, but none if the file was changed, as this verb writes it again."""
    try:
        return earlier_tables(folder, manifest)
    except (IntegrityError, ArtifactError):
        return {}


def _write_form(
    folder: Path,
    lowering: Lowering,
    plan: str,
    searched: PrecisionPlan | None,
    integers: tuple[IntegerPlan, Rewrite] | None,
    without: Mapping[str, str],
) -> tuple[Lowered, Form]:
    """Lowers and saves the form; the same change removes the table of the earlier form."""
    from attnport.exporter import storage

    key = lowering.form_key(plan)
    name = f"model.{key}.onnx"
    with change(folder) as changing:
        model = storage.load(folder / MODEL)
        usual = changing.manifest.io.profile().sizes("opt")
        lowered = lowering.lower(
            model,
            changing.manifest.attentions,
            plan="fp32" if integers else plan,
            masks=changing.manifest.io.masks,
            sizes=usual,
            islands=searched.nodes if searched else None,
            without=without,
        )
        if integers:
            integers[1](lowered.model, integers[0].kept)
        weights = f"model.{key}.bin"
        written = storage.save_form(lowered.model, changing.path(name), weights)
        if not written and weights in changing.manifest.files:
            changing.remove(weights)
        of_plan = searched, integers[0] if integers else None
        form = Form(lowering.name, plan, name, lowering.opset, lowered.anchors, lowered.masks, *of_plan)
        _drop_engines(changing, key)
        changing.manifest = dataclasses.replace(changing.manifest, forms={**changing.manifest.forms, key: form})
        tables = _tables(folder, changing.manifest)
        left = {key: table for key, table in tables.items() if key != lowering.table_key(plan)}
        changing.write(FILE, FusionReport(left))
        changing.finish(f"lower:{key}", "")
    return lowered, form


def _drop_engines(changing: Change, form: str) -> None:
    """Removes engines that were built from the earlier form."""
    stale = {name: record for name, record in changing.manifest.engines.items() if record.form == form}
    for record in stale.values():
        changing.remove(record.file)
        changing.remove(str(Path(record.file).with_suffix(".json")))
    left = {name: record for name, record in changing.manifest.engines.items() if name not in stale}
    changing.manifest = dataclasses.replace(changing.manifest, engines=left)


def _table(
    folder: Path, manifest: Manifest, lowering: Lowering, plan: str, form: Form, lowered: Lowered, refusal: str
) -> FusionTable:
    """The form's table, proved by the first of its provers that is available, or by none because of a `refusal`.

    Raises:
        _Refused: the prover cannot open or run the form.
    """
    problem = refusal or "no runtime on this machine can prove it"
    with tempfile.TemporaryDirectory(prefix="attnport-proof-") as scratch:
        model = light_copy(folder / form.file, Path(scratch))
        for prover in lowering.proved_by if not refusal else ():
            try:
                if prover == ENGINE:
                    unproved = _items(manifest, lowered, {}, "")
                    return _scratch_engine_table(model, manifest, form, _made_of(unproved, form, plan, ENGINE))
                runtime = runtimes.get(prover)
                runtimes.available(runtime)
                evidence = runtime.fusion_evidence(model, form.anchors, plan, manifest.io)
                items = _items(manifest, lowered, evidence, f"{prover} runs it as several kernels")
                return _made_of(items, form, plan, prover)
            except AttnportError as err:
                of_form = isinstance(err, (ArtifactError, EngineBuildError, BundleError))
                if of_form and err.exit_code == ArtifactError.exit_code:
                    said = portable(err.message, model.parent)
                    said = said if prover == ENGINE else f"{prover} does not run the form: {said}"
                    raise _Refused(said, hint=err.hint) from err
                if err.exit_code == UsageError.exit_code:  # such as a full disk, which is not a result about the form
                    raise
                problem = portable(f"not proven: {err.message}", model.parent)
    return _made_of(_items(manifest, lowered, {}, problem), form, plan, None)


def _made_of(items: tuple[FusionItem, ...], form: Form, plan: str, proved_by: str | None) -> FusionTable:
    return FusionTable(len(items), sum(item.fused for item in items), items, form.file, plan, proved_by)


def _items(
    manifest: Manifest, lowered: Lowered, evidence: Mapping[str, Evidence], problem: str
) -> tuple[FusionItem, ...]:
    """An item for each attention counted at export; `problem` is the reason for those lowered but not proved."""
    items = []
    for name in (attention.name for attention in manifest.attentions):
        proof = evidence.get(name)
        if proof is not None:
            reason = ""
        elif name not in lowered.forms:
            reason = lowered.notes.get(name, "no reason was recorded")
        else:
            reason = lowered.notes.get(name) or problem
        items.append(
            FusionItem(
                attention=name,
                form=lowered.forms.get(name, "as exported"),
                mask=lowered.masks.get(name, "unknown"),
                kernel=proof.kernel if proof else None,
                fused=proof is not None,
                reason=reason,
                evidence=proof.text if proof else "",
                cost=lowered.costs.get(name, ""),
            )
        )
    return tuple(items)


def _scratch_engine_table(model: Path, manifest: Manifest, form: Form, unproved: FusionTable) -> FusionTable:
    """The table proved by a temporary engine for all sizes of a model; `build` makes the engine that is shipped."""
    with tempfile.TemporaryDirectory(prefix="attnport-proof-") as scratch:
        engine, layers = Path(scratch) / "proof.engine", Path(scratch) / "layers.json"
        record = build_engine(form.target, model, manifest.io, engine, plan=form.plan, layers=layers)
        table = engine_table(manifest, form, record, engine, layers, unproved)
    return dataclasses.replace(table, proved_by=table.proved_by and f"{form.target} engine")


def engine_table(
    manifest: Manifest,
    form: Form,
    record: EngineRecord,
    engine: Path,
    layers: Path,
    earlier: FusionTable | None = None,
) -> FusionTable:
    """The table from the engine's own text, with an item for every attention counted at export; `build` uses it too.

    Where nothing can be read, nothing is proven. That holds too for `tensorrt` if no kernel of its inspector looks like
    one for attention, since only its documentation says what they are called.

    Args:
        engine: The current path of the engine; `record.file` is the final one.
        layers: What the engine's inspector says, which is read for `tensorrt`.
        earlier: The table from lowering, which has the name of the form and why an attention was not recognised.
    """
    known = {item.attention: item for item in earlier.items} if earlier else {}
    try:
        text: EngineText | str = read_layers(layers) if record.target == "tensorrt" else read_engine_text(engine)
    except ArtifactError as err:
        text = portable(err.message, engine.parent)
    items = tuple(
        _engine_item(attention.name, form, record, text, known.get(attention.name)) for attention in manifest.attentions
    )
    fused = sum(item.fused for item in items)
    proven = fused or not (isinstance(text, str) or record.target == "tensorrt")
    return FusionTable(len(items), fused, items, form.file, form.plan, proved_by=record.file if proven else None)


def _engine_item(
    attention: str, form: Form, record: EngineRecord, text: EngineText | str, known: FusionItem | None
) -> FusionItem:
    anchors = form.anchors.get(attention)
    spelling = known.form if known else ""
    mask = form.mask.get(attention, known.mask if known else "")
    if not anchors:
        reason = known.reason if known and known.reason else "it was not recognised in the graph"
        return FusionItem(attention, spelling, mask, None, False, reason)
    spelling = spelling or ("Attention" if len(anchors) == 1 else "decomposed")
    if isinstance(text, str):
        return FusionItem(attention, spelling, mask, None, False, text)
    proof = prove(text, anchors, len(record.profiles))
    if isinstance(proof, Evidence):
        return FusionItem(attention, spelling, mask, proof.kernel, True, "", proof.text, known.cost if known else "")
    return FusionItem(attention, spelling, mask, None, False, proof.reason)
