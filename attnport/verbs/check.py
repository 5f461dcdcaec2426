"""`attnport check`: compares every runtime and every lowered form with a float64 run of the module."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from attnport.artifacts import AUTO, CASTS, PLANS, Capabilities, Form, Manifest, ParityReport, RuntimeParity, plan_of
from attnport.cases.choosing import cases_of, few_batches, needed_tokenizer, read_feeds, read_sentences
from attnport.cases.inputs import Case, case
from attnport.errors import (
    AttnportError,
    ParityFailed,
    UnavailableError,
    UsageError,
)
from attnport.exporter.targets import base as lowerings
from attnport.folder.loading import require
from attnport.folder.workspace import (
    bundle_digest,
    change,
    check_files,
    check_source,
    files_of,
    if_whole,
    load_spec,
    model_digest,
    model_files,
    model_openings,
    not_in,
    of_keys,
    of_plan,
    open_folder,
    read_parity,
    rows_of,
    runtime_digest,
    stage_of,
)
from attnport.jsonfile import digest_file, digest_text
from attnport.latency.workloads import parse_grid
from attnport.options import Folder, Note, Option, Progress, Seed, Tell, Text, Timeout, Trust
from attnport.parities import FILE, Basis, Bisected, cause
from attnport.parity.bound import report as of_rows
from attnport.parity.comparing import (
    AS_THE_MODULE,
    EAGER,
    EAGER_ON_GPU,
    FAST_EVALUATOR,
    TYPED_EVALUATOR,
    Comparison,
    Wanted,
)
from attnport.parity.evaluate import Means, References
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import add_eager
from attnport.parity.layers import Traced, findings, layers, read_layers
from attnport.parity.metrics import OF_REFERENCE
from attnport.processes.isolated import TIMEOUT_S, Limits, probe_all
from attnport.runtimes import base
from attnport.runtimes.base import Key, Runtime
from attnport.verbs._arguments import verb
from attnport.verbs._needs import ready

STAGE = "check"
EAGERS = (EAGER, EAGER_ON_GPU)
FEW_BATCHES = 4
"""Of the user's sentences, so many batches are run by a check that is not thorough."""

SEED, BATCH = 0, 8
EARLIER = ": from an earlier check, "
"""In a note, between rows whose cases were others and the options that chose these."""


