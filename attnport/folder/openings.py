"""Which file of a folder a runtime opens: its own form, the model as exported, or an engine; and that file, open."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

from attnport.artifacts import CASTS, INTEGERS, PLANS, Capabilities, Manifest, Session
from attnport.errors import UnavailableError, UsageError
from attnport.folder.workspace import check_files, load_spec
from attnport.jsonfile import digest_file
from attnport.runtimes import base
from attnport.runtimes.base import Key, Opening, Runtime
from attnport_bundle.format.manifest import MANIFEST

MODEL = "model.onnx"
MODEL_SUFFIXES = (".onnx", ".bin", ".engine")


def model_openings(
    runtime: Runtime,
    folder: Path,
    manifest: Manifest,
    plans: Sequence[str],
    threads: int | None,
    bundle: Path | None = None,
    *,
    usual: str = "fp32",
) -> dict[str, Opening]:
    """What a runtime that opens files has to run here.

    Args:
        plans: The precision plans that its probe found; forms of others are left out.
        bundle: The bundle that was made of this folder, for the runtime that opens bundles.
        usual: The precision plan that a name does not tell.

    Returns:
        By the name that reports use: the runtime's own, with the plan behind it for other plans than `usual`, and with
        the engine's key where there are several; of a bundle, with the name of each of its forms. Empty when the
        folder holds nothing for it, see `why_none`.

    Raises:
        BundleError, IntegrityError: `bundle` is no bundle.
    """
    if runtime.opens == "bundle":
        return {} if bundle is None else _bundle_openings(runtime, bundle, manifest, threads)
    if runtime.opens == "engine":
        records = {key: record for key, record in manifest.engines.items() if record.target == runtime.name}
        return {
            runtime.name if len(records) == 1 else f"{runtime.name}.{key}": Opening(
                manifest.io, plan=record.plan, model=folder / record.file, engine=record, threads=threads
            )
            for key, record in records.items()
        }
    if not runtime.form:
        return {runtime.name: Opening(manifest.io, model=folder / MODEL, threads=threads)}
    return {
        name_of(runtime.name, form.plan, usual): Opening(
            manifest.io, plan=form.plan, model=folder / form.file, threads=threads
        )
        for form in manifest.forms.values()
        if form.target == runtime.form and form.plan in (plans or ("fp32",))
    }


def name_of(runtime: str, plan: str, usual: str = "fp32") -> str:
    """The name that reports use for a runtime with the form of a precision plan."""
    return runtime if plan == usual else f"{runtime}.{plan}"


def model_files(manifest: Manifest) -> list[str]:
    """What a check or a measurement reads of a folder: models, weights, engines, the tokenizer; no reports."""
    named = (name for name in manifest.files if Path(name).suffix in MODEL_SUFFIXES or name == manifest.tokenizer)
    return list(dict.fromkeys((MODEL, *named)))


def stage_of(stage: str, file: str, plan: str | None) -> tuple[str, str]:
    """A verb's stage and report; those of one precision plan alone, such as `check:fp16` and `parity.fp16.json`.

    Raises:
        UsageError: there is no such plan.
    """
    if plan is None:
        return stage, file
    if plan not in CASTS:
        raise UsageError(f"--precision {plan!r}: expected one of {', '.join(CASTS)}.")
    return f"{stage}:{plan}", str(Path(file).with_suffix(f".{plan}.json"))


def of_plan(manifest: Manifest, plan: str) -> Manifest:
    """The manifest with forms, engines and files of one precision plan, and what belongs to no plan."""
    forms = {form.file for form in manifest.forms.values() if form.plan != plan}
    engines = {record.file for record in manifest.engines.values() if record.plan != plan}
    other = {Path(file).with_suffix("").as_posix() for file in forms | engines}
    return dataclasses.replace(
        manifest,
        forms={key: form for key, form in manifest.forms.items() if form.plan == plan},
        engines={key: record for key, record in manifest.engines.items() if record.plan == plan},
        files={
            name: digest
            for name, digest in manifest.files.items()
            if Path(name).with_suffix("").as_posix() not in other
        },
    )


def openings_at(
    plan: str, runtime: Runtime, folder: Path, manifest: Manifest, threads: int | None, bundle: Path | None
) -> dict[str, Opening]:
    """As `model_openings`, of one precision plan, which the names do not tell."""
    found = model_openings(runtime, folder, manifest, (plan,), threads, bundle, usual=plan)
    return {name: opening for name, opening in found.items() if opening.plan == plan}


def not_in(found: Capabilities, plan: str) -> str:
    """Why a runtime that is there cannot be asked for a precision plan; "" where it can."""
    return "" if plan in found.plans else f"it computes in {', '.join(found.plans)} here, not in {plan}"


def of_keys(manifest: Manifest, keys: Sequence[Key]) -> Manifest:
    """The manifest without the forms and engines of runtimes that were named with another precision.

    Raises:
        UsageError: a precision is named of a runtime that runs the module.
    """
    for key in keys:
        if key.precision and base.get(key.runtime).opens == "module":
            raise UsageError(
                f"--runtime {key}: {key.runtime} runs the module, in the precision of the whole command.",
                hint=f"Give --runtime {key.runtime} --precision {key.precision}.",
            )

    def wanted(target: str, *names: str) -> bool:
        told = {key.precision for key in keys if (base.get(key.runtime).form or key.runtime) == target}
        return not told or "" in told or not told.isdisjoint(names)

    forms = {name: form for name, form in manifest.forms.items() if wanted(form.target, form.plan)}
    engines = {name: one for name, one in manifest.engines.items() if wanted(one.target, one.plan, name)}
    return dataclasses.replace(manifest, forms=forms, engines=engines)


def _bundle_openings(runtime: Runtime, bundle: Path, manifest: Manifest, threads: int | None) -> dict[str, Opening]:
    from attnport_bundle.format.manifest import read

    packed = read(bundle)
    return {
        f"{runtime.name}.{name}": Opening(
            manifest.io, plan=form.plan, model=bundle.resolve(), threads=threads, form=name
        )
        for name, form in ((name, packed.forms[name]) for name in packed.order)
    }


def bundle_digest(bundle: Path | None) -> str:
    """What tells a bundle from another; "" for none."""
    held = bundle / MANIFEST if bundle is not None else None
    return digest_file(held) if held is not None and held.is_file() else str(bundle or "")


def file_of(opening: Opening, folder: Path) -> str | None:
    """The model of an opening as a worker is told it: relative to the artifact's folder where it lies in it."""
    if opening.model is None:
        return None
    inside = opening.model.is_relative_to(folder)
    return opening.model.relative_to(folder).as_posix() if inside else str(opening.model)


