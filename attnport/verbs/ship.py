"""`attnport ship`: runs every stage in order; if one fails, the others still run and report."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from attnport import optional
from attnport.artifacts import INTEGERS, FusionReport, LatencyReport, LatencyRow, Manifest, ParityReport, Stage
from attnport.cases.choosing import read_sentences
from attnport.errors import PRECEDENCE, AttnportError, MissingDependency, ParityFailed, UsageError
from attnport.exporter.targets.base import get, names
from attnport.folder.given import Given
from attnport.folder.refusals import as_usage_error
from attnport.folder.workspace import (
    if_whole,
    of_keys,
    open_folder,
    open_if_there,
    read_parity,
    read_report,
    refuse_precisions,
)
from attnport.latency.statistics import half_width
from attnport.options import (
    Note,
    Option,
    Output,
    Progress,
    Shapes,
    Tell,
    Text,
    command_line,
)
from attnport.parity.evaluate import Means
from attnport.printed import Printed
from attnport.processes.isolated import Limits, probe_all
from attnport.reporting import document as doc
from attnport.reporting.choice import Choice
from attnport.reporting.facts import count, lacking, short_shape, without
from attnport.reporting.fusion import total
from attnport.reporting.parity import forms, limits
from attnport.runtimes import base
from attnport.verbs._arguments import verb_of_fields
from attnport.verbs._deployables import advise
from attnport.verbs.bundle import BUNDLE, FORMS
from attnport.verbs.export import How, exported

STAGES = {
    "export": "tracing the module, and trying the graph at several sizes",
    "fuse": "writing attention as each target fuses it, and proving that it does",
    "build": "building an engine of TensorRT-RTX",
    "tune": "trying every precision",
    "check": "comparing every runtime with a float64 run",
    "bench": "timing every runtime",
    "bundle": "packing what an application needs, and verifying it",
    "report": "writing the report",
}
"""The stages in their order, and what each does; `tune` is one only where it is asked for."""
ENGINE_TARGET, ENGINE_PLAN = "tensorrt_rtx", "fp16"
Status = Literal["done", "up to date", "failed", "not run"]


@dataclass(frozen=True)
class StageResult:
    """How one stage ended."""

    stage: str
    status: Status
    seconds: float
    detail: str
    exit_code: int = 0


@dataclass(frozen=True, repr=False)
class ShipResult(Printed):
    """The result of `ship`; a report is None if its stage did not write one."""

    schema: Literal["attnport/ship/2"] = field(default="attnport/ship/2", kw_only=True)
    folder: str
    exit_code: int
    stages: tuple[StageResult, ...]
    fusion: FusionReport | None
    parity: ParityReport | None
    latency: LatencyReport | None
    recommendation: Choice | None = None


@dataclass
class _Ship:
    """A run of all stages, with the result of each; a method is a stage and returns a line about its result."""

    folder: Path
    names: Sequence[str]
    runtimes: Sequence[str]
    text: Path | None
    shapes: Sequence[str]
    budget_s: float
    require: bool
    force: bool
    progress: Callable[[str], None]
    on_bug: Callable[[Exception], None]
    begin: Callable[[str, str, int, int], None]
    stages: list[StageResult] = field(default_factory=list)
    judged: bool = False
    """Whether `check` wrote its report."""

    def run(self, stage: str, work: Callable[[], str]) -> None:
        """Runs a stage, and records how it ended."""
        self.begin(stage, STAGES[stage], self.names.index(stage) + 1, len(self.names))
        began, before = time.monotonic(), self.done(stage)
        status: Status = "failed"
        code = 0
        try:
            detail = work()
            status = "up to date" if before and self.done(stage) == before and not self.force else "done"
        except Exception as err:  # a bug of ours must not stop the other stages
            if stage == "export":  # without which there are none
                raise
            known = as_usage_error(err) if isinstance(err, OSError) else err
            if isinstance(known, AttnportError):
                detail, code = f"{known.message} {known.hint}".strip(), known.exit_code
                if isinstance(known, MissingDependency):
                    status, code = "not run", 0
            else:
                detail, code = f"{type(err).__name__}: {err}", 1
                self.on_bug(err)
        self.stages.append(StageResult(stage, status, round(time.monotonic() - began, 1), detail, code))

    def done(self, verb: str) -> Mapping[str, Stage | int]:
        """What tells whether a verb did something: the stages that the folder records, or which folder the bundle is.

        `fuse:ort_cpu` and `lower:ort_cpu` belong to `fuse`.
        """
        if verb == "bundle":  # each that is written is another folder
            place = self.folder / BUNDLE
            return {BUNDLE: place.stat().st_ino} if place.is_dir() else {}
        names = (verb, "lower") if verb == "fuse" else (verb,)
        with suppress(AttnportError):  # if the folder cannot be read, the stage itself reports it
            manifest = open_if_there(self.folder)
            stages = manifest.stages if manifest is not None else {}
            return {name: stage for name, stage in stages.items() if name.partition(":")[0] in names}
        return {}

    def fuse(self) -> str:
        """Fuses target by target, so that all other forms are written if one target lacks an operator."""
        from attnport.verbs import fuse as fusing

        problem: AttnportError | None = None
        report = FusionReport({})
        forms = [(target, plan) for target in names() for plan in self._plans(target)]
        for number, (target, plan) in enumerate(forms, start=1):
            told = fusing.numbered(self.progress, number, len(forms))
            try:
                report = fusing.fuse(self.folder, [f"{target}.{plan}"], force=self.force, progress=told)
            except AttnportError as err:
                problem = problem or err
        if problem is not None:
            raise problem
        own = {form.target for form in self.own(open_folder(self.folder)).forms.values()}
        tables = {key: table for key, table in report.targets.items() if base.Key.parse(key).runtime in own}
        if self.require:
            fusing.require_fused({key: table for key, table in tables.items() if table.proved_by})
        return ", ".join(f"{key} {table}" for key, table in tables.items())

    @property
    def _keys(self) -> list[base.Key]:
        """The runtimes that were named."""
        return [base.Key.parse(name) for name in self.runtimes]

    def _plans(self, target: str) -> tuple[str, ...]:
        """The precisions in which the form of a target is written: of a named runtime those that were named."""
        own = [key for key in self._keys if base.get(key.runtime).form == target]
        known = get(target).plans
        named = tuple(plan for plan in known if any(key.precision == plan for key in own))
        if self._keys and all(key.precision in known for key in own):
            return named
        return tuple(dict.fromkeys((known[0], *_quick_plans(target), *named)))

    def own(self, manifest: Manifest) -> Manifest:
        """A manifest with what the named runtimes open alone, as an earlier run may have written other forms."""
        if not self.runtimes:
            return manifest
        targets = {base.get(key.runtime).form for key in self._keys}
        named = of_keys(manifest, self._keys)
        return replace(
            named,
            forms={name: form for name, form in named.forms.items() if form.target in targets},
            engines={name: record for name, record in named.engines.items() if record.target in targets},
        )

    def build(self) -> str:
        from attnport.verbs.build import build
        from attnport.verbs.fuse import require_fused

        optional.require(ENGINE_TARGET)
        named = [key.precision for key in self._keys if key.runtime == ENGINE_TARGET]
        plan = next((plan for plan in named if plan in get(ENGINE_TARGET).plans), ENGINE_PLAN)
        record, table = build(self.folder, ENGINE_TARGET, plan, force=self.force, progress=self.progress)
        assert record is not None
        if self.require:
            require_fused({record.form: table})
        return f"{record.file}, {record.size_bytes / 2**20:.0f} MiB, {table} fused"

    def tune(self) -> str:
        from attnport.verbs.tune import tune

        options = self._options() | {"shapes": self.shapes, "budget_s": self.budget_s}
        report = tune(self.folder, runtimes=_tuned(self.runtimes), **options)
        chosen = report.chosen
        return f"{count(len(report.candidates), 'candidate')}; {chosen.form if chosen else 'none'} is chosen"

    def check(self) -> str:
        from attnport.verbs.check import CaseOptions, check, raise_for, why_no_layers

        report = check(self.folder, runtimes=self.runtimes, **self._options())
        self.judged = True
        problem = why_no_layers(
            self.folder, report, CaseOptions(self.text), Means(progress=self.progress), force=self.force
        )
        again = command_line("check", check, folder=self.folder, text=self.text)
        raise_for(report, self.runtimes, again)
        verdicts = Counter(row.verdict for row in (*report.runtimes.values(), *report.forms.values()))
        counts = ", ".join(f"{verdicts[one]} {one}" for one in ("PASS", "FAIL", "NOT_RUN") if verdicts[one])
        return counts + (f"; {problem}" if problem else "")

    def bench(self) -> str:
        from attnport.verbs.bench import bench

        options = self._options() | {"shapes": self.shapes, "budget_s": self.budget_s}
        report = bench(self.folder, runtimes=self.runtimes, **options)
        measured = {name for rows in report.shapes.values() for name, row in rows.items() if row.median_ns is not None}
        return f"{count(len(measured), 'runtime')} on {count(len(report.shapes), 'workload')}"

    def bundle(self) -> str:
        """Writes the bundle, and verifies one that was written now."""
        from attnport.verbs.bundle import bundle, usual
        from attnport.verbs.verify import raise_for, verify

        before = self.done("bundle")
        named = [key for key in self._keys if base.get(key.runtime).form]
        forms, why = usual(self.folder, self.own(open_folder(self.folder)), tuple(map(_form_of, named)) or FORMS)
        path = bundle(self.folder, self.folder / BUNDLE, forms=forms, force=self.force, progress=self.progress)
        packed = f"{path} with {', '.join(forms)}{why}"
        if before and self.done("bundle") == before:
            return f"{packed}; as it was verified"
        self.progress("verifying the bundle")
        result = verify(path)
        raise_for(result)
        return f"{packed}; verified: {count(len(result.rows), 'check')}"

    def report(self) -> str:
        from attnport.verbs.report import report

        return str(report(self.folder, maps=True, **self._options()))

    def _options(self) -> Any:
        """What most verbs take."""
        return {"text": self.text, "force": self.force, "progress": self.progress}


def _form_of(key: base.Key) -> str:
    """The name, for a bundle, of what is deployed of a runtime that was named: its form, or its engine."""
    runtime = base.get(key.runtime)
    plans = get(runtime.form).plans
    if runtime.opens == "engine":
        return runtime.form
    return get(runtime.form).form_key(key.precision if key.precision in plans else plans[0])


def _tuned(runtimes: Sequence[str]) -> list[str]:
    """The named runtimes that `tune` tries."""
    from attnport.verbs.tune import RUNTIMES

    return [name for name in runtimes if base.Key.parse(name).runtime in RUNTIMES]


def _refuse(runtimes: Sequence[str], tune: bool) -> None:
    """Raises UsageError for runtimes that there are none of, or of which nothing can be deployed or tuned."""
    chosen = base.chosen(runtimes) if runtimes else []
    refuse_precisions([base.Key.parse(name) for name in runtimes])
    if chosen and not any(runtime.form for runtime in chosen):
        raise UsageError(
            f"--runtime {runtimes[0]}: there is no form of the model for it, which ship could write.",
            hint="attnport check and attnport bench compare a shipped folder with it.",
        )
    if tune and runtimes and not _tuned(runtimes):
        raise UsageError(f"--tune: of {', '.join(runtimes)}, none is a runtime that tune tries.", hint="Leave out one.")


def _quick_plans(target: str) -> tuple[str, ...]:
    """bf16 where this processor has instructions for it and the target's runtime uses them; then it is tried too."""
    if "bf16" not in get(target).plans:
        return ()
    provers = [base.get(name) for name in get(target).proved_by if name in base.names()]
    probed = probe_all([runtime for runtime in provers if not runtime.gpu], Limits())
    return ("bf16",) if any(found.available and "bf16" in found.plans for found in probed.values()) else ()


