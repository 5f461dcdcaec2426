"""`attnport build`: builds a TensorRT engine from a lowered form, and proves that its attention is fused."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from attnport import optional
from attnport.artifacts import AUTO, PLANS, WEIGHT_PLANS, EngineRecord, FusionReport, FusionTable, Manifest, plan_of
from attnport.cases.choosing import read_sentences
from attnport.dims import Profile, parse_profile, profiles_digest
from attnport.errors import ParityFailed, UsageError
from attnport.exporter.engine.build import FLAVOURS, build_engine, check_profiles, external_files
from attnport.exporter.targets import base as lowerings
from attnport.exporter.targets.base import Lowering
from attnport.folder.loading import require
from attnport.folder.workspace import (
    change,
    check_files,
    fresh,
    if_whole,
    open_folder,
    read_parity,
    stage,
    stage_of,
    toolchain,
)
from attnport.jsonfile import digest_text
from attnport.options import Folder, Force, Option, Progress, Tell
from attnport.parities import FILE as PARITY
from attnport.parity.comparing import EAGER, FAST_EVALUATOR, TYPED_EVALUATOR
from attnport.parity.finer import BUDGET, Integers, plan_integers, plan_precision
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.sources.digests import TOOLCHAIN
from attnport.verbs import fuse as fusing
from attnport.verbs._arguments import verb
from attnport.verbs.export import MODEL, WEIGHTS
from attnport.verbs.tune import data_of, judged_by, metric_of, parse_share, write_own_golden
from attnport_bundle.runtimes.tensorrt import TARGET_BITS

DEFAULT_PLAN = "fp16"


@verb
def build(
    folder: Folder,
    target: Annotated[
        str,
        Option("tensorrt_rtx (builds without a GPU) or tensorrt; ort_cpu with int4_fp16, for the browser.", "--target"),
    ],
    precision: Annotated[
        str,
        Option(
            "fp16, bf16, fp32; fp16_islands, bf16_islands, which compute attention alone in half precision; auto, fp16 "
            "but for what has to be float32, which is searched; int8_fp16, int4_fp16, fp8_fp16, fp4_fp16, "
            "fp8_bf16 or fp4_bf16, with weights in few bits.",
            "--dtype --precision",
        ),
    ] = DEFAULT_PLAN,
    profiles: Annotated[
        Sequence[Profile | str],
        Option(
            'Sizes, smallest:usual:largest, "batch=1:8:64,seq=1:128:512"; several allowed; default: one that covers '
            "all sizes of the model.",
            "--profile",
        ),
    ] = (),
    sm: Annotated[
        Sequence[int],
        Option(
            "Compute capability, 86 for 8.6; several allowed; default: the builder's own, of fp8 "
            "those from 89 on, of fp4 from 120.",
            "--sm",
        ),
    ] = (),
    *,
    budget: Annotated[
        float | str | None,
        Option("With --precision auto: allowed error, as a multiple of PyTorch's own in fp16; default 2x."),
    ] = None,
    text: Annotated[
        Path | None,
        Option("With few bits: sentences, one in each line, by which they are judged; see tune."),
    ] = None,
    inputs: Annotated[Path | None, Option("Instead, an .npz of many items, an array for each input.")] = None,
    metric: Annotated[
        str | None, Option("Your own measure, the larger the better; see tune.", metavar="FILE.py:FUNCTION")
    ] = None,
    max_drop: Annotated[
        float | str, Option("How much worse the metric may be than in float32, 0.5% or 0.005.", metavar="SHARE")
    ] = "0.5%",
    trust_source: Annotated[
        bool, Option("With --precision auto: run the code that a folder from elsewhere names.")
    ] = False,
    force: Force = False,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> tuple[EngineRecord | None, FusionTable]:
    """Builds an engine into `engines/` and writes whether each attention is fused into `fusion.json`.

    It is skipped if the same engine was built before and its file is unchanged. The form is made first if it does not
    exist yet; of the plan `auto`, fp16 with the fewest parts in float32 that keep the bound, these are searched for.

    With `int8_fp16`, `fp4_fp16` and the like, weights of linear layers are integers or floating-point numbers of few
    bits, but those that cost more of the metric than is allowed: these stay in half precision, or have 8 bits in place
    of 4. The metric is that of `tune`, of the same graph in float32 on the processor.

    Of `ort_cpu` with `int4_fp16` the form alone is built, as there are no engines: `model_q4f16.onnx` of layout `web`.
    The metric judges the form itself.

    Raises:
        UsageError: the target or compute capability is unknown; the budget is invalid or given without `auto`; or
            nothing is given to judge few bits by, or a compute capability has no kernels for them.
        ParityFailed: with `auto`: no islands of float32 keep the bound; with few bits: the metric falls too far.
        ProfileError: a profile does not fit the model.
        SpecError: with `auto`: the source has changed, or would run code that this user has not exported or trusted.
        ArtifactError, IntegrityError: the folder is not an artifact, or its files are not what was written.
        MissingDependency: the target's package is not installed.
        UnavailableError: the target is `tensorrt` and there is no GPU.
        EngineBuildError: TensorRT refused the form, or its builder died.
    """
    target, plan = target.replace("-", "_"), plan_of(precision)
    lowering = _lowering(target, plan, of_engines=bool(profiles or sm))
    allowed = parse_budget(budget)
    if budget is not None and plan != AUTO:
        raise UsageError(f"--budget goes with --precision {AUTO}; got {plan}.")
    given = [name for name, value in (("text", text), ("inputs", inputs), ("metric", metric)) if value is not None]
    if given and plan not in WEIGHT_PLANS:
        raise UsageError(f"--{given[0]} goes with weights in few bits, {', '.join(WEIGHT_PLANS)}; got {plan}.")
    sm = check_sm(plan, sm) if target == "tensorrt_rtx" else sm
    manifest = open_folder(folder)
    parsed = tuple(parse_profile(item, manifest.io.dims) if isinstance(item, str) else item for item in profiles)
    checked = check_profiles(manifest.io, parsed)
    if target in FLAVOURS:
        optional.require(target)
    key, table_key = lowering.form_key(plan), lowering.table_key(plan)
    if plan == AUTO:
        require(manifest.source, given=trust_source)
        _write_searched_form(folder, lowering, allowed, force=force, progress=progress)
    elif plan in lowering.integers and (given or key not in manifest.forms):
        sentences = read_sentences(text) if text else []
        _write_integers(folder, lowering, plan, sentences, inputs, metric, max_drop, force=force, progress=progress)
    elif key not in manifest.forms:
        progress(f"lowering for {key}")
        fusing.fuse(folder, [f"{target}.{plan}"], progress=progress)
    manifest, sm = open_folder(folder), tuple(sorted(set(sm)))
    name = _engine_name(target, plan, sm, checked)
    if judged_by_metric := manifest.forms[key].integers:
        tell(f"{key}: {judged_by_metric}")
    if target not in FLAVOURS:
        return None, fusing.earlier_tables(folder, manifest)[table_key]
    for file in (PARITY, stage_of("check", PARITY, plan, PLANS)[1]):
        judged = if_whole(read_parity, folder, manifest, file)
        row = judged.forms.get(key) if judged else None
        if row is not None and row.verdict == "FAIL":
            tell(f"{key} fails check, so that the engine will too: {row.reason}")
            break
    with stage(folder, f"build:{key}", _inputs_digest(folder, manifest, key, checked, sm), force=force) as run:
        manifest = run.manifest
        form = manifest.forms[key]
        earlier = _earlier(folder, manifest, name, table_key) if run.kept else None
        if earlier is not None:
            return earlier
        file = f"engines/{name}"
        progress(f"building {file}")
        tables = fusing.earlier_tables(folder, manifest)
        with tempfile.TemporaryDirectory(prefix="attnport-layers-") as scratch:
            model, engine, layers = folder / form.file, run.path(file), Path(scratch) / "layers.json"
            built = build_engine(target, model, manifest.io, engine, plan=plan, profiles=checked, sm=sm, layers=layers)
            record = dataclasses.replace(built, file=file, form=key, precision=form.precision)
            progress("reading the proof of fusion")
            table = fusing.engine_table(manifest, form, record, engine, layers, tables.get(table_key))
        run.write(str(Path(file).with_suffix(".json")), record)
        run.write(fusing.FILE, FusionReport(_with_table(tables, table_key, table, file, manifest)))
        run.manifest = dataclasses.replace(manifest, engines={**manifest.engines, name: record})
        run.record()
    return record, table


def _lowering(target: str, plan: str, *, of_engines: bool) -> Lowering:
    """What lowers for a target: of an engine, or of a form that is itself what is built. Raises UsageError.

    Args:
        of_engines: Whether options were given that only engines have.
    """
    lowering = lowerings.get(target) if target in lowerings.names() else None
    of_form = lowering is not None and plan in lowering.integers and PLANS[plan].weights
    if lowering is None or (target not in FLAVOURS and not of_form):
        raise UsageError(f"target {target!r}: no engine is built for it; expected one of {', '.join(FLAVOURS)}.")
    if target not in FLAVOURS and of_engines:
        raise UsageError(f"--profile and --sm are of engines; the form of {target} runs at all sizes of the model.")
    return lowering


def check_sm(plan: str, sm: Sequence[int]) -> Sequence[int]:
    """The compute capabilities to build for; where none is named, all that read such weights.

    TensorRT-RTX's own list would claim devices whose kernels do not.

    Raises:
        UsageError: one of those that are named does not.
    """
    if not (least := PLANS[plan].least_sm if plan in PLANS else 0):
        return sm
    if early := [each for each in sm if each < least]:
        raise UsageError(
            f"--sm {early[0]}: TensorRT-RTX reads weights of {plan} from compute capability {least} on.",
            hint="Take int8_fp16 or int4_fp16 there.",
        )
    return sm or [each for each in TARGET_BITS.values() if each >= least]


def parse_budget(budget: float | str | None) -> float:
    """The allowed error of the plan `auto`, as a multiple of PyTorch eager's: `2x`, `1.5`; None = 2, as in `check`.

    Raises:
        UsageError: it is not a number above 0 and at most 2; a larger error would fail in `check`.
    """
    if budget is None:
        return BUDGET
    try:
        multiple = float(str(budget).strip().lower().removesuffix("x"))
    except ValueError:
        multiple = math.nan
    if not 0 < multiple <= BUDGET:  # false for a NaN too
        raise UsageError(
            f"--budget {budget}: expected a multiple of PyTorch eager's error such as 2x or 1.5x, over 0 and at most "
            f"{BUDGET:g}x.",
            hint=f"{BUDGET:g}x is the bound of attnport check; a form beyond it would fail there.",
        )
    return multiple


def _write_searched_form(folder: Path, lowering: Lowering, budget: float, *, force: bool, progress: Progress) -> None:
    """Searches what has to stay in float32 for the plan `auto` and writes the form, unless this was done before.

    Raises as `plan_precision` and `fuse`.
    """
    began_s = time.monotonic()
    manifest = open_folder(folder)
    key = lowering.form_key(AUTO)
    name, digest = f"precision:{key}", _search_digest(manifest, key, budget)
    form = manifest.forms.get(key)
    if not force and form is not None and form.precision is not None and fresh(folder, manifest, name, digest):
        return
    fusing.check_model(folder, manifest)
    progress(f"{key}: searching what has to stay in float32")
    kept = plan_precision(folder, manifest, lowering, budget=budget, progress=progress)
    fusing.fuse_form(folder, lowering, AUTO, kept, force=force, progress=progress)
    with change(folder, began_s) as edit:
        edit.finish(name, digest, extra=fusing.files_of(edit.manifest.forms[key], edit.manifest))


def _write_integers(
    folder: Path,
    lowering: Lowering,
    plan: str,
    sentences: Sequence[str],
    inputs: Path | None,
    metric: str | None,
    max_drop: float | str,
    *,
    force: bool,
    progress: Progress,
) -> None:
    """Writes the form with weights in integers, unless it was judged by the same before.

    Raises:
        UsageError: there are no items to judge it by.
        ParityFailed: the metric falls by more than `max_drop` with any layer in integers.
    """
    manifest = open_folder(folder)
    most, data = parse_share(max_drop), data_of(folder, manifest, sentences, inputs)
    judge = metric_of(folder, manifest, data, metric)
    if data is None or judge is None:
        raise UsageError(
            f"--precision {plan}: weights in few bits are judged by items of yours, and there are none.",
            hint="Give --text FILE, or many items with --inputs.",
        )
    key, digest = lowering.form_key(plan), judged_by(manifest, data, judge, most)
    earlier = manifest.forms.get(key)
    if not force and earlier is not None and earlier.integers is not None and earlier.integers.inputs == digest:
        return
    fusing.check_model(folder, manifest)
    runtime = base.get(FAST_EVALUATOR)
    base.available(runtime)
    with tempfile.TemporaryDirectory(prefix="attnport-integers-") as scratch:
        opening = Opening(manifest.io, plan if lowering.name == runtime.form else "fp32")
        graphs = Integers(folder, manifest, lowering, plan, runtime, opening, data.ranged, Path(scratch))
        with graphs.open_plain() as session:
            reference = judge(session)
        found = plan_integers(
            graphs, judge, reference, max_drop=most, scored=len(data.scored), inputs=digest,
            progress=lambda step: progress(f"{key}: {step}"),
        )  # fmt: skip
        if isinstance(found, str):
            raise ParityFailed(f"{key}: {found}.", hint="--max-drop allows more; fp16 loses less.")
        write_own_golden(folder, graphs, found.kept, key)
        fusing.fuse_form(folder, lowering, plan, found, graphs.rewrite, force=True, progress=progress)


def _search_digest(manifest: Manifest, key: str, budget: float) -> str:
    """The digest of everything that a search depends on."""
    used = (manifest.files.get(MODEL, ""), manifest.files.get(WEIGHTS, ""))
    used_by = toolchain(*TOOLCHAIN, *base.distributions([EAGER, FAST_EVALUATOR, TYPED_EVALUATOR]))
    return digest_text(used_by, key, str(budget), str(manifest.source), str(manifest.io), *used)


def _inputs_digest(folder: Path, manifest: Manifest, key: str, profiles: Sequence[Profile], sm: Sequence[int]) -> str:
    """The digest of everything that an engine is made from. Raises IntegrityError if the form was changed."""
    form = manifest.forms[key]
    check_files(folder, manifest, form.file)  # before the names of its weights are read from it
    used = (form.file, *external_files(folder / form.file))
    check_files(folder, manifest, *used)
    return digest_text(
        toolchain(*base.distributions([form.target])),
        key,
        *(f"{name}={manifest.files[name]}" for name in used),
        *map(str, profiles),
        *(f"sm{capability}" for capability in sm),
    )


def _engine_name(target: str, plan: str, sm: Sequence[int], profiles: Sequence[Profile]) -> str:
    targets = "-".join(f"sm{capability}" for capability in sm) or "default"
    return f"{target}-{plan}-{targets}-{profiles_digest(profiles)}.engine"


def _with_table(
    tables: Mapping[str, FusionTable], key: str, table: FusionTable, file: str, manifest: Manifest
) -> dict[str, FusionTable]:
    """The tables of a folder with that of the engine `file`, which was built last of its form, as `key`.

    That of another engine of the same form has the name that this engine's row has in `parity.json`.
    """
    others = {name: each for name, each in tables.items() if each.proved_by != file}
    for name, record in manifest.engines.items():
        if key in others and others[key].proved_by == record.file:
            others[f"{record.target}.{name}"] = others[key]
    return {**others, key: table}


def _earlier(folder: Path, manifest: Manifest, name: str, table_key: str) -> tuple[EngineRecord, FusionTable] | None:
    """The engine and table of an earlier run; None if the table is now that of another engine.

    A table without a proof names no engine; that of `tensorrt` may have none.
    """
    record, table = manifest.engines.get(name), fusing.earlier_tables(folder, manifest).get(table_key)
    if record is None or table is None:
        return None
    unproven = table.proved_by is None and record.target == "tensorrt"
    return (record, table) if unproven or table.proved_by == record.file else None
