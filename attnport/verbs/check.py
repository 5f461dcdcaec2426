"""`attnport check`: compares every runtime and every lowered form with a float64 run of the module."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import Manifest, ParityReport, RuntimeParity
from attnport.cases.choosing import cases_of, few_batches
from attnport.cases.text import read_sentences
from attnport.errors import (
    ArtifactError,
    ParityFailed,
    UnavailableError,
    UsageError,
)
from attnport.folder import seen
from attnport.folder.machine import machine
from attnport.folder.openings import bundle_digest, model_files, not_in, of_plan, of_runtime, stage_of
from attnport.folder.trust import require
from attnport.folder.workspace import change, check_files, fresh, load_spec, open_folder, toolchain
from attnport.jsonfile import digest_file, digest_text, read, to_json
from attnport.latency.grid import parse_grid
from attnport.parities import FILE
from attnport.parity.at_plan import ComparisonAtPlan
from attnport.parity.bisect_ground import FORM
from attnport.parity.bound import report as of_rows
from attnport.parity.comparing import FAST_EVALUATOR, TYPED_EVALUATOR, Comparison
from attnport.parity.eager import EAGER, EAGER_ON_GPU
from attnport.parity.evaluate import Progress, References
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import add_eager
from attnport.processes.isolated import TIMEOUT_S, Limits, probe_all, process_failed, unavailable
from attnport.runtimes import base
from attnport.runtimes.base import Runtime

if TYPE_CHECKING:
    from attnport.parity.bisect import Bisected

STAGE = "check"
EAGERS = (EAGER, EAGER_ON_GPU)
FEW_BATCHES = 4
"""Of the user's sentences, so many batches are run by a check that is not thorough."""