@verb_of_fields
def ship(
    given: Given,
    folder: Output,
    how: How,
    *,
    runtimes: Annotated[
        Sequence[str],
        Option(
            "A runtime, or one precision of it, openvino.bf16: only what it runs is written, judged, timed and packed; "
            "several allowed; default: all but torch_compile and those of JavaScript.",
            "--runtime",
        ),
    ] = (),
    text: Text = None,
    shapes: Shapes = (),
    budget_s: Annotated[float, Option("Seconds for latency.", "--budget", least=1)] = 60.0,
    tune: Annotated[bool, Option("Try int8 and 4 bits as well, judged by the sentences; see tune.")] = False,
    require: Annotated[
        bool, Option("Exit 5 if a target whose fusion can be proved is not fused.", "--fail-on-unfused --require")
    ] = False,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
    on_bug: Annotated[
        Callable[[Exception], None], Note("Called with each unexpected error of a stage; the other stages still run.")
    ] = lambda error: None,
    begin: Annotated[
        Callable[[str, str, int, int], None],
        Note("Called before each stage with its name, what it does, its number, and how many there are."),
    ] = lambda stage, what, number, count: None,
) -> ShipResult:
    """Export, fuse, build, check, bench, bundle, verify and report, into `folder`.

    Raises:
        UsageError: the file of sentences or a shape cannot be read, the model has no tokenizer for them, or no form is
            written for any runtime that was named.
        ProfileError: a shape does not fit the model.
        AttnportError: the export failed, without which there are no other stages.
        Exception: a bug of ours in the export.
    """
    from attnport.latency.workloads import parse_grid, read_grid

    # Errors are reported now, not after the minutes that export and build take.
    if text is not None:
        read_sentences(text)
    for shape in shapes:
        read_grid(shape)
    _refuse(runtimes, tune)
    left_out = {"tune"} if not tune else set()
    if runtimes and ENGINE_TARGET not in {base.Key.parse(name).runtime for name in runtimes}:
        left_out.add("build")
    names = [stage for stage in STAGES if stage not in left_out]
    run = _Ship(folder, names, runtimes, text, shapes, budget_s, require, how.force, progress, on_bug, begin)

    def exporting() -> str:
        made, _ = exported(given, folder, how, needs_text=text is not None, shapes=shapes, progress=progress, tell=tell)
        for shape in shapes:
            parse_grid(shape, made.io.dims)  # a dim may have been limited, or fixed
        return f"{count(len(made.attentions), 'attention')} counted, opset {made.opset}"

    for stage in names:
        run.run(stage, exporting if stage == "export" else getattr(run, stage))
    # Without a verdict the bundle is refused as well; the first cause decides the code.
    follows = () if run.judged else ("bundle", ParityFailed.exit_code)
    codes = [stage.exit_code for stage in run.stages if (stage.stage, stage.exit_code) != follows]
    manifest = open_folder(folder)
    # Of a report that was changed, the stages have told.
    parity = if_whole(read_parity, folder, manifest) if run.judged else None
    timed = any(stage.stage == "bench" and not stage.exit_code for stage in run.stages)
    latency = if_whole(read_report, LatencyReport, folder, manifest, "latency.json") if timed else None
    return ShipResult(
        folder=str(folder),
        exit_code=next((code for code in PRECEDENCE if code in codes), 0),
        stages=tuple(run.stages),
        fusion=if_whole(read_report, FusionReport, folder, manifest, "fusion.json"),
        parity=parity,
        latency=latency,
        recommendation=advise(folder, run.own(manifest), parity, latency),
    )


