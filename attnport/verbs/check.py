"""`attnport check`: compares every runtime and every lowered form with a float64 run of the module."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import Capabilities, Manifest, ParityReport
from attnport.cases.choosing import cases_of
from attnport.cases.text import read_sentences
from attnport.errors import (
    ArtifactError,
    ParityFailed,
    UnavailableError,
)
from attnport.folder.openings import MODEL_SUFFIXES, bundle_digest, of_runtime
from attnport.folder.trust import require
from attnport.folder.workspace import change, check_files, fresh, load_spec, open_folder, toolchain
from attnport.jsonfile import digest_file, digest_text, read, to_json
from attnport.parities import FILE
from attnport.parity.comparing import FAST_EVALUATOR, TYPED_EVALUATOR, Comparison
from attnport.parity.eager import EAGER
from attnport.parity.evaluate import Progress, References
from attnport.processes.isolated import TIMEOUT_S, Limits, probe_all, process_failed
from attnport.runtimes import base
from attnport.runtimes.base import Runtime

if TYPE_CHECKING:
    from attnport.parity.bisect import Bisected

STAGE = "check"

_PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "tokenizers", "torch", "transformers")


def check(
    folder: Path,
    runtimes: Sequence[str] | None = None,
    text: Path | None = None,
    inputs: Path | None = None,
    *,
    force: bool = False,
    seed: int = 0,
    batch: int = 8,
    threads: int | None = None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool = False,
    bundle: Path | None = None,
    trust_source: bool = False,
    progress: Progress = lambda message: None,
) -> ParityReport:
    """Checks an artifact folder and writes `parity.json`; returns the earlier report if nothing has changed.

    Args:
        folder: An artifact folder.
        runtimes: Names; None = all runtimes. Lowered forms are always checked.
        text: A file of sentences, one in each line, for models that read text.
        inputs: An `.npz` with an array for each input, as a further case.
        force: Run even if nothing has changed.
        batch: The number of sentences in a batch.
        threads: Compute threads; None = the physical cores.
        timeout_s: Seconds for each answer of a runtime that has a process of its own.
        isolate: Give every runtime a process of its own, not only those that get one by default (`Runtime.isolated`).
            PyTorch eager, by which the others are judged, stays in this process.
        bundle: A bundle of this folder, whose forms are checked through its own reader, as the runtime `bundle`.
        trust_source: Run the source of a folder that was not exported here, now and later; see `trust`.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source have changed.
        SpecError: loading the source would run code that this user has not exported or trusted; names it.
        UsageError: a runtime is unknown, or inputs do not fit. See `raise_for` for verdicts.
    """
    open_folder(folder)
    chosen = [base.get(name) for name in (runtimes if runtimes is not None else base.names())]
    sentences = read_sentences(text) if text else []
    with change(folder) as edit:
        manifest = edit.manifest
        if manifest is None:
            raise ArtifactError(f"{folder} is not an artifact.")
        check_files(folder, manifest, *_model_files(manifest))
        require(manifest.source, given=trust_source)
        progress("loading the model")
        spec = load_spec(manifest)
        limits = Limits(timeout_s, every=isolate)
        progress("probing the runtimes")
        probed = probe_all([base.get(name) for name in _needed(chosen)], limits)
        inputs_digest = digest_file(inputs) if inputs and inputs.is_file() else ""
        wanted = [runtime.name for runtime in chosen]
        numbers = (seed, batch, threads or 0, timeout_s, isolate)
        digest = _inputs_digest(manifest, probed, wanted, [*sentences, inputs_digest, bundle_digest(bundle)], numbers)
        if not force and fresh(folder, manifest, STAGE, digest):
            return read(ParityReport, folder / FILE)
        tried = cases_of(folder, manifest, sentences, inputs, seed, batch)
        with tempfile.TemporaryDirectory(prefix="attnport-check-") as scratch:
            store = References(Path(scratch))
            run = Comparison(folder, manifest, spec, tried, probed, threads, store, progress, limits, bundle)
            if not sentences and manifest.tokenizer:
                run.notes.append("no sentences were given, so real text was not compared")
            report = run.report(chosen)
        edit.path(FILE).write_text(to_json(report), encoding="utf-8")
        rows = (*report.runtimes.values(), *report.forms.values())
        edit.finish(STAGE, "" if any(process_failed(row.reason) for row in rows) else digest)
    return report


def check_and_bisect(
    folder: Path,
    runtimes: Sequence[str] | None = None,
    text: Path | None = None,
    inputs: Path | None = None,
    *,
    tell: Callable[[str], None] = lambda message: None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool = False,
    force: bool = False,
    progress: Progress = lambda message: None,
    **options: Any,
) -> Bisected:
    """Checks, then finds the layer where each runtime or form that failed goes wrong, and measures errors by layer.

    Args:
        tell: Called with a line if errors by layer could not be measured; the verdict of the check is not affected.
        options: The other arguments of `check`.

    Raises:
        As `check`; ExportError: torch no longer traces the module.
    """
    from attnport.parity.bisect import bisect
    from attnport.parity.layers import why_no_layers

    same: Any = {"text": text, "inputs": inputs, "timeout_s": timeout_s, "isolate": isolate, "progress": progress}
    report = check(folder, runtimes, force=force, **same, **options)
    bisected = bisect(folder, report, **same)
    if problem := why_no_layers(folder, report, force=force, **same):
        tell(problem)
    return bisected


def raise_for(report: ParityReport, named: Sequence[str] = ()) -> None:
    """Raises the exception for the verdict of a report, if any.

    Args:
        named: Runtimes that the user named; if one is NOT_RUN, it is an error.

    Raises:
        ParityFailed: a runtime or a lowered form failed.
        UnavailableError: a named runtime was not run.
    """
    results = {**report.runtimes, **{f"form {name}": form for name, form in report.forms.items()}}
    hint = f"{FILE} has every case."
    if EAGER in results and results[EAGER].verdict == "FAIL":
        hint += " The module itself fails: check that each mask input has the declared meaning, such as :hide."
    for name, result in results.items():
        if result.verdict == "FAIL":
            raise ParityFailed(f"{name} fails: {result.reason}.", hint=hint)
    for name in (name.replace("-", "_") for name in named):
        rows = [row for key, row in report.runtimes.items() if of_runtime(key, name)]
        if all(row.verdict == "NOT_RUN" for row in rows):
            reason = rows[0].reason if rows else "it is not in the report"
            raise UnavailableError(f"{name} was not run: {reason}.")


def _needed(chosen: Sequence[Runtime]) -> list[str]:
    """The runtimes to probe: the chosen ones and the evaluators of forms."""
    return sorted({runtime.name for runtime in chosen} | {EAGER, FAST_EVALUATOR, TYPED_EVALUATOR})


def _model_files(manifest: Manifest) -> list[str]:
    """The files that `check` reads in a folder: models, weights, engines, the tokenizer; not reports."""
    return [name for name in manifest.files if Path(name).suffix in MODEL_SUFFIXES or name == manifest.tokenizer]


def _inputs_digest(
    manifest: Manifest,
    probed: dict[str, Capabilities],
    wanted: Sequence[str],
    texts: Sequence[str],
    numbers: tuple[float, ...],
) -> str:
    """The digest of everything that the report depends on."""
    files = {name: manifest.files[name] for name in _model_files(manifest)}
    parts = [
        asdict(manifest.source),
        asdict(manifest.io),
        files,
        {key: asdict(form) for key, form in manifest.forms.items()},
    ]
    parts += [{name: asdict(capabilities) for name, capabilities in sorted(probed.items())}]
    text = json.dumps([toolchain(*_PACKAGES), parts, list(wanted), list(numbers)], sort_keys=True, default=str)
    return digest_text(text, *texts)