_PACKAGES = (
    *("numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt-cu13", "tensorrt-rtx"),
    *("tokenizers", "torch", "transformers"),
)


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
    plan: str | None = None,
    eager: str = EAGER,
    shapes: Sequence[str] = (),
    thorough: bool = False,
    progress: Progress = lambda message: None,
) -> ParityReport:
    """Checks an artifact folder and writes `parity.json`, keeping what it says of the same files and cases already.

    Args:
        folder: An artifact folder.
        runtimes: Names, which are checked with the forms that they open; none = every runtime there is but
            `torch_compile`, and every lowered form. On a GPU (`eager`) forms are not.
        text: A file of sentences, one a line, for models that read text.
        inputs: An `.npz` with an array for each input, as a further case.
        force: Run again what is in the report, and leave out what was not asked for.
        batch: The number of sentences in a batch.
        threads: Compute threads; None = the physical cores.
        timeout_s: Seconds for each answer of a runtime that has a process of its own.
        isolate: Give every runtime a process of its own, not only those that get one by default (`Runtime.isolated`).
            PyTorch eager, by which the others are judged, stays in this process.
        bundle: A bundle of this folder, whose forms are checked through its own reader, as the runtime `bundle`.
        trust_source: Run the source of a folder that was not exported here, now and later; see `trust`.
        plan: Check this precision plan alone, modules cast to it, and write `parity.PLAN.json` instead; None = every
            form there is, and modules in fp32.
        eager: The PyTorch eager that makes the float64 reference and bounds the others. On a GPU, `torch_eager_cuda`,
            it goes with a plan, and graphs are not run without their target (ADR 11).
        shapes: Grids such as `batch=1/8,seq=128`, as of `bench`: full batches of these sizes are further cases.
        thorough: Run every batch of the sentences, and each of their items alone and with more padding too. Otherwise
            four batches and eight items are. The cases of the contract, on which every planted fault of the tests is
            found, are run in any case.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were.
        SpecError: to load the source would run code that was not asked for on this machine; names it.
        UsageError: an unknown runtime or precision plan, or inputs that do not fit. See `raise_for` for verdicts.
        UnavailableError: `eager` cannot be run here, or not in the plan.
        ParityFailed: the float64 reference of a GPU is not what the processor computes.
    """
    stage, file = stage_of(STAGE, FILE, plan)
    eager = base.get(eager).name
    if eager not in EAGERS or (eager != EAGER and plan is None):
        raise UsageError(f"--eager {eager}: expected one of {', '.join(EAGERS)}, the latter with --dtype.")
    open_folder(folder)
    chosen = base.chosen(runtimes, bundle=bundle is not None)
    sentences = read_sentences(text) if text else []
    with change(folder) as edit:
        manifest = edit.manifest
        if manifest is None:
            raise ArtifactError(f"{folder} is no artifact.")
        manifest = of_plan(manifest, plan) if plan else manifest
        check_files(folder, manifest, *model_files(manifest))
        require(manifest.source, given=trust_source)
        given = digest_file(inputs) if inputs and inputs.is_file() else ""
        texts = [*sentences, given, bundle_digest(bundle), eager, *shapes]
        numbers = (seed, batch, threads or 0, timeout_s, isolate)
        digests = {how: _inputs_digest(manifest, [*texts, how], numbers) for how in ("thorough", "brief")}
        # What a thorough check found answers a brief one, and what comes to it is as thorough.
        thorough = thorough or fresh(folder, manifest, stage, digests["thorough"])
        digest = digests["thorough" if thorough else "brief"]
        kept = not force and fresh(folder, manifest, stage, digest)
        known = read(ParityReport, folder / file) if kept else None
        own = {runtime.form for runtime in chosen} if runtimes else {form.target for form in manifest.forms.values()}
        forms = {name: form for name, form in manifest.forms.items() if form.target in own}
        if known:
            again = {runtime.name for runtime in chosen} if runtimes else set()
            chosen = [runtime for runtime in chosen if not _is_known(known, runtime.name, again)]
            forms = {name: form for name, form in forms.items() if name not in known.forms}
            if not chosen and not forms and seen.unchanged(manifest.source):
                return known
        progress("loading the model")
        spec = load_spec(manifest)
        limits = Limits(timeout_s, every=isolate)
        progress("probing the runtimes")
        probed = probe_all([base.get(name) for name in _needed(chosen, eager)], limits)
        found = probed[eager]
        if why := not_in(found, plan or "fp32") if found.available else f"cannot be run: {unavailable(found)}":
            raise UnavailableError(f"{eager}, by which the others are judged: {why}.")
        if known:
            able = {name for name, found in probed.items() if found.available and (plan is None or plan in found.plans)}
            chosen = [runtime for runtime in chosen if not _is_known(known, runtime.name, again & able)]
            if not chosen and not forms:
                return known
        every = cases_of(folder, manifest, sentences, inputs, seed, batch, _sizes(manifest, shapes))
        tried = every if thorough else few_batches(every, FEW_BATCHES)
        with tempfile.TemporaryDirectory(prefix="attnport-check-") as scratch:
            store = References(Path(scratch))
            given_to = folder, manifest, spec, tried, probed, threads, store, progress, limits, bundle
            how: Any = {"plan": plan, "eager": eager} if plan else {}
            run = (ComparisonAtPlan if plan else Comparison)(*given_to, **how, thorough=thorough)
            if left_out := sum(case.group == "text" for case in every) - sum(case.group == "text" for case in tried):
                run.notes.append(f"{left_out} of the batches of sentences were left out; --thorough runs all")
            if not sentences and manifest.tokenizer:
                run.notes.append("no sentences were given, so real text was not compared")
            report = _together(known, run.report(chosen, forms))
        if GOLDEN in manifest.files:
            check_files(folder, manifest, GOLDEN)
            plans = {form.plan for form in manifest.forms.values()}
            add_eager(spec, folder / GOLDEN, lambda: edit.path(GOLDEN), plans, run.redrawn())
        edit.path(file).write_text(to_json(report), encoding="utf-8")
        rows = (*report.runtimes.values(), *report.forms.values())
        edit.finish(stage, "" if any(process_failed(row.reason) for row in rows) else digest)
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
        As `check`; ExportError: torch no longer traces the module. UsageError: `plan`, with which it does not go.
    """
    from attnport.parity.bisect import bisect
    from attnport.parity.layers import why_no_layers

    if options.get("plan"):
        raise UsageError("--bisect goes without --dtype.", hint="It searches what a check without it finds.")
    same: Any = {"text": text, "inputs": inputs, "timeout_s": timeout_s, "isolate": isolate, "progress": progress}
    report = check(folder, runtimes, force=force, **same, **options)
    same |= {name: options[name] for name in ("seed", "batch", "threads") if name in options}
    same["sizes"] = _sizes(open_folder(folder), options.get("shapes", ()))
    bisected = bisect(folder, report, **same)
    if problem := why_no_layers(folder, report, force=force, **same):
        tell(problem)
    return bisected


def _sizes(manifest: Manifest, shapes: Sequence[str]) -> list[dict[str, int]]:
    return [sizes for shape in shapes for sizes in parse_grid(shape, manifest.io.dims)]


def command(folder: Path, text: Path | None = None, inputs: Path | None = None) -> str:
    """The command line that checks a folder on the same cases."""
    given = {"--text": text, "--inputs": inputs}
    return shlex.join(["attnport", "check", str(folder), *(f"{name}={path}" for name, path in given.items() if path)])


def raise_for(report: ParityReport, named: Sequence[str] = (), again: str = "") -> None:
    """Raises the exception for the verdict of a report, if any.

    Args:
        named: Runtimes that the user named; if one is NOT_RUN, it is an error.
        again: The command of the check, where `--bisect` would tell more about it; see `command`.

    Raises:
        ParityFailed: a runtime or a lowered form failed.
        UnavailableError: a named runtime was not run.
    """
    found = {**report.runtimes, **{f"{FORM}{name}": form for name, form in report.forms.items()}}
    for name, result in found.items():
        if result.verdict == "FAIL":
            raise ParityFailed(f"{name} fails: {result.reason}.", hint=_hint(report, name, result, again))
    for name in (name.replace("-", "_") for name in named):
        rows = [row for key, row in report.runtimes.items() if of_runtime(key, name)]
        if all(row.verdict == "NOT_RUN" for row in rows):
            reason = rows[0].reason if rows else "it is not in the report"
            raise UnavailableError(f"{name} was not run: {reason}.")


def _hint(report: ParityReport, name: str, row: RuntimeParity, again: str) -> str:
    """How to go on after a failure."""
    told, short = [], name.partition(".")[0]
    form = report.forms.get(name)
    if form and form.verdict == "PASS" and form.ran and row.ran and form.ran.provider != row.ran.provider:
        told.append(f"{form.ran.provider} computes the right numbers from the same file, so {short} is at fault.")
    opened = name.startswith(FORM) or (short in base.names() and base.get(short).opens == "onnx")
    measured = any(one.verdict == "FAIL" and (one.rms_error is not None or one.nonfinite) for one in row.cases)
    told.append(f"Every case: {FILE}, or of one plan parity.PLAN.json.")
    if EAGER in report.runtimes and report.runtimes[EAGER].verdict == "FAIL":
        told.append("The module itself fails: check that each mask input has the declared meaning, such as :hide.")
    if again and opened and measured:
        only = "" if name.startswith(FORM) else f" --runtime {short}"
        told.append(f"Where it goes wrong: {again}{only} --bisect")
    return " ".join(told)


def _needed(chosen: Sequence[Runtime], eager: str) -> list[str]:
    """The runtimes whose probe matters: the chosen ones, PyTorch eager and the evaluators of forms."""
    judges = {EAGER, eager} | {EAGER_ON_GPU for runtime in chosen if runtime.gpu}
    return sorted({runtime.name for runtime in chosen} | judges | {FAST_EVALUATOR, TYPED_EVALUATOR})


def _is_known(known: ParityReport, runtime: str, again: Collection[str]) -> bool:
    """Whether a report has a runtime already. One of `again` that was not run is to be tried once more."""
    rows = [row for name, row in known.runtimes.items() if of_runtime(name, runtime)]
    return bool(rows) and not (runtime in again and all(row.verdict == "NOT_RUN" for row in rows))


def _together(known: ParityReport | None, report: ParityReport) -> ParityReport:
    """A report, and what is known of the same files and cases from an earlier one."""
    if known is None:
        return report
    again = {name.partition(".")[0] for name in report.runtimes}
    others = {name: row for name, row in known.runtimes.items() if name.partition(".")[0] not in again}
    return of_rows(
        dict(sorted({**others, **report.runtimes}.items())),
        dict(sorted({**known.forms, **report.forms}.items())),
        tuple(dict.fromkeys((*known.notes, *report.notes))),
    )


def _inputs_digest(manifest: Manifest, texts: Sequence[str], numbers: tuple[float, ...]) -> str:
    """Everything that could change what is said of a runtime or a form."""
    here = machine()
    files = {name: manifest.files[name] for name in model_files(manifest)}
    parts: list[Any] = [
        asdict(manifest.source),
        asdict(manifest.io),
        files,
        {key: asdict(form) for key, form in manifest.forms.items()},
    ]
    parts.append([here.cpu, here.features, here.gpus, here.cuda])
    text = json.dumps([toolchain(*_PACKAGES), parts, list(numbers)], sort_keys=True, default=str)
    return digest_text(text, *texts)
