"""The artifact folder as the verbs see it: opened, checked, changed all at once; its stages, its files, its verdicts.

`create` makes an artifact, `change` changes one, and `stage` is a change that is left out if it was made before. A key
such as `openvino.bf16` names a runtime and a precision; which file it opens is found here.

A verdict of `parity.json` stands on what it was computed from. A row goes when the file that it judged is another, or
the model, and not because another row was computed. It is no answer to what `check` is asked if its cases were others,
or the runtime or the machine is not the same any more; then it stays until its runtime is checked again.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import functools
import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import attnport_bundle
from attnport.artifacts import (
    CASTS,
    FORMAT,
    INTEGERS,
    MANIFEST,
    PLANS,
    Capabilities,
    Form,
    Manifest,
    ModelSpec,
    ParityReport,
    RuntimeParity,
    Session,
    Stage,
    Verdict,
)
from attnport.errors import ArtifactError, IntegrityError, SpecError, UnavailableError, UsageError
from attnport.folder.machine import machine, versions
from attnport.folder.portable import as_command
from attnport.folder.refusals import as_usage_error
from attnport.jsonfile import digest_file, digest_text, read, to_json
from attnport.module_path import ROOT
from attnport.parities import FILE, overall
from attnport.runtimes import base
from attnport.runtimes.base import Key, Opening, Runtime
from attnport.sources.digests import TOOLCHAIN, changes
from attnport.sources.program import Stored, note
from attnport.transaction import OWN, Transaction, transaction, undo_unfinished
from attnport.version import __version__
from attnport_bundle.format import manifest as bundle_manifest

P = ParamSpec("P")
T = TypeVar("T")
_MOST_CHANGES = 4
"""So many changed files are named."""
_VERBS = {"lower": "fuse", "precision": "build", "layers": "check --bisect"}
"""The verbs of stages that have other names."""


def meant_by(path: Path) -> str:
    """What a user may mean by a path that is neither an artifact folder nor a bundle."""
    for parent in path.absolute().parents[:3]:
        for manifest, what in ((MANIFEST, "artifact folder"), (bundle_manifest.MANIFEST, "bundle")):
            if path.exists() and (parent / manifest).is_file():
                whole = parent if path.is_absolute() else os.path.relpath(parent)
                return f"It is a part of the {what} {shlex.quote(str(whole))}; give that."
    if path.suffix == ".onnx" or (path / "config.json").is_file():
        return as_command("It is a model; to make an artifact of it: attnport export FOLDER -o OUT", path)
    if path.is_file():
        return "Give the folder that attnport export or attnport ship wrote."
    place = "OUT" if path.is_dir() and any(path.iterdir()) else "FOLDER"  # which export would refuse to fill
    return as_command(f"Make one with: attnport export MODEL -o {place}", path)


def open_folder(folder: Path) -> Manifest:
    """Reads a folder's manifest, after taking back what an interrupted verb did not finish.

    Raises:
        ArtifactError: not an artifact folder, or its manifest is malformed or of another version.
        IntegrityError: the manifest names files outside the folder, or uses one that it has no digest of.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder.", hint=meant_by(folder))
    undo_unfinished(folder)
    if (folder / bundle_manifest.MANIFEST).is_file():
        raise ArtifactError(
            f"{folder} is a bundle, and no artifact folder.",
            hint=as_command(
                "Test it with: attnport verify FOLDER; run it with attnport_bundle.load(FOLDER). Other verbs take the "
                "artifact folder that it was made of; attnport check OUT --bundle FOLDER compares the two.",
                folder,
            ),
        )
    if not (folder / MANIFEST).is_file():
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}.", hint=meant_by(folder))
    manifest = read(Manifest, folder / MANIFEST)
    if manifest.format != FORMAT:
        raise ArtifactError(f"{folder / MANIFEST}: got format {manifest.format}; this version reads {FORMAT}.")
    if not manifest.files:
        raise IntegrityError(f"{folder / MANIFEST} names no file at all.", hint="Somebody edited it; export again.")
    used = [form.file for form in manifest.forms.values()] + [engine.file for engine in manifest.engines.values()]
    for name in (*manifest.files, *used, *([manifest.tokenizer] if manifest.tokenizer else [])):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise IntegrityError(
                f"{folder / MANIFEST} names {name!r}, which is outside the folder.",
                hint="Somebody edited it; export again, or get the folder from where it was made.",
            )
    for name in used:
        if name not in manifest.files:
            raise IntegrityError(
                f"{folder / MANIFEST} uses {name} and has no digest of it.", hint="Somebody edited it; export again."
            )
    note(manifest.source, Stored(folder, manifest.name, manifest.io, manifest.files))  # so code_of finds a program
    return manifest