@verb
def check(
    folder: Folder,
    runtimes: Annotated[
        Sequence[str],
        Option(
            "A runtime, or one precision of it, openvino.bf16; default: all but torch_compile and those of "
            "JavaScript. The report keeps others.",
            "--runtime",
        ),
    ] = (),
    text: Text = None,
    inputs: Annotated[Path | None, Option("An .npz with an array for each input, a further case.")] = None,
    *,
    shapes: Annotated[Sequence[str], Option('Further cases, full batches of "batch=1/8,seq=512".', "--shape")] = (),
    precision: Annotated[
        str | None,
        Option(
            "One precision alone, modules cast to it, or the forms that build --precision auto made; writes "
            "parity.PRECISION.json.",
            "--dtype --precision",
        ),
    ] = None,
    eager: Annotated[
        str,
        Option(
            "The PyTorch runtime that computes the reference and the error bound; with --precision also "
            "torch_eager_cuda, on a GPU, where forms are not run without their target.",
            "--reference --eager",
        ),
    ] = EAGER,
    bundle: Annotated[
        Path | None, Option("A bundle of this folder, checked through its own reader as the runtime bundle.")
    ] = None,
    timeout_s: Timeout = TIMEOUT_S,
    isolate: Annotated[
        bool,
        Option(
            "Give every runtime a process of its own, also those that do not need it. The reference stays in this one."
        ),
    ] = False,
    trust_source: Trust = False,
    thorough: Annotated[
        bool,
        Option(
            "Run every batch of the sentences, each item alone and with more padding too; by default four batches and "
            "eight items. The cases made from the contract are run in any case."
        ),
    ] = False,
    force: Annotated[
        bool, Option("Check even if nothing has changed, and leave out of the report what was not asked for.")
    ] = False,
    seed: Seed = SEED,
    batch: Annotated[int, Note("The number of sentences in a batch.")] = BATCH,
    threads: Annotated[int | None, Note("Compute threads; None = the physical cores.")] = None,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> ParityReport:
    """Checks an artifact folder and writes `parity.json`.

    What it says already is kept: of the same cases it is the answer, of others it stays beside what is checked now.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were.
        SpecError: to load the source would run code that was not asked for on this machine; names it.
        UsageError: an unknown runtime or precision, or inputs that do not fit. See `raise_for` for verdicts.
        UnavailableError: `eager` cannot be run here, or not in the precision.
        ParityFailed: the float64 reference of a GPU is not what the processor computes.
    """
    precision = precision and plan_of(precision)
    stage, file = stage_of(STAGE, FILE, precision, (*CASTS, AUTO))
    eager = base.get(eager).name
    if eager not in EAGERS or (eager != EAGER and precision is None):
        raise UsageError(f"--eager {eager}: expected one of {', '.join(EAGERS)}, the latter with --precision.")
    case_options = CaseOptions(text, inputs, shapes, seed, batch)
    case_options.refuse(folder, open_folder(folder))
    _refuse_unsearched(folder, precision)
    chosen = base.chosen(runtimes, bundle=bundle is not None)
    asked_for = [one.name for one in chosen]
    keys = [Key.parse(name) for name in runtimes or ()] or [Key(one.name) for one in chosen]
    ready(folder, runtimes or (), progress, precision)
    means = Means(threads, Limits(timeout_s, every=isolate), progress)
    sentences = case_options.sentences
    with change(folder) as edit:
        manifest = of_plan(edit.manifest, precision) if precision else edit.manifest
        named = of_keys(manifest, keys)
        check_files(folder, manifest, *model_files(manifest))
        require(manifest.source, given=trust_source)
        given = digest_file(inputs) if inputs and inputs.is_file() else ""
        asked = Asked(manifest, case_options, given, eager, bundle_digest(bundle))
        known = None if force else if_whole(read_parity, folder, manifest, file)
        # What a thorough check found answers a brief one, and what comes to it is as thorough.
        rows = [] if known is None else [*known.runtimes.values(), *known.forms.values()]
        thorough = thorough or any(row.basis and row.basis.cases == asked.digest(True) for row in rows)
        own = {runtime.form for runtime in chosen} if runtimes else {form.target for form in manifest.forms.values()}
        forms = {name: form for name, form in named.forms.items() if form.target in own}
        if known:
            rows_by = {one.name: rows_of(known, *(key for key in keys if key.runtime == one.name)) for one in chosen}
            again = set(rows_by) if runtimes else set()

            def lacks_rows(one: Runtime, plans: Sequence[str]) -> bool:
                """Whether there is a form or engine in these plans that was not judged: another precision was named."""
                if one.opens not in ("onnx", "engine"):
                    return False
                openings = model_openings(one, folder, named, plans, None, usual=precision or "fp32")
                return not openings.keys() <= rows_by[one.name].keys()

            chosen = [
                one
                for one in chosen
                if not asked.is_answered(rows_by[one.name], thorough, one.name in again)
                or lacks_rows(one, tuple(PLANS))
            ]
            forms = {
                name: form
                for name, form in forms.items()
                if not asked.is_answered({name: known.forms[name]} if name in known.forms else {}, thorough, form=True)
            }
            if not chosen and not forms:
                check_source(manifest)
                return known
        progress("probing the runtimes")
        probed = probe_all([base.get(name) for name in _needed(chosen, eager, forms.values())], means.limits)
        found = probed[eager]
        if why := not_in(found, precision or "fp32") if found.available else f"cannot be run: {found.problem}":
            raise UnavailableError(f"{eager}, by which the others are judged: {why}.")
        lacking = {one.name: probed[one.name].problem for one in chosen if probed[one.name].absent}
        chosen = [one for one in chosen if one.name not in lacking]
        if known:
            able = {
                name
                for name, found in probed.items()
                if found.available and (precision is None or precision in found.plans)
            }
            chosen = [
                one
                for one in chosen
                if not asked.is_answered(rows_by[one.name], thorough, one.name in again & able)
                or (one.name in able and lacks_rows(one, probed[one.name].plans))
            ]
            if not chosen and not forms and lacking.items() <= known.absent.items():
                check_source(manifest)
                return known
        _tell_of_graphs(asked_for if runtimes else (), probed, forms, tell)
        progress("loading the model")
        spec = load_spec(manifest)
        every = case_options.cases(folder, manifest)
        cases = every if thorough else few_batches(every, FEW_BATCHES)
        wanted = Wanted(precision, eager, bundle, thorough)
        ran = {*lacking, *(one.name for one in chosen)}
        with tempfile.TemporaryDirectory(prefix="attnport-check-") as scratch:
            run = Comparison(folder, named, spec, cases, probed, References(Path(scratch)), wanted, means)
            if left_out := sum(case.group == "text" for case in every) - sum(case.group == "text" for case in cases):
                run.notes.append(f"batches of sentences left out: {left_out}; --thorough runs all")
            if not sentences and manifest.tokenizer:
                run.notes.append("no sentences were given, so real text was not compared")
            report = replace(_as_named(run.report(chosen, forms), keys), absent=lacking)
            report = asked.recorded(report, thorough)
            report = _together(known, report, asked, thorough, [key for key in keys if key.runtime in ran])
        if GOLDEN in manifest.files:
            check_files(folder, manifest, GOLDEN)
            plans = {form.plan for form in manifest.forms.values()}
            add_eager(spec, folder / GOLDEN, lambda: edit.path(GOLDEN), plans, run.eager.redrawn())
        edit.write(file, report)
        edit.finish(stage, asked.digest(thorough))
    return report


def bisect(
    folder: Path,
    report: ParityReport,
    options: CaseOptions,
    means: Means,
    *,
    named: Sequence[str] = (),
    half: bool = False,
    force: bool = False,
    tell: Callable[[str], None] = lambda message: None,
) -> Bisected:
    """Finds the layer where each runtime or form that failed goes wrong, and measures errors by layer.

    Of one precision, also where the module itself overflows in a case that is not judged for that reason.

    Args:
        report: What `check` gave.
        named: The runtimes that the user named: only these are searched, and are in the result.
        half: Whether that is of one precision alone, of which no errors by layer are kept.
        force: Measure errors by layer again, though parity was not checked anew since.
        tell: Called with a line if they could not be measured; the verdict of the check is not affected.

    Raises:
        ArtifactError, IntegrityError, UsageError: as `check`; ExportError: torch no longer traces the module.
    """
    judged = of_named(report, named)
    found = findings(inside(folder, judged, options, means))
    if not half and (problem := why_no_layers(folder, report, options, means, force=force)):
        tell(problem)
    return Bisected(judged, found)


def why_no_layers(
    folder: Path, report: ParityReport, options: CaseOptions, means: Means, *, force: bool = False
) -> str:
    """Measures errors by layer, as `bisect`; returns why that was not possible, which changes no verdict."""
    try:
        if force or read_layers(folder, open_folder(folder)) is None:
            layers(inside(folder, report, options, means))
    except (AttnportError, MemoryError) as err:
        return f"errors by layer were not measured: {err}"
    return ""


def inside(folder: Path, report: ParityReport, options: CaseOptions, means: Means) -> Traced:
    """What errors inside the module of a checked folder are measured with; the arguments are those of `why_no_layers`.

    Raises:
        ArtifactError, IntegrityError, UsageError: as `check`.
    """
    manifest = open_folder(folder)
    check_files(folder, manifest, *model_files(manifest))
    return Traced(folder, manifest, options.cases(folder, manifest), report, means)


def of_named(report: ParityReport, named: Sequence[str]) -> ParityReport:
    """The part of a report that is of the runtimes that the user named, with its own verdict; without any, all of it.

    Of what an earlier check found of others, one note has the verdicts.
    """
    if not named:
        return report
    keys = [Key.parse(each) for each in named]

    def is_named(form: str) -> bool:
        target = Key.parse(form).runtime
        usual = lowerings.get(target).plans[0] if target in lowerings.names() else "fp32"
        opened = {key: key.runtime in base.names() and base.get(key.runtime).form for key in keys}
        named_as = [replace(key, runtime=target) for key in keys if target in (key.runtime, opened[key])]
        return any(key.covers(form, usual) for key in named_as)

    runtimes = rows_of(report, *keys)
    others = [f"{name} {row.verdict}" for name, row in report.runtimes.items() if name not in runtimes]
    notes = [note for note in report.notes if EARLIER not in note]
    if others:
        notes.append(f"not named, and so no part of this verdict; an earlier check found: {', '.join(others)}")
    return of_rows(
        runtimes,
        {name: row for name, row in report.forms.items() if is_named(name)},
        notes,
        {name: why for name, why in report.absent.items() if any(key.runtime == name for key in keys)},
    )


def raise_for(report: ParityReport, named: Sequence[str] = (), again: str = "") -> None:
    """Raises the exception for the verdict of a report, if any.

    Args:
        named: Runtimes that the user named; if one is NOT_RUN, it is an error. What an earlier check found of others
            does not count then, see `of_named`; without any, all counts.
        again: The command of the check, where `--bisect` would tell more about it; see `command_line`.

    Raises:
        ParityFailed: a runtime or a lowered form failed.
        UnavailableError: a named runtime was not run.
    """
    judged = of_named(report, named)
    for name, row in judged.runtimes.items():
        if row.verdict == "FAIL":
            raise ParityFailed(f"{name} fails: {row.reason}.", hint=_hint(report, row, again, runtime=name))
    for name, row in judged.forms.items():
        if row.verdict == "FAIL":
            raise ParityFailed(f"form {name} fails: {row.reason}.", hint=_hint(report, row, again))
    for key in map(Key.parse, named):
        rows = list(rows_of(report, key).values())
        if all(row.verdict == "NOT_RUN" for row in rows):
            reason = rows[0].reason if rows else report.absent.get(key.runtime, "it is not in the report")
            raise UnavailableError(f"{key} was not run: {reason.rstrip('.')}.")


def _hint(report: ParityReport, row: RuntimeParity, again: str, runtime: str = "") -> str:
    """How to go on after a failure, of a runtime or of a form: the cause where it is known, else where to look."""
    if known := cause(report):
        return f"{known[0].upper()}{known[1:]}. Export it again, with that declared."
    told, short = [], Key.parse(runtime).runtime if runtime else ""
    form = report.forms.get(runtime)
    if form and form.verdict == "PASS" and form.ran and row.ran and form.ran.provider != row.ran.provider:
        told.append(f"{form.ran.provider} computes the right numbers from the same file, so {short} is at fault.")
    half = short == EAGER and row.plan != "fp32"
    opened = half or not runtime or (short in base.names() and base.get(short).opens == "onnx")
    if any(AS_THE_MODULE in one.reason for one in row.cases if one.verdict == "FAIL"):
        told.append(
            "Rows without a key, as of a text without a real token, are NaN. Never send one; or, in the module, fill "
            "hidden scores with torch.finfo(scores.dtype).min, not -inf, or put .nan_to_num() behind the softmax."
        )
    measured = any(one.verdict == "FAIL" and (one.rms_error is not None or one.nonfinite) for one in row.cases)
    own = report.runtimes.get(EAGER)
    if own and own.verdict == "FAIL" and own.plan != "fp32":
        told.append(f"PyTorch itself is wrong in {own.plan}. {_instead(own.plan)}")
    elif own and own.verdict == "FAIL" and any(OF_REFERENCE in one.reason for one in own.cases):
        told.append(
            "The module itself gives NaN or Inf in rows that have keys. Where -inf is added up or multiplied before "
            "the softmax, as by a layer that mixes heads, hide scores behind that, right before the softmax."
        )
    elif own and own.verdict == "FAIL":
        told.append("The module itself fails: check that each mask input has the declared meaning, such as :hide.")
    told.append(f"Every case: {FILE}, or of one precision parity.PRECISION.json.")
    if again and opened and measured:
        told.append(f"Where it goes wrong: {again}{f' --runtime {short}' if short else ''} --bisect")
    return " ".join(told)


def _instead(plan: str) -> str:
    """The precision to take where PyTorch itself has no right numbers at a plan."""
    if PLANS[plan].half != "float16":
        return "Take fp32."
    of_bf16 = "whose range is that of float32"
    if PLANS[plan].islands:
        return f"So attention overflows: take --precision bf16_islands, {of_bf16}."
    return (
        f"If attention overflows, which --bisect tells, take --precision bf16, {of_bf16}; what else overflows is kept "
        "in float32 by `attnport build FOLDER --target TARGET --precision auto`."
    )


def _refuse_unsearched(folder: Path, plan: str | None) -> None:
    """Raises UsageError where `auto` alone is asked for and no form has it: it is no cast of a module, so nothing else
    can be run in it."""
    if plan == AUTO and not any(form.plan == AUTO for form in open_folder(folder).forms.values()):
        raise UsageError(
            f"--precision {AUTO}: the folder has no form in {AUTO}, which is searched when an engine is built.",
            hint=f"attnport build FOLDER --target tensorrt_rtx --precision {AUTO}",
        )


def _needed(chosen: Sequence[Runtime], eager: str, forms: Collection[Form]) -> list[str]:
    """The runtimes whose probe matters: the chosen ones and those of `forms`, PyTorch eager and the evaluators."""
    judges = {EAGER, eager} | {EAGER_ON_GPU for runtime in chosen if runtime.gpu}
    targets = {form.target for form in forms}
    own = {name for name in base.names() if base.get(name).form in targets}
    return sorted({runtime.name for runtime in chosen} | own | judges | {FAST_EVALUATOR, TYPED_EVALUATOR})


@dataclass(frozen=True)
class CaseOptions:
    """What chooses the cases of a check; the attributes are the arguments of `check`."""

    text: Path | None = None
    inputs: Path | None = None
    shapes: Sequence[str] = ()
    seed: int = SEED
    batch: int = BATCH

    @functools.cached_property
    def sentences(self) -> list[str]:
        """Those of `text`."""
        return read_sentences(self.text) if self.text else []

    def refuse(self, folder: Path, manifest: Manifest) -> None:
        """Raises UsageError, ProfileError for what cannot be read or does not fit, before minutes of work."""
        for shape in self.shapes:
            parse_grid(shape, manifest.io.dims)
        if self.sentences:
            needed_tokenizer(str(folder), manifest.tokenizer)
        if self.inputs:
            case(manifest.io, self.inputs.name, "given", read_feeds(self.inputs))

    def cases(self, folder: Path, manifest: Manifest) -> list[Case]:
        """All of them."""
        sizes = [sizes for shape in self.shapes for sizes in parse_grid(shape, manifest.io.dims)]
        return cases_of(folder, manifest, self.sentences, self.inputs, self.seed, self.batch, sizes)

    def __str__(self) -> str:
        """The options, as on the command line."""
        options = [f"--text {self.text}"] * bool(self.text) + [f"--inputs {self.inputs}"] * bool(self.inputs)
        options += [f"--shape {shape}" for shape in self.shapes]
        options += [f"--seed {self.seed}"] * (self.seed != SEED) + [f"--batch {self.batch}"] * (self.batch != BATCH)
        return " ".join(options)


@dataclass(frozen=True)
class Asked:
    """What a check is asked, as far as it changes numbers: limits of time, threads and processes do not.

    Attributes:
        given: The digest of the further inputs.
        bundle: That of the bundle, whose rows alone depend on it.
    """

    manifest: Manifest
    options: CaseOptions
    given: str
    eager: str
    bundle: str

    def digest(self, thorough: bool, name: str = "") -> str:
        """A digest of the cases, for the row called `name`."""
        tokenizer = self.manifest.files.get(self.manifest.tokenizer or "", "")
        options, prompts = self.options, asdict(self.manifest.prompts)
        chosen = [tokenizer, prompts, self.given, options.seed, options.batch, list(options.shapes)]
        own = self.bundle if Key("bundle").covers(name) else ""
        return digest_text(json.dumps([*chosen, self.eager, thorough, own]), *options.sentences)

    def is_answered(
        self, rows: Mapping[str, RuntimeParity], thorough: bool, again: bool = False, *, form: bool = False
    ) -> bool:
        """Whether rows are the answer, and nothing that they depend on is another now.

        Args:
            rows: Those of a runtime or of a form.
            again: Whether what was not run is to be tried once more.
        """
        if again and all(row.verdict == "NOT_RUN" for row in rows.values()):
            return False
        return bool(rows) and all(
            row.basis is not None
            and row.basis.cases == self.digest(thorough, name)
            and row.basis.runtime == runtime_digest(self.manifest, name, form=form)
            for name, row in rows.items()
        )

    def recorded(self, report: ParityReport, thorough: bool) -> ParityReport:
        """A report of this check, whose rows say what they were computed from."""

        def with_basis(name: str, row: RuntimeParity, form: bool) -> RuntimeParity:
            basis = Basis(
                model=model_digest(self.manifest, name, row.plan, form=form),
                runtime="" if row.kind == "died" else runtime_digest(self.manifest, name, form=form),
                cases=self.digest(thorough, name),
                asked=" ".join(filter(None, (str(self.options), "--thorough" * thorough))),
                files=bool(files_of(self.manifest, name, row.plan, form=form)),
            )
            return replace(row, basis=basis)

        return replace(
            report,
            runtimes={name: with_basis(name, row, False) for name, row in report.runtimes.items()},
            forms={name: with_basis(name, row, True) for name, row in report.forms.items()},
        )


def _tell_of_graphs(
    named: Sequence[str], probed: Mapping[str, Capabilities], forms: Collection[str], tell: Callable[[str], None]
) -> None:
    """Tells why this takes time though none of the runtimes that were named can be run here."""
    if named and forms and all(name in probed and not probed[name].available for name in named):
        why = "; ".join(f"{name} is not run: {probed[name].problem}" for name in named)
        tell(f"{why}. What is judged now is the graph of {', '.join(forms)}, in another runtime")


def _as_named(report: ParityReport, keys: Sequence[Key]) -> ParityReport:
    """A report in which a runtime that could not run in the precision that was named is called by that name."""
    told = {key.runtime: str(key) for key in keys if key.precision}
    rows = {
        told.get(name, name) if not any(key.covers(name, row.plan) for key in keys) else name: row
        for name, row in report.runtimes.items()
    }
    return replace(report, runtimes=rows)


def _together(
    known: ParityReport | None, report: ParityReport, asked: Asked, thorough: bool, ran: Sequence[Key]
) -> ParityReport:
    """A report of `ran`, and what is known from earlier ones, with a note on rows whose cases were others."""
    if known is None:
        return report
    again = rows_of(known, *ran)
    others = {name: row for name, row in known.runtimes.items() if name not in again}
    lacking = {name: why for name, why in known.absent.items() if not any(key.runtime == name for key in ran)}
    forms = {name: row for name, row in known.forms.items() if name not in report.forms}
    earlier: dict[str, list[str]] = {}
    for name, row in (*others.items(), *((f"form {name}", row) for name, row in forms.items())):
        if row.basis is not None and row.basis.cases != asked.digest(thorough, name):
            earlier.setdefault(row.basis.asked, []).append(name)
    notes = [
        f"{', '.join(names)}{EARLIER}{f'with {options}' if options else 'without options'}"
        for options, names in earlier.items()
    ]
    before = [note for note in known.notes if EARLIER not in note] if others or forms else []
    return of_rows(
        dict(sorted({**others, **report.runtimes}.items())),
        dict(sorted({**forms, **report.forms}.items())),
        tuple(dict.fromkeys((*before, *report.notes, *notes))),
        lacking | dict(report.absent),
    )
