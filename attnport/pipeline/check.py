"""`attnport check`: every runtime and every lowered form against a float64 run of the module."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attnport import __version__
from attnport.artifacts import (
    Capabilities,
    Form,
    IOContract,
    Manifest,
    ModelSpec,
    ParityReport,
    RuntimeParity,
    Session,
    digest_file,
    digest_text,
    read,
    to_json,
)
from attnport.compare import parity
from attnport.compare.inputs import Case, cases
from attnport.compare.inputs import case as given_case
from attnport.compare.text import read_sentences, text_cases
from attnport.errors import (
    ArtifactError,
    AttnportError,
    IntegrityError,
    ParityFailed,
    UnavailableError,
    UsageError,
)
from attnport.pipeline.evaluate import Measured, Progress, References, make_references, measure_session
from attnport.pipeline.openings import MODEL_SUFFIXES, model_openings, why_none
from attnport.pipeline.workspace import change, check_files, fresh, load_spec, open_folder
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime

STAGE = "check"
FILE = "parity.json"

_EAGER = "torch_eager"
_FAST_EVALUATOR, _TYPED_EVALUATOR = "ort_cpu", "onnx_reference"
# The evaluator that computes at declared types has no fast half precision: it gets this many batches of sentences.
_SLOW_TEXT_CASES, _SLOW_ITEMS = 1, 4
_ALL_ITEMS = 1 << 30


def check(
    folder: Path,
    runtimes: Sequence[str] | None = None,
    text: Path | None = None,
    inputs: Path | None = None,
    *,
    force: bool = False,
    seed: int = 0,
    batch: int = 32,
    threads: int | None = None,
    progress: Progress = lambda message: None,
) -> ParityReport:
    """Checks an artifact folder and writes `parity.json`; returns the earlier report when nothing changed.

    Args:
        folder: An artifact folder.
        runtimes: Names; None = every runtime there is. Lowered forms are always checked.
        text: A file of sentences, one a line, for models that read text.
        inputs: An `.npz` with an array for each input, as a further case.
        force: Run even when the same was run before.
        batch: Sentences a batch.
        threads: Compute threads; None = the physical cores.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were.
        UsageError: an unknown runtime, or inputs that do not fit. See `raise_for` for verdicts.
    """
    open_folder(folder)
    chosen = [base.get(name) for name in (runtimes if runtimes is not None else base.names())]
    sentences = read_sentences(text) if text else []
    with change(folder) as edit:
        manifest = edit.manifest
        if manifest is None:
            raise ArtifactError(f"{folder} is no artifact.")
        check_files(folder, manifest, *_model_files(manifest))
        progress("loading the model")
        spec = load_spec(manifest)
        probed = {name: base.get(name).probe() for name in _needed(chosen)}
        given = digest_file(inputs) if inputs and inputs.is_file() else ""
        wanted = [runtime.name for runtime in chosen]
        digest = _inputs_digest(manifest, probed, wanted, [*sentences, given], (seed, batch, threads or 0))
        if not force and fresh(folder, manifest, STAGE, digest):
            return read(ParityReport, folder / FILE)
        tried = _cases(folder, manifest, sentences, inputs, seed, batch)
        with tempfile.TemporaryDirectory(prefix="attnport-check-") as scratch:
            run = _Check(folder, manifest, spec, tried, probed, threads, References(Path(scratch)), progress)
            report = run.report(chosen)
        if not sentences and manifest.tokenizer:
            note = "no sentences were given, so real text was not compared"
            report = parity.report(report.runtimes, report.forms, (*report.notes, note))
        edit.path(FILE).write_text(to_json(report), encoding="utf-8")
        edit.finish(STAGE, digest)
    return report


def raise_for(report: ParityReport, named: Sequence[str] = ()) -> None:
    """Turns a report into the exception that its verdict calls for.

    Args:
        named: Runtimes that the user asked for by name: one that is NOT_RUN is an error.

    Raises:
        ParityFailed: a runtime or a lowered form failed.
        UnavailableError: a named runtime was not run.
    """
    found = {**report.runtimes, **{f"form {name}": form for name, form in report.forms.items()}}
    for name, result in found.items():
        if result.verdict == "FAIL":
            raise ParityFailed(f"{name} fails: {result.reason}.", hint=f"{FILE} has every case.")
    for name in (name.replace("-", "_") for name in named):
        result = report.runtimes.get(name) or RuntimeParity("NOT_RUN", "it is not in the report", "fp32")
        if result.verdict == "NOT_RUN":
            raise UnavailableError(f"{name} was not run: {result.reason}.")


@dataclass
class _Check:
    """One run of the verb: what it has to work with."""

    folder: Path
    manifest: Manifest
    spec: ModelSpec
    cases: list[Case]
    probed: dict[str, Capabilities]
    threads: int | None
    store: References
    progress: Progress

    def __post_init__(self) -> None:
        self.io: IOContract = self.manifest.io
        self.notes: list[str] = []
        self._eager: dict[str, Measured] = {}

    def report(self, chosen: Sequence[Runtime]) -> ParityReport:
        """Everything, in order: the reference, the raw module, runtimes, forms."""
        with self._module("fp32", contract=True, float64=True) as session:
            self.notes += make_references(session, self.io, self.cases, self.store, self.progress)
        self._compare_raw_module()
        runtimes: dict[str, RuntimeParity] = {}
        for runtime in chosen:
            runtimes.update(self._runtime(runtime))
        forms = {name: self._form(form) for name, form in self.manifest.forms.items()}
        return parity.report(runtimes, forms, self.notes)

    def _compare_raw_module(self) -> None:
        """Notes where the module as written differs from the mask contract, in float64."""
        differs = []
        tried = [case for case in self.cases if case.group != "text"]
        with self._module("fp32", contract=False, float64=True) as session:
            raw = measure_session(session, self.io, tried, self.store, self._saying("module without the mask contract"))
        for case, by_output in raw.errors.items():
            for output, errors in by_output.items():
                scale = 4 * parity.EPS["fp32"] * errors.reference_rms
                if errors.problem:
                    differs.append(f"{case}, {output}: {errors.problem}")
                elif errors.max is not None and errors.max > scale:
                    differs.append(f"{case}, {output}: by up to {errors.max:.2e}")
        self.notes.append(
            f"the raw module differs from the mask contract in {len(differs)} results: {'; '.join(differs)}"
            if differs
            else "the raw module follows the mask contract in every case but the sentences, where it was not compared"
        )

    def _runtime(self, runtime: Runtime) -> dict[str, RuntimeParity]:
        found = self.probed[runtime.name]
        if not found.available:
            hint = f"; {found.hint}" if found.hint else ""
            return {runtime.name: RuntimeParity("NOT_RUN", f"{found.reason.rstrip('.')}{hint}", "fp32")}
        if runtime.opens == "module":
            if runtime.name == _EAGER:
                note = "float32 PyTorch with the mask contract is the yardstick of the others"
                return {runtime.name: self._judge(self._measured_eager("fp32"), "fp32", note)}
            return {runtime.name: self._open_and_judge(runtime, Opening(self.io, spec=self.spec, contract=True))}
        openings = model_openings(runtime, self.folder, self.manifest, found.plans, self.threads)
        if not openings:
            return {runtime.name: RuntimeParity("NOT_RUN", why_none(runtime, self.folder), "fp32")}
        return {name: self._open_and_judge(runtime, opening) for name, opening in openings.items()}

    def _form_opening(self, form: Form) -> Opening:
        return Opening(self.io, plan=form.plan, model=self.folder / form.file, threads=self.threads)

    def _form(self, form: Form) -> RuntimeParity:
        """Graph parity: a form run numerically without its target."""
        names = [_TYPED_EVALUATOR] if form.plan != "fp32" else [_FAST_EVALUATOR, _TYPED_EVALUATOR]
        refused: list[str] = []
        for name in names:
            runtime = base.get(name)
            if runtime.name == form.target or runtime.form == form.target:
                continue
            if not self.probed[name].available:
                refused.append(f"{name}: {self.probed[name].reason}")
                continue
            try:
                with _opened(runtime, self._form_opening(form)) as session:
                    if name == _FAST_EVALUATOR:
                        session.run(self.cases[0].feeds)
            except (UnavailableError, ArtifactError) as err:
                refused.append(f"{name}: {err.message}")
                continue
            except IntegrityError:
                raise
            except Exception as err:  # a runtime's own exception: this evaluator cannot take the form
                refused.append(f"{name}: {type(err).__name__}: {str(err).strip()[:200]}")
                continue
            note = f"graph run by {name}" + (f" ({'; '.join(refused)})" if refused else "")
            return self._open_and_judge(runtime, self._form_opening(form), note)
        return RuntimeParity("NOT_RUN", f"no evaluator can run it: {'; '.join(refused) or 'none is left'}", form.plan)

    def _open_and_judge(self, runtime: Runtime, opening: Opening, note: str = "") -> RuntimeParity:
        slow = not runtime.timed and opening.plan != "fp32"
        tried, items = self.cases, _ALL_ITEMS
        if slow or not runtime.timed:
            items = _SLOW_ITEMS
        if slow:
            tried, left_out = _few_sentences(self.cases)
            if left_out:
                note += f"; {left_out} of the batches of sentences are left out, since this evaluator is slow in half"
        label = opening.model.name if opening.model and note else runtime.name
        try:
            with _opened(runtime, opening) as session:
                found = measure_session(session, self.io, tried, self.store, self._saying(label), items=items)
        except IntegrityError:
            raise
        except UnavailableError as err:
            return RuntimeParity("NOT_RUN", err.message, opening.plan)
        except AttnportError as err:
            return RuntimeParity("FAIL", f"it cannot be opened: {err.message}", opening.plan)
        return self._judge(found, opening.plan, note.removeprefix("; "))

    def _judge(self, found: Measured, plan: str, note: str = "") -> RuntimeParity:
        by = parity.Yardstick(plan, self._measured_eager(plan).errors)
        judged = [
            parity.judge(case, output, errors, by)
            for case, by_output in found.errors.items()
            for output, errors in by_output.items()
        ]
        return parity.conclude(
            plan, found.ran, judged, parity.judge_invariance(found.spreads, by, found.compared), note
        )

    def _measured_eager(self, plan: str) -> Measured:
        """PyTorch eager at a plan, with the mask contract: run once."""
        if plan not in self._eager:
            with self._module(plan, contract=True) as session:
                self._eager[plan] = measure_session(
                    session,
                    self.io,
                    self.cases,
                    self.store,
                    self._saying(f"{_EAGER} {plan}"),
                    items=_ALL_ITEMS if plan == "fp32" else 0,
                )
        return self._eager[plan]

    @contextlib.contextmanager
    def _module(self, plan: str, *, contract: bool, float64: bool = False) -> Iterator[Session]:
        opening = Opening(self.io, plan=plan, spec=self.spec, threads=self.threads, contract=contract, float64=float64)
        with _opened(base.get(_EAGER), opening) as session:
            yield session

    def _saying(self, label: str) -> Progress:
        return lambda message: self.progress(f"{label}: {message}")


@contextlib.contextmanager
def _opened(runtime: Runtime, opening: Opening) -> Iterator[Session]:
    with contextlib.closing(runtime.open(opening)) as session:
        yield session


def _few_sentences(tried: Sequence[Case]) -> tuple[list[Case], int]:
    """All cases but most of the sentences, and how many batches that leaves out; the cheapest batches stay."""
    text = [case for case in tried if case.group == "text"]
    kept = sorted(text, key=lambda case: max(array.size for array in case.feeds.values()))[:_SLOW_TEXT_CASES]
    names = {case.name for case in kept}
    return [case for case in tried if case.group != "text" or case.name in names], len(text) - len(kept)


def _needed(chosen: Sequence[Runtime]) -> list[str]:
    """The runtimes whose probe matters: the chosen ones and the evaluators of forms."""
    return sorted({runtime.name for runtime in chosen} | {_EAGER, _FAST_EVALUATOR, _TYPED_EVALUATOR})


def _model_files(manifest: Manifest) -> list[str]:
    """What `check` reads of a folder: models, weights, engines, the tokenizer; not the reports beside them."""
    return [name for name in manifest.files if Path(name).suffix in MODEL_SUFFIXES or name == manifest.tokenizer]


def _cases(
    folder: Path, manifest: Manifest, sentences: Sequence[str], inputs: Path | None, seed: int, batch: int
) -> list[Case]:
    found = cases(manifest.io, seed)
    if inputs:
        import numpy as np

        try:
            with np.load(inputs, allow_pickle=False) as arrays:
                feeds = dict(arrays)
        except (OSError, ValueError) as err:
            raise UsageError(f"{inputs} is no .npz of arrays: {err}.") from err
        found.append(given_case(manifest.io, inputs.name, "given", feeds))
    if sentences:
        if not manifest.tokenizer:
            raise UsageError(
                f"{folder} has no tokenizer, so it cannot read text.",
                hint="Leave --text out, or give tensors with --inputs.",
            )
        found += text_cases(manifest.io, sentences, folder / manifest.tokenizer, batch)
    return found


def _inputs_digest(
    manifest: Manifest,
    probed: dict[str, Capabilities],
    wanted: Sequence[str],
    texts: Sequence[str],
    numbers: tuple[int, ...],
) -> str:
    """Everything that could change the report."""
    files = {name: manifest.files[name] for name in _model_files(manifest)}
    parts = [
        asdict(manifest.source),
        asdict(manifest.io),
        files,
        {key: asdict(form) for key, form in manifest.forms.items()},
    ]
    parts += [{name: asdict(found) for name, found in sorted(probed.items())}]
    text = json.dumps([__version__, parts, list(wanted), list(numbers)], sort_keys=True, default=str)
    return digest_text(text, *texts)