def open_if_there(folder: Path) -> Manifest | None:
    """As `open_folder`, but None where nothing was exported yet."""
    return open_folder(folder) if (folder / MANIFEST).is_file() else None


def toolchain(*packages: str) -> str:
    """A digest of this project's own code and of the installed ones of `packages`, a part of a stage's inputs; see
    `machine.versions`."""
    return digest_text(_own_code(), *(f"{name} {found}" for name, found in sorted(versions(packages).items())))


@functools.cache
def _own_code() -> str:
    roots = (Path(ROOT, "attnport"), Path(attnport_bundle.__file__).parent)
    files = sorted(
        (str(path.relative_to(root.parent)), path)
        for root in roots
        for path in root.rglob("*")
        if path.suffix in (".py", ".css", ".js")
    )
    return digest_text(*(f"{name} {digest_file(path)}" for name, path in files))


def check_files(folder: Path, manifest: Manifest, *names: str) -> None:
    """Compares files with the manifest's digests; without names, all of them.

    Raises:
        IntegrityError: a file is missing or is not the one that was written.
    """
    for name in names or tuple(manifest.files):
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{path} is missing.", hint=f"Restore it, or {_again(manifest, name)}.")
        if path.is_symlink() or digest_file(path) != manifest.files.get(name):
            raise IntegrityError(
                f"{path} is not the file that was written: its digest differs.",
                hint=f"It was changed or cut short; {_again(manifest, name)}.",
            )


def _again(manifest: Manifest, name: str) -> str:
    """What writes a file again."""
    stage = next((stage for stage, done in manifest.stages.items() if name in done.files), "export").partition(":")[0]
    return f"write it again with: attnport {_VERBS.get(stage, stage)}"


def load_spec(manifest: Manifest) -> ModelSpec:
    """Loads the ModelSpec a folder was exported from, and checks that all it depends on is still the same.

    Raises:
        SpecError: the source is gone or changed, which names the SPEC, and the files or that it is the weights; or it
            would run code that nobody asked for here (see `folder.loading`).
    """
    from attnport.folder.loading import note_read, reload, without_outputs

    spec = reload(manifest.source)
    if spec.source.code_digest != manifest.source.code_digest:
        told = changes(manifest.depends, spec.depends)
        more = f", and {len(told) - _MOST_CHANGES} more" if len(told) > _MOST_CHANGES else ""
        raise SpecError(
            f"the code of {manifest.source.text}, or a file that it reads, changed since export: "
            f"{', '.join(told[:_MOST_CHANGES])}{more}.",
            hint="Export again, or bring the earlier state back.",
        )
    if spec.source.weights_digest != manifest.source.weights_digest:
        raise SpecError(
            f"the weights of {manifest.source.text} changed since export.",
            hint="Export again, or bring the earlier state back.",
        )
    note_read(manifest.source, spec.read)
    exported = {output.name for output in manifest.io.outputs}
    hidden = [output.name for output in spec.io.outputs if output.name not in exported]
    return dataclasses.replace(without_outputs(spec, hidden), io=manifest.io)


def check_source(manifest: Manifest) -> None:
    """Checks that the source of a folder is what was exported; it is loaded only if a file of it may have changed.

    A module in memory is its own: nothing on disk can change it.

    Raises:
        SpecError: as `load_spec`.
    """
    from attnport.folder.loading import unchanged

    if not manifest.source.in_memory and not unchanged(manifest.source):
        load_spec(manifest)


