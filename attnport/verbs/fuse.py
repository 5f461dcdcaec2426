"""`attnport fuse`: lowers the attentions for each target and proves with the installed runtimes that they are fused."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    plan_of,
)
from attnport.errors import (
    ArtifactError,
    AttnportError,
    BundleError,
    EngineBuildError,
    FusionMissing,
    UnavailableError,
    UsageError,
    refuse_list,
)
from attnport.exporter import storage
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import EngineText, prove, read_engine_text, read_layers
from attnport.exporter.targets import base as lowerings
from attnport.exporter.targets.base import BLOCKS, REAL_TOKENS, Lowered, Lowering
from attnport.folder.portable import portable
from attnport.folder.workspace import Change, change, check_files, fresh, if_whole, open_folder, read_report, toolchain
from attnport.jsonfile import digest_text, read, to_json
from attnport.options import Folder, Force, Option, Progress
from attnport.parity.finer import NothingHolds, fewest
from attnport.runtimes import base as runtimes
from attnport.runtimes.base import Key
from attnport.verbs._arguments import verb
from attnport.verbs.export import MODEL, WEIGHTS

if TYPE_CHECKING:
    import onnx_ir as ir

FILE = "fusion.json"
ENGINE = "engine"
"""The name of the prover that is a TensorRT engine and not a runtime."""
AS_EXPORTED = "as exported"
"""The form of an attention that was not lowered."""
MOST_TRIES = 20
"""Forms that are tried to find the part that a runtime refuses."""
Rewrite = Callable[["ir.Model", Collection[str]], None]
"""Writes the linear layers of a lowered graph in integers, in place, but those with these names."""


@verb
def fuse(
    folder: Folder,
    targets: Annotated[
        Sequence[str], Option("A lowering target, also with its precision, as openvino.bf16; default: all.", "--target")
    ] = (),
    *,
    precision: Annotated[
        str | None, Option("The precision of targets that have it; default: each target's own.", "--dtype --precision")
    ] = None,
    require: Annotated[
        bool,
        Option("Exit 5 if an attention is not fused, 3 if that cannot be told here.", "--fail-on-unfused --require"),
    ] = False,
    force: Force = False,
    progress: Progress = lambda message: None,
) -> FusionReport:
    """Writes a lowered form for each target, and `fusion.json`.

    If the runtime that proves a form cannot open or run it, the attentions for which this is so stay as exported, with
    what the runtime said as the reason. If it cannot run the model without any lowered attention either, the form is
    kept, and none of its attentions is proved fused.

    Raises:
        UsageError: a target is unknown, or does not have the precision.
        FusionMissing: `require`, and an attention is not fused, or none was counted.
        UnavailableError: `require`, and what could prove a target that was named is not available here.
        ArtifactError, IntegrityError: the folder is not an artifact, its model was changed, or a runtime cannot run a
            model that has no attention.
        ExportError: an operator has no form at a target's opset.
    """
    chosen = asked(targets, precision)
    open_folder(folder)
    for number, (lowering, plan) in enumerate(chosen, start=1):
        fuse_form(folder, lowering, plan, force=force, progress=numbered(progress, number, len(chosen)))
    report = read(FusionReport, folder / FILE)
    if require:
        tables = {key: report.targets[key] for key in (lowering.table_key(plan) for lowering, plan in chosen)}
        require_fused({key: table for key, table in tables.items() if targets or table.proved_by})
    return report


def asked(targets: Sequence[str], precision: str | None) -> list[tuple[Lowering, str]]:
    """The targets with their precision plans. All that are named get `precision`; otherwise only those that take it.

    Raises:
        UsageError: a target is unknown, or none takes the precision. If a named target does not, `fuse` raises.
    """
    plan = plan_of(precision) if precision else ""
    known = sorted({own for name in lowerings.names() for own in lowerings.get(name).plans})
    if plan and not targets and plan not in known:
        raise UsageError(
            f"no target has the precision {plan!r}; expected one of {', '.join(known)}.",
            hint=f"{AUTO} is searched by: attnport build FOLDER --target TARGET --precision {AUTO}",
        )
    chosen: dict[tuple[Lowering, str], None] = {}
    for name in targets or lowerings.names():
        refuse_list("--target", name)
        key = Key.parse(name)
        lowering = lowerings.get(key.runtime)
        usual = plan if plan and (targets or plan in lowering.plans) else lowering.plans[0]
        chosen[lowering, key.precision or usual] = None
    return list(chosen)


def numbered(progress: Progress, number: int, count: int) -> Progress:
    """Progress of one target of several."""
    return (lambda step: progress(f"target {number}/{count}, {step}")) if count > 1 else progress


def require_fused(tables: Mapping[str, FusionTable]) -> None:
    """Raises unless these tables have attentions, and all are fused; names the first that are not.

    Raises:
        FusionMissing: an attention is not fused, or none was counted.
        UnavailableError: nothing but the proof is missing, as what could give it is not available here.
    """
    if none := [key for key, one in tables.items() if not one.attentions]:
        raise FusionMissing(
            f"{', '.join(none)}: no attention was counted, so there is none that is fused.",
            hint="What is counted is a softmax of products of queries and keys, with a product with values behind it.",
        )
    # What stayed as exported is not fused, whether or not the rest could be proved.
    unproved = {key: one for key, one in tables.items() if one.unavailable and all(map(_is_lowered, one.items))}
    judged = {key: one for key, one in tables.items() if key not in unproved}
    few = [f"{key} {one}" for key, one in judged.items() if not one.fused == one.attentions == len(one.items)]
    missing = [
        f"{key}: {item.attention}: {item.reason}"
        for key, table in judged.items()
        for item in table.items
        if not item.fused
    ]
    if few or missing:
        raise FusionMissing(
            f"attentions are not fused: {', '.join(few)}. {'; '.join(missing[:3])}",
            hint=f"{FILE} has every attention, with the reason.",
        )
    if unproved:
        reasons = dict.fromkeys(one.unavailable.rstrip(".") for one in unproved.values())
        raise UnavailableError(
            f"whether attentions are fused cannot be told here: {', '.join(unproved)}: {'; '.join(reasons)}.",
            hint="The forms are written. Run this where their runtime is; attnport doctor says what is missing here.",
        )


def _is_lowered(item: FusionItem) -> bool:
    return item.form != AS_EXPORTED


def fuse_form(
    folder: Path,
    lowering: Lowering,
    plan: str,
    kept: PrecisionPlan | IntegerPlan | None = None,
    rewrite: Rewrite | None = None,
    *,
    force: bool = False,
    progress: Progress,
) -> None:
    """Writes and proves the form of one target and precision plan, unless nothing has changed; raises as `fuse`.

    Args:
        kept: What stays finer, as a search found it: for the plan `auto`, and for plans in integers.
        rewrite: Writes the linear layers in integers, for an `IntegerPlan`.
    """
    began_s = time.monotonic()
    manifest = open_folder(folder)
    stage, table_key = f"fuse:{lowering.form_key(plan)}", lowering.table_key(plan)
    provers = [lowering.name if prover == ENGINE else prover for prover in lowering.proved_by]
    digest = digest_text(
        toolchain("onnx_ir", "onnxscript", "numpy", *runtimes.distributions(provers)),
        lowering.form_key(plan),
        manifest.files.get(MODEL, ""),
        manifest.files.get(WEIGHTS, ""),
        *([to_json(kept)] if kept else []),
    )
    if not force and fresh(folder, manifest, stage, digest) and table_key in _tables(folder, manifest):
        return
    check_model(folder, manifest)
    steps = [BLOCKS, REAL_TOKENS] if lowering.real_tokens else [BLOCKS]
    attempt = _Fusing(folder, lowering, plan, kept, rewrite, progress).attempt
    form, table = _accepted(attempt, steps, [attention.name for attention in manifest.attentions])
    with change(folder, began_s) as changing:
        changing.write(FILE, FusionReport({**_tables(folder, changing.manifest), table_key: table}))
        changing.finish(stage, digest, extra=files_of(form, changing.manifest))


def drop_forms(changing: Change, keys: Collection[str]) -> None:
    """Removes forms from a folder, with their tables, their engines and their files."""
    forms = changing.manifest.forms
    tables = _tables(changing.folder, changing.manifest)
    files = {forms[key].file for key in keys}
    for key in keys:
        for name in files_of(forms[key], changing.manifest):
            changing.remove(name)
        _drop_engines(changing, key)
    changing.write(FILE, FusionReport({name: table for name, table in tables.items() if table.file not in files}))
    stages = {f"{stage}:{key}" for stage in ("fuse", "lower") for key in keys}
    changing.manifest = dataclasses.replace(
        changing.manifest,
        forms={key: form for key, form in forms.items() if key not in keys},
        stages={name: stage for name, stage in changing.manifest.stages.items() if name not in stages},
    )


class _Refused(ArtifactError):
    """The runtime that proves a form cannot open or run it."""


def _accepted(
    attempt: Callable[..., tuple[Form, FusionTable]], steps: Sequence[str], attentions: Sequence[str]
) -> tuple[Form, FusionTable]:
    """The form that the runtime takes: few steps and attentions are left out, each with what the runtime said.

    Args:
        attempt: Writes and proves a form, without the parts in its first argument, each with the reason. A second
            argument says why nothing is proved; then it only writes the form.
        steps: Steps of the lowering, which are left out rather than attentions.

    Raises:
        _Refused: there is no attention that could carry the reason.
    """
    refused: dict[frozenset[str], _Refused] = {}
    made: list[tuple[Form, FusionTable]] = []

    def error(left_out: frozenset[str]) -> float:
        try:
            made[:] = [attempt(dict.fromkeys(left_out, "left out for a trial"))]
        except _Refused as err:
            refused[left_out] = err
            return math.inf
        return 0.0

    names = [*steps, *attentions]
    try:
        found = fewest(names, lambda name: 2.0 * (name in steps), error, MOST_TRIES)
    except NothingHolds:  # so it is the model, or another part of it
        if not attentions:
            raise refused[frozenset()] from None
        return attempt({}, refused[frozenset(names)].message)
    left_out = frozenset(found.names)
    if not left_out:
        return made[0]
    if found.capped and not error(left_out.difference(steps)):  # too many attentions were tried to try the steps
        left_out = left_out.difference(steps)
    whole = refused[frozenset()]
    return attempt({name: refused.get(left_out - {name}, whole).message for name in left_out})


def check_model(folder: Path, manifest: Manifest) -> None:
    """Compares the model as exported with its digests; raises as `check_files`."""
    check_files(folder, manifest, MODEL, *(name for name in (WEIGHTS,) if name in manifest.files))


def files_of(form: Form, manifest: Manifest) -> tuple[str, ...]:
    """The files of a form alone."""
    return tuple(name for name in (form.file, str(Path(form.file).with_suffix(".bin"))) if name in manifest.files)


def earlier_tables(folder: Path, manifest: Manifest) -> Mapping[str, FusionTable]:
    """The fusion tables of a folder; raises as `read_report`."""
    report = read_report(FusionReport, folder, manifest, FILE)
    return report.targets if report else {}


def _tables(folder: Path, manifest: Manifest) -> Mapping[str, FusionTable]:
    """As `earlier_tables`, but none if the file was changed, as this verb writes it again."""
    return if_whole(earlier_tables, folder, manifest) or {}


def _drop_engines(changing: Change, form: str) -> None:
    """Removes engines that were built from the earlier form."""
    stale = {name: record for name, record in changing.manifest.engines.items() if record.form == form}
    for record in stale.values():
        changing.remove(record.file)
        changing.remove(str(Path(record.file).with_suffix(".json")))
    left = {name: record for name, record in changing.manifest.engines.items() if name not in stale}
    changing.manifest = dataclasses.replace(changing.manifest, engines=left)


@dataclass(frozen=True)
class _Fusing:
    """The form of one target and precision plan; arguments of `fuse_form`."""

    folder: Path
    lowering: Lowering
    plan: str
    kept: PrecisionPlan | IntegerPlan | None
    rewrite: Rewrite | None
    progress: Progress

    def attempt(self, without: Mapping[str, str], problem: str = "") -> tuple[Form, FusionTable]:
        """Writes the form into the folder, also for a trial of `_accepted`, and proves it; the last one stays."""
        key = self.lowering.form_key(self.plan)
        self.progress(f"{key}: lowering")
        lowered, form = self._write(key, without)
        self.progress(f"{key}: proving")
        return form, dataclasses.replace(self.prove(form, lowered, problem), padding=lowered.padding)

    def _write(self, key: str, without: Mapping[str, str]) -> tuple[Lowered, Form]:
        """Lowers and saves the form; the same change removes the table of the earlier form."""
        islands = self.kept if isinstance(self.kept, PrecisionPlan) else None
        integers = self.kept if isinstance(self.kept, IntegerPlan) else None
        with change(self.folder) as changing:
            io = changing.manifest.io
            lowered = self.lowering.lower(
                storage.load(self.folder / MODEL),
                changing.manifest.attentions,
                plan=self.lowering.plan_beside(self.plan) if integers else self.plan,
                masks=io.masks,
                sizes=io.profile().sizes("opt"),
                islands=islands.nodes if islands else () if integers else None,
                without=without,
            )
            if integers:
                assert self.rewrite is not None
                self.rewrite(lowered.model, integers.kept)
            name, weights = f"model.{key}.onnx", f"model.{key}.bin"
            whole = storage.reads_little(lowered.model)
            written = storage.save_form(lowered.model, changing.path(name), weights, again=whole)
            if not written and weights in changing.manifest.files:
                changing.remove(weights)
            form = Form(
                self.lowering.name, self.plan, name, self.lowering.opset, lowered.anchors, lowered.masks, islands,
                integers,
            )  # fmt: skip
            _drop_engines(changing, key)
            changing.manifest = dataclasses.replace(changing.manifest, forms={**changing.manifest.forms, key: form})
            tables = _tables(self.folder, changing.manifest)
            changing.write(FILE, FusionReport({each: table for each, table in tables.items() if table.file != name}))
            changing.finish(f"lower:{key}", "")
        return lowered, form

    def prove(self, form: Form, lowered: Lowered, refusal: str) -> FusionTable:
        """The form's table, proved by the first of its provers that is available, or by none because of a `refusal`.

        Raises:
            _Refused: the prover cannot open or run the form.
        """
        manifest = open_folder(self.folder)
        problem, unavailable = refusal or "no runtime on this machine can prove it", ""
        with tempfile.TemporaryDirectory(prefix="attnport-proof-") as scratch:
            model = storage.light_copy(self.folder / form.file, Path(scratch))
            for prover in self.lowering.proved_by if not refusal else ():
                try:
                    if prover == ENGINE:
                        engine, layers = Path(scratch, "proof.engine"), Path(scratch, "layers.json")
                        # For all sizes of the model; `build` makes the engine that is shipped.
                        record = build_engine(form.target, model, manifest.io, engine, plan=form.plan, layers=layers)
                        unproved = _table(form, _items(manifest, lowered, {}, ""), ENGINE)
                        table = engine_table(manifest, form, record, engine, layers, unproved)
                        return dataclasses.replace(table, proved_by=table.proved_by and f"{form.target} engine")
                    runtime = runtimes.get(prover)
                    runtimes.available(runtime)
                    evidence = runtime.fusion_evidence(model, form.anchors, form.plan, manifest.io)
                    items = _items(manifest, lowered, evidence, f"{prover} runs it as several kernels")
                    return _table(form, items, prover)
                except AttnportError as err:
                    of_form = isinstance(err, (ArtifactError, EngineBuildError, BundleError))
                    if of_form and err.exit_code == ArtifactError.exit_code:
                        said = portable(err.message, model.parent)
                        said = said if prover == ENGINE else f"{prover} does not run the form: {said}"
                        raise _Refused(said, hint=err.hint) from err
                    if err.exit_code == UsageError.exit_code:  # as a full disk, which is not a result about the form
                        raise
                    lacks = portable(err.message, model.parent)
                    problem = f"not proven: {lacks}"
                    unavailable = lacks if err.exit_code == UnavailableError.exit_code else ""
        return dataclasses.replace(_table(form, _items(manifest, lowered, {}, problem), None), unavailable=unavailable)


def _table(form: Form, items: tuple[FusionItem, ...], proved_by: str | None) -> FusionTable:
    return FusionTable(len(items), sum(item.fused for item in items), items, form.file, form.plan, proved_by)


def _items(
    manifest: Manifest, lowered: Lowered, evidence: Mapping[str, Evidence], problem: str
) -> tuple[FusionItem, ...]:
    """An item for each attention counted at export; `problem` is the reason for those lowered but not proved."""
    items = []
    for name in (attention.name for attention in manifest.attentions):
        proof = evidence.get(name)
        of_form = [problem, lowered.notes.get(name)] if name in lowered.forms else [lowered.notes.get(name)]
        reason = "; ".join(filter(None, of_form)) or "no reason was recorded"
        items.append(
            FusionItem(
                attention=name,
                form=lowered.forms.get(name, AS_EXPORTED),
                mask=lowered.masks.get(name, "unknown"),
                kernel=proof.kernel if proof else None,
                fused=proof is not None,
                reason="" if proof else reason,
                evidence=proof.text if proof else "",
                cost=lowered.costs.get(name, ""),
            )
        )
    return tuple(items)


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
    try:
        text: EngineText | str = read_layers(layers) if record.target == "tensorrt" else read_engine_text(engine)
    except ArtifactError as err:
        text = portable(err.message, engine.parent)
    known = {item.attention: item for item in earlier.items} if earlier else {}
    items = []
    for name in (attention.name for attention in manifest.attentions):
        anchors = form.anchors.get(name, ())
        spelling = "Attention" if len(anchors) == 1 else "decomposed" if anchors else ""
        unknown = FusionItem(name, spelling, form.mask.get(name, ""), None, False, "it was not recognised in the graph")
        item = dataclasses.replace(known.get(name, unknown), kernel=None, fused=False, evidence="")
        if anchors:
            proof = text if isinstance(text, str) else prove(text, anchors, len(record.profiles))
            if isinstance(proof, str):
                item = dataclasses.replace(item, reason=proof)
            else:
                item = dataclasses.replace(item, kernel=proof.kernel, fused=True, reason="", evidence=proof.text)
        items.append(item)
    proven = any(item.fused for item in items) or not (isinstance(text, str) or record.target == "tensorrt")
    return _table(form, tuple(items), record.file if proven else None)