_MOST_WORKLOADS = 3
_MOST_IN_A_CELL = 150
_UNSURE = 0.2
"""From here on it is told how well ratios are known."""
_UNPROVEN = "-"  # a table with three workloads has no room for more


@doc.blocks.register(ShipResult)
def _blocks(result: ShipResult, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """Verdict, fusion and speed of each runtime, and the file to deploy; then the stages, and what to do next."""
    if result.parity is not None:
        yield _verdicts(result, result.parity)
    advice = result.recommendation
    if advice is not None and advice.deploy is not None:
        chosen = advice.deploy
        within = "by the drop that was allowed" if chosen.plan in INTEGERS else "within the bound"
        mean = f" by the mean of {len(advice.rows)} workloads" if len(advice.rows) > 1 else ""
        fastest = (
            f"{within}; not shown to be faster: {', '.join(advice.ties)}" if advice.ties
            else f"the fastest {within}{mean}"
        )  # fmt: skip
        why = f" ({chosen.measured_as}, {chosen.plan}, {fastest})"
        yield doc.Text(("to deploy: ", doc.Span(" and ".join(chosen.files), "strong"), why))
        yield from map(doc.Text, advice.notes)
    if result.parity is not None:
        yield from _legend(result)
        yield from _others(result, result.parity)
    yield from _stages(result)
    end: doc.Line = doc.Verdict("shipped", "pass")
    if result.exit_code:
        end = (doc.Verdict("not shipped", "fail"), f" (exit {result.exit_code})")
    yield doc.Text((end, f": {result.folder}; read {result.folder}/report.html"))
    yield from _next(advice, result.folder if _packed(result) else "")


def _stages(result: ShipResult) -> Iterator[doc.Block]:
    columns = doc.columns("stage", "status", "s", "result", right=("s",), whole=("stage", "status", "s"))
    rows = (
        (stage.stage, doc.Verdict(stage.status), f"{stage.seconds:.1f}", _short(stage.detail))
        for stage in result.stages
    )
    yield doc.Table("stages", columns, doc.rows(rows))
    # stderr has the whole of what failed
    cut = (stage for stage in result.stages if not stage.exit_code and _short(stage.detail) != stage.detail)
    yield doc.notes({stage.stage: stage.detail for stage in cut})


def _packed(result: ShipResult) -> bool:
    """Whether there is a bundle now."""
    return any(stage.stage == "bundle" and stage.status in ("done", "up to date") for stage in result.stages)


def _next(advice: Choice | None, packed: str) -> Iterator[doc.Block]:
    """The commands that follow: test what was chosen where it lands and time it there, embed it elsewhere; or mend it.

    Args:
        packed: The folder whose bundle has it; "" = there is none.
    """
    if advice is None:
        return
    if advice.deploy is None:
        yield doc.Text(f"nothing to deploy: {advice.reason}; next:")
        yield doc.Commands(tuple(f"  {command}" for command in advice.commands))
        return
    place = shlex.quote(f"{packed}/{BUNDLE}") if packed else "app"
    there = [f"  (cd {place}/python && python -m attnport_bundle {verb})" for verb in ("selftest", "bench")]
    commands = [f"  {command}" for command in advice.commands]
    if packed:
        yield doc.Text(
            f"next: {packed}/{BUNDLE} is what an application needs; copy it, test and time it where it lands:"
        )
        yield doc.Commands(tuple(there))
        yield doc.Text("or make another one of it, for --lang cpp, --sign or --layout:")
        yield doc.Commands(tuple(commands))
        return
    yield doc.Text("next, embed it, test it where it lands, and time it there:")
    yield doc.Commands((*commands, *there))


def _verdicts(result: ShipResult, parity: ParityReport) -> doc.Table:
    """The verdict table: parity, fusion and speed of each runtime."""
    latency = result.latency
    shapes = _shapes(latency)
    timed = [f"{short_shape(shape)} ms" for shape in shapes]
    whole = ("runtime", "parity", "fused")
    rows: list[tuple[doc.Line, ...]] = []
    left_out = _left_out(result, parity)
    for name, (verdict, _) in _judged(parity).items():
        if name not in left_out:
            times = [_short_latency(latency.shapes[shape].get(name)) for shape in shapes] if latency else []
            rows.append((name, doc.Verdict(verdict), _proved(result, name), *times))
    columns = doc.columns(*whole, *timed, right=("fused", *timed), whole=whole)
    return doc.Table(("verdict: ", doc.Verdict(parity.verdict)), columns, doc.rows(rows))


def _legend(result: ShipResult) -> Iterator[doc.Block]:
    """What the columns of the verdict table are."""
    yield from doc.quiet("parity: errors against a float64 run of the module, within its bound or not")
    if result.fusion is not None:
        yield from doc.quiet(
            "fused: attentions that one kernel of the runtime covers, proved, of those",
            f"counted at export; {_UNPROVEN} where nothing here could prove it",
        )
    if result.latency is not None:
        baseline = result.latency.baseline
        yield from doc.quiet(f"ms: median, and its ratio to {baseline}; ~ where no difference was shown")
        widths = {
            (half_width(row.ratio), name, shape)
            for shape, rows in result.latency.shapes.items()
            for name, row in rows.items()
            if row.ratio is not None
        }
        widest, name, shape = max(widths, default=(0.0, "", ""))
        if widest > _UNSURE:
            known = f"the ratio of {name} on {short_shape(shape)} is known within {widest:.0%} alone"
            yield from doc.quiet(f"{known}: the report has each interval")


def _others(result: ShipResult, parity: ParityReport) -> Iterator[doc.Block]:
    """The reasons of what did not pass, and lines for what passed besides, what this machine lacks, and what was
    not compared."""
    left_out = _left_out(result, parity)
    absent = [name for name in parity.absent if name in left_out]
    reasons = {name: reason for name, (verdict, reason) in _judged(parity).items() if verdict != "PASS" and reason}
    yield doc.notes(without(left_out, reasons))
    if not_run := {name: reasons[name] for name in left_out if name in reasons and name not in absent}:
        yield doc.Text((doc.Verdict("NOT_RUN"), ", so nothing was shown of these:"))
        yield doc.notes(not_run)
    yield from forms(parity.forms)
    yield from lacking(absent)
    yield from limits(parity)


def _judged(parity: ParityReport) -> Mapping[str, tuple[str, str]]:
    """The verdict and the reason of each runtime, also of those that this machine lacks, whose forms may be proved."""
    rows: dict[str, tuple[str, str]] = {name: (row.verdict, row.reason) for name, row in parity.runtimes.items()}
    return rows | {name: ("NOT_RUN", why) for name, why in parity.absent.items()}


def _left_out(result: ShipResult, parity: ParityReport) -> list[str]:
    """The runtimes without a row in the table: nothing of them was run, proved or timed."""
    timed = _shapes(result.latency)
    return [
        name
        for name, (verdict, _) in _judged(parity).items()
        if verdict == "NOT_RUN"
        and _proved(result, name) in ("", _UNPROVEN)
        and not any(result.latency and _short_latency(result.latency.shapes[shape].get(name)) for shape in timed)
    ]


def _shapes(latency: LatencyReport | None) -> list[str]:
    return list(latency.shapes)[:_MOST_WORKLOADS] if latency else []


def _proved(result: ShipResult, name: str) -> doc.Line:
    """The fused attentions and all of them; "" if fusion was not examined."""
    table = result.fusion.targets.get(name) if result.fusion else None
    return "" if table is None else _UNPROVEN if table.proved_by is None else total(table)


def _short(detail: str) -> str:
    """A text cut to what a cell can hold; stderr has the full text of an error."""
    return detail if len(detail) <= _MOST_IN_A_CELL else f"{detail[: _MOST_IN_A_CELL - 1].rstrip()}…"


def _short_latency(row: LatencyRow | None) -> str:
    if row is None or row.median_ns is None:
        return ""
    ratio = "" if row.ratio is None else f" {'~' if row.verdict == 'no difference shown' else ''}{row.ratio[1]:.2f}x"
    return f"{row.median_ns / 1e6:.2f}{ratio}"
