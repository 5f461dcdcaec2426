"""What `parity.json` says of a folder as it is now, for all who read it: a verdict stands on what it was computed from.

A row goes when the file that it judged is another, or the model, and not because another row was computed. It is no
answer to what `check` is asked if its cases were others, or the runtime or the machine is not the same any more; then
it stays until its runtime is checked again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from attnport.artifacts import Form, Manifest, ParityReport, RuntimeParity, Verdict
from attnport.folder.machine import machine
from attnport.folder.openings import MODEL
from attnport.folder.workspace import read_report, toolchain
from attnport.jsonfile import digest_text
from attnport.parities import FILE, overall
from attnport.runtimes import base
from attnport.sources.digests import TOOLCHAIN

WEIGHTS = "weights.bin"
_JUDGES = ("torch_eager", "torch_eager_cuda", "onnx_reference", "ort_cpu")
"""The runtimes that make the reference and the bound, or run a form in place of its target's."""
_TUNE = "tune"
"""Names the form that it chose among its files, and makes none itself."""


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
            names = [f"{one.name}.{each.plan}" for one in _openers(each.target) if one.form == one.name]
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
    if is_current(manifest, name, row, form=form):
        return row
    return RuntimeParity("NOT_RUN", "it was made again after parity was checked", row.plan, kind="changed")


def is_current(manifest: Manifest, name: str, row: RuntimeParity, *, form: bool) -> bool:
    """Whether a row judged what the folder now holds.

    Args:
        name: The row's name in the report.
        form: Whether it is the row of a form, and not of a runtime.
    """
    if row.basis is None:  # of a report that did not record it
        made = manifest.stages["check"].made if "check" in manifest.stages else ""
        return made >= _made_last(manifest, files_of(manifest, name, row.plan, form=form))
    return row.basis.model == model_digest(manifest, name, row.plan, form=form)


def _made_last(manifest: Manifest, files: Mapping[str, str]) -> str:
    makers = [stage for name, stage in manifest.stages.items() if name != _TUNE and files.keys() & set(stage.files)]
    return max((stage.made for stage in makers), default="")


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