class Change:
    """A verb's change to a folder: write files to `path(name)`, set `manifest` fields, name the stage at the end.

    Without a call of `finish`, nothing is changed.
    """

    def __init__(self, folder: Path, staged: Transaction, manifest: Manifest, began_s: float | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self._staged = staged
        self._began_s = time.monotonic() if began_s is None else began_s

    def path(self, name: str) -> Path:
        """Where to write the file that will be called `name`."""
        return self._staged.path(name)

    def write(self, name: str, value: Any) -> None:
        """Writes a value as JSON into the file that will be called `name`."""
        self.path(name).write_text(to_json(value), encoding="utf-8")

    def remove(self, name: str) -> None:
        """Deletes a file of the folder, and its digest in the manifest."""
        self._staged.remove(name)
        files = {file: digest for file, digest in self.manifest.files.items() if file != name}
        self.manifest = dataclasses.replace(self.manifest, files=files)

    def finish(self, stage: str, inputs: str, *, extra: tuple[str, ...] = ()) -> Manifest:
        """Records the stage and the digests of what it staged, and stages the manifest.

        Args:
            inputs: The digest of what it is made from; see `fresh`.
            extra: Files that belong to the stage though an earlier change wrote them.
        """
        written = self._staged.staged()
        done = Stage(
            inputs=inputs,
            files=(*written, *extra),
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            seconds=round(time.monotonic() - self._began_s, 3),
        )
        self.manifest = dataclasses.replace(
            self.manifest,
            attnport=__version__,
            files={**self.manifest.files, **written},
            stages={**self.manifest.stages, stage: done},
        )
        self.write(MANIFEST, self.manifest)
        return self.manifest


class Run(Change):
    """A change that is one stage of a verb; see `stage`.

    Attributes:
        kept: Whether the stage was done before with the same inputs, and its files are still what it wrote.
    """

    def __init__(self, change: Change, stage: str, inputs: str, force: bool) -> None:
        super().__init__(change.folder, change._staged, change.manifest, change._began_s)
        self._stage, self._inputs = stage, inputs
        self.kept = not force and fresh(self.folder, self.manifest, stage, inputs)

    def record(self, *, final: bool = True) -> Manifest:
        """Records the stage as `finish` does; one that is not `final` is done again by the next call."""
        return self.finish(self._stage, self._inputs if final else "")


@contextmanager
def _locked(folder: Path) -> Iterator[Transaction]:
    """A transaction whose errors are those of `create` and `change`."""
    try:
        with transaction(folder, MANIFEST) as staged:
            yield staged
    except OSError as err:
        # Where no folder can be made, some file systems say of the folder itself that it is not found.
        if err.errno == errno.ENOENT and err.filename and Path(err.filename) in (folder, *folder.parents):
            raise UsageError(f"{folder} cannot be made.", hint="Choose a place that you may write to.") from err
        told = as_usage_error(err)
        if told is None:
            raise
        raise told from err


def refuse_stranger(folder: Path) -> None:
    """Refuses to export into a folder that holds somebody's files, or that `create` cannot write; nothing is changed.

    Raises:
        UsageError: it is a file, or a folder that is neither empty nor an artifact; or as `create`.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists and is not a folder.", hint="Give another folder, or move it away.")
    if folder.exists() and not (folder / MANIFEST).exists():
        undo_unfinished(folder)  # a first export that was killed has left files of its own
        strange = sorted(path.name for path in folder.iterdir() if path.name not in OWN)
        if strange:
            raise UsageError(
                f"{folder} holds other files ({strange[0]}) and is not an artifact; nothing was changed.",
                hint="Give an empty or a new folder.",
            )
    with _locked(folder):
        pass


@contextmanager
def create(folder: Path, manifest: Manifest, began_s: float | None = None) -> Iterator[Change]:
    """Opens a folder for a new artifact, which replaces an earlier one with all of its files, or none of them.

    Args:
        folder: A new or empty folder, or an artifact; see `refuse_stranger`.
        began_s: As of `change`.

    Raises:
        ArtifactError, IntegrityError: the earlier artifact cannot be read.
        UsageError: as `change`.
    """
    with _locked(folder) as staged:
        changing = Change(folder, staged, manifest, began_s)
        for name in open_folder(folder).files if (folder / MANIFEST).exists() else ():
            changing.remove(name)  # forms, engines and reports of the earlier model are no longer valid
        yield changing


@contextmanager
def change(folder: Path, began_s: float | None = None) -> Iterator[Change]:
    """Opens an artifact for one verb's change; all of it becomes visible at the end, or none.

    Args:
        began_s: When the stage began, by `time.monotonic`; None = now.

    Raises:
        ArtifactError, IntegrityError: as `open_folder` and `transaction`.
        UsageError: the folder cannot be written, another process is writing to it, or the disk is full.
    """
    open_folder(folder)  # a folder that is no artifact is not even locked
    with _locked(folder) as staged:
        yield Change(folder, staged, open_folder(folder), began_s)


@contextmanager
def stage(folder: Path, name: str, inputs: str, *, force: bool = False, began_s: float | None = None) -> Iterator[Run]:
    """Opens an artifact for one stage of a verb: `if run.kept`, return the earlier result; else `run.record()`.

    Args:
        inputs: A digest of everything that the result depends on.
        began_s: As of `change`.

    Raises:
        ArtifactError, IntegrityError, UsageError: as `change`.
    """
    with change(folder, began_s) as changing:
        yield Run(changing, name, inputs, force)


def fresh(folder: Path, manifest: Manifest, stage: str, inputs: str) -> bool:
    """Whether a stage was already done with the same inputs and its files are still what it wrote."""
    done = manifest.stages.get(stage)
    if done is None or done.inputs != inputs:
        return False
    return all(
        (folder / name).is_file() and digest_file(folder / name) == manifest.files.get(name) for name in done.files
    )


def read_report(kind: type[T], folder: Path, manifest: Manifest, name: str) -> T | None:
    """What a verb wrote into the file `name`; None when it has not run.

    Raises:
        IntegrityError: the file is not the one that was written.
        ArtifactError: it is no `kind`.
    """
    if name not in manifest.files:
        return None
    check_files(folder, manifest, name)
    return read(kind, folder / name)


def if_whole(read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """What `read_report` or another reads; None too where the file was changed, or another attnport wrote it."""
    with suppress(ArtifactError, IntegrityError):
        return read(*arguments, **named)
    return None


WEIGHTS = "weights.bin"
_JUDGES = ("torch_eager", "torch_eager_cuda", "onnx_reference", "ort_cpu")
"""The runtimes that make the reference and the bound, or run a form in place of its target's."""


def read_parity(folder: Path, manifest: Manifest, file: str = FILE) -> ParityReport | None:
    """The parity report of a folder, as far as it is still true of it; None if there is none.

    A row whose form, engine or model is not what was judged becomes NOT_RUN, with the reason; those of forms that are
    no longer there go. A form in integers has the verdict of its metric.

    Args:
        file: The report's name; that of one precision plan has another.

    Raises:
        IntegrityError, ArtifactError: as `read_report`.
    """
    report = read_report(ParityReport, folder, manifest, file)
    if report is None:
        return None
    forms = {name: _now(manifest, name, row, form=True) for name, row in report.forms.items() if name in manifest.forms}
    runtimes = {
        name: _now(manifest, name, row, form=False)
        for name, row in report.runtimes.items()
        if files_of(manifest, name, row.plan, form=False) or not (row.basis and row.basis.files)
    }
    for key, each in manifest.forms.items():
        if each.integers and file == FILE:
            openers = [one for one in _openers(each.target) if one.form == one.name and one.opens != "engine"]
            names = [f"{one.name}.{each.plan}" for one in openers]
            forms = {**forms, **_judged(forms, [key], each)}
            runtimes = {**runtimes, **_judged(runtimes, names, each)}
    verdict = overall(runtimes, forms)
    return dataclasses.replace(report, verdict=verdict, runtimes=runtimes, forms=forms)


def by_metric(form: Form) -> RuntimeParity:
    """The verdict on a form in integers, which has no twin in PyTorch: that of its metric, when it was written."""
    assert form.integers is not None
    verdict: Verdict = "PASS" if form.integers.drop <= form.integers.max_drop else "FAIL"
    return RuntimeParity(verdict, f"judged by its metric: {form.integers}", form.plan)


def _judged(rows: Mapping[str, RuntimeParity], names: Sequence[str], form: Form) -> dict[str, RuntimeParity]:
    """Rows for a form in integers, where its own verdict is not among them."""
    return {name: by_metric(form) for name in names if name not in rows or rows[name].kind == "changed"}


def _now(manifest: Manifest, name: str, row: RuntimeParity, *, form: bool) -> RuntimeParity:
    """A row as it is; where it judged something else than the folder now holds, NOT_RUN."""
    if row.basis is not None and row.basis.model == model_digest(manifest, name, row.plan, form=form):
        return row
    return RuntimeParity("NOT_RUN", "it was made again after parity was checked", row.plan, kind="changed")


def model_digest(manifest: Manifest, name: str, plan: str, *, form: bool = False) -> str:
    """A digest of the model and of the files that the row called `name` is of."""
    contract = [asdict(manifest.source), asdict(manifest.io)]
    files = files_of(manifest, name, plan, form=form)
    return digest_text(json.dumps([contract, files], sort_keys=True, default=str))


def files_of(manifest: Manifest, name: str, plan: str, *, form: bool = False) -> dict[str, str]:
    """The files that the row called `name` is of, with their digests; none for a runtime that has nothing to open, or
    that runs the module itself."""
    if form:
        return _with_weights(manifest, manifest.forms[name].file) if name in manifest.forms else {}
    key = base.Key.parse(name)
    runtime, rest = key.runtime, key.precision
    if runtime not in base.names():
        return {}
    kind = base.get(runtime)
    if kind.opens == "engine" or (kind.opens == "bundle" and rest in manifest.engines):
        engines = {
            key: one.file for key, one in manifest.engines.items() if kind.opens == "bundle" or one.target == runtime
        }
        file = engines.get(rest) or (next(iter(engines.values())) if len(engines) == 1 and not rest else None)
        return {file: manifest.files[file]} if file else {}
    if kind.opens == "bundle":
        return files_of(manifest, rest, plan, form=True)
    if kind.opens == "module":
        return {}
    if not kind.form:
        return _with_weights(manifest, MODEL)
    file = next((one.file for one in manifest.forms.values() if (one.target, one.plan) == (kind.form, plan)), None)
    return _with_weights(manifest, file) if file else {}


def _with_weights(manifest: Manifest, file: str) -> dict[str, str]:
    names = (file, str(Path(file).with_suffix(".bin")), WEIGHTS)
    return {name: manifest.files[name] for name in names if name in manifest.files}


def runtime_digest(manifest: Manifest, name: str, *, form: bool = False) -> str:
    """A digest of the machine and of the packages that compute and judge the row called `name`; for a runtime also of
    which forms and engines it can choose from, as a new one adds a row."""
    here = machine()
    if form:
        target = manifest.forms[name].target
        used, choice = [one.name for one in _openers(target)], list[str]()
    else:
        used = [base.Key.parse(name).runtime]
        target = base.get(used[0]).form or used[0]
        choice = [key for key, form in manifest.forms.items() if form.target == target]
        choice += [key for key, engine in manifest.engines.items() if engine.target == target]
    packages = toolchain(*TOOLCHAIN, "tokenizers", *base.distributions([*used, *_JUDGES]))
    return digest_text(
        packages, json.dumps([here.cpu, here.features, here.gpus, here.cuda, sorted(choice)], default=str)
    )


def _openers(target: str) -> Iterator[base.Runtime]:
    """The runtimes that open the forms of a target."""
    return (one for one in map(base.get, base.names()) if one.form == target)


def rows_of(report: ParityReport, *keys: base.Key) -> dict[str, RuntimeParity]:
    """The rows of runtimes, each with all of its precisions unless one is named."""
    return {name: row for name, row in report.runtimes.items() if any(key.covers(name, row.plan) for key in keys)}


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


def stage_of(stage: str, file: str, plan: str | None, plans: Collection[str] = CASTS) -> tuple[str, str]:
    """The names of a verb's stage and report; of one precision alone, `check:fp16` and `parity.fp16.json`.

    Args:
        plans: Those that the verb takes alone.

    Raises:
        UsageError: there is no such plan.
    """
    if plan is None:
        return stage, file
    if plan not in plans:
        raise UsageError(
            f"--precision {plan!r}: expected one of {', '.join(plans)}.",
            hint="Without --precision, every form is taken in its own precision.",
        )
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


def to_open(
    runtime: Runtime,
    found: Capabilities,
    folder: Path,
    manifest: Manifest,
    threads: int | None,
    plan: str | None = None,
    bundle: Path | None = None,
    **module: Any,
) -> dict[str, Opening] | str:
    """What a runtime has to run here, or why there is nothing; raises as `model_openings`.

    Args:
        found: What its probe found.
        plan: The one precision plan to run, which names then do not tell; None = every one.
        module: Further fields for a runtime that runs the module itself.
    """
    usual = plan or "fp32"
    if not found.available:
        return found.problem
    if plan and (why := not_in(found, plan)):
        return why
    if runtime.opens == "module":
        return {runtime.name: Opening(manifest.io, usual, threads=threads, **module)}
    plans = (plan,) if plan else found.plans
    openings = model_openings(runtime, folder, manifest, plans, threads, bundle, usual=usual)
    wanted = {name: opening for name, opening in openings.items() if plan in (None, opening.plan)}
    return wanted or why_none(runtime, plan)


def not_in(found: Capabilities, plan: str) -> str:
    """Why a runtime that is there cannot be asked for a precision plan; "" where it can."""
    return "" if plan in found.plans else f"it computes in {', '.join(found.plans)} here, not in {plan}"


def refuse_precisions(keys: Sequence[Key]) -> None:
    """Raises UsageError where a precision is named of a runtime that runs the module."""
    for key in keys:
        if key.precision and base.get(key.runtime).opens == "module":
            raise UsageError(
                f"--runtime {key}: {key.runtime} runs the module, in the precision of the whole command.",
                hint=f"Give --runtime {key.runtime} --precision {key.precision}, which check and bench take.",
            )


def of_keys(manifest: Manifest, keys: Sequence[Key]) -> Manifest:
    """The manifest without the forms and engines of runtimes that were named with another precision.

    Raises:
        UsageError: a precision is named of a runtime that runs the module.
    """
    refuse_precisions(keys)

    def wanted(target: str, *names: str) -> bool:
        told = {key.precision for key in keys if (base.get(key.runtime).form or key.runtime) == target}
        return not told or "" in told or not told.isdisjoint(names)

    forms = {name: form for name, form in manifest.forms.items() if wanted(form.target, form.plan)}
    engines = {name: one for name, one in manifest.engines.items() if wanted(one.target, one.plan, name)}
    return dataclasses.replace(manifest, forms=forms, engines=engines)


def _bundle_openings(runtime: Runtime, bundle: Path, manifest: Manifest, threads: int | None) -> dict[str, Opening]:
    packed = bundle_manifest.read(bundle)
    return {
        f"{runtime.name}.{name}": Opening(
            manifest.io, plan=form.plan, model=bundle.resolve(), threads=threads, form=name
        )
        for name, form in ((name, packed.forms[name]) for name in packed.order)
    }


def bundle_digest(bundle: Path | None) -> str:
    """What tells a bundle from another; "" for none."""
    held = bundle / bundle_manifest.MANIFEST if bundle is not None else None
    return digest_file(held) if held is not None and held.is_file() else str(bundle or "")


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
        drop = " --max-drop 5%" if PLANS[plan].bits == 4 else ""
        return f"there is no {plan} form for {runtime.form}; it may be made by: attnport tune FOLDER --text FILE{drop}"
    return f"there is no form for {runtime.form}; make it with: attnport fuse FOLDER --target {runtime.form}{more}"


def graph_digest(folder: Path, manifest: Manifest, file: str) -> str:
    """A digest of what a graph computes: equal for forms that differ in the names of their weights files alone."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    try:
        model = onnx.load_model(folder / file, load_external_data=False)
    except Exception:  # whatever onnx raises for a damaged file; opening it tells the user
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
        raise UnavailableError(f"{name} has nothing to open in {folder}: {as_command(why, folder)}{there}.")
    check_files(folder, manifest, *(file for file in manifest.files if (folder / file).suffix in (".onnx", ".bin")))
    if opening.model is not None:
        check_files(folder, manifest, opening.model.relative_to(folder).as_posix())
    return runtime.open(opening)