def why_none(runtime: Runtime, plan: str | None = None) -> str:
    """Why `model_openings` is empty, and the command that changes it, FOLDER being the artifact's."""
    more = f" --precision {plan}" if plan else ""
    if runtime.opens == "bundle":
        return "no bundle was named; make one with: attnport bundle FOLDER -o APP, and name it with: --bundle APP"
    if runtime.opens == "engine":
        return f"no engine was built; make one with: attnport build FOLDER --target {runtime.name}{more}"
    if not runtime.form:
        return "it runs the model as exported, which is in fp32"
    if plan in INTEGERS:
        return f"there is no {plan} form for {runtime.form}; it may be made by: attnport tune FOLDER"
    return f"there is no form for {runtime.form}; make it with: attnport fuse FOLDER --target {runtime.form}{more}"


def graph_digest(folder: Path, manifest: Manifest, file: str) -> str:
    """A digest of what a graph computes: equal for forms that differ in the names of their weights files alone."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    try:
        model = onnx.load_model(folder / file, load_external_data=False)
    except Exception:  # unreadable: opening it says so, and how
        return digest_file(folder / file)
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = manifest.files.get(entry.value, entry.value)
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def opened(folder: Path, manifest: Manifest, name: str, threads: int | None = None) -> Session:
    """A session of the folder's model in a runtime; of several forms, the first in its usual precision.

    Args:
        name: The runtime's, or that of a form in another precision as reports have it, such as `openvino.bf16`.

    Raises:
        UsageError: there is no such runtime.
        UnavailableError: it is not available here, or the folder holds nothing for it.
        IntegrityError: a file is not the one that was written.
        SpecError: the runtime runs the module itself, which changed or cannot be loaded.
    """
    key = Key.parse(name)
    own, plan = key.runtime, key.precision
    runtime = base.get(own)
    found = base.available(runtime)
    if runtime.opens == "module":
        return runtime.open(Opening(manifest.io, spec=load_spec(manifest), threads=threads))
    openings = model_openings(runtime, folder, manifest, found.plans, threads)
    opening = openings.get(str(key)) or (None if plan else next(iter(openings.values()), None))
    if opening is None:
        form = plan if plan in PLANS else None
        why = (form and not_in(found, form)) or why_none(runtime, form)
        there = f"; there is {', '.join(openings)}" if openings else ""
        raise UnavailableError(f"{name} has nothing to open in {folder}: {why}{there}.")
    check_files(folder, manifest, *(file for file in manifest.files if (folder / file).suffix in (".onnx", ".bin")))
    if opening.model is not None:
        check_files(folder, manifest, opening.model.relative_to(folder).as_posix())
    return runtime.open(opening)
