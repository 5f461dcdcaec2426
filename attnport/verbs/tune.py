"""`attnport tune`: tries every runtime and precision on the user's own data and lengths, and keeps the fastest."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated

from attnport.artifacts import (
    INTEGERS,
    PLANS,
    Candidate,
    Capabilities,
    Form,
    LatencyReport,
    Manifest,
    RuntimeParity,
    Score,
    Session,
    TuneReport,
    drop,
)
from attnport.cases.choosing import read_feeds, read_sentences, text_cases
from attnport.cases.inputs import Case
from attnport.decoders import decoder_roles
from attnport.errors import UsageError
from attnport.exporter.targets import base as lowerings
from attnport.folder.loading import require
from attnport.folder.machine import machine
from attnport.folder.workspace import (
    change,
    check_files,
    check_source,
    fresh,
    if_whole,
    name_of,
    open_folder,
    read_report,
    toolchain,
)
from attnport.jsonfile import digest_file, digest_text, read
from attnport.latency.choice import EARLIER, NOT_RUN, REFUSED, rank
from attnport.latency.measuring import BASELINE, Effort, Measuring
from attnport.latency.workloads import MANY, Workload, read_lengths, workloads
from attnport.options import Batch, Folder, Force, Lengths, Option, Progress, Seed, Shapes, Tell, Trust
from attnport.parity.finer import Integers, plan_integers
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import drop_own, set_own
from attnport.parity.scoring import Agreement, Metric, Perplexity, UserMetric, items_of
from attnport.processes.isolated import Limits, probe_all
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime, external_files, physical_cores
from attnport.sources.code import file_of_module
from attnport.sources.digests import TOOLCHAIN
from attnport.sources.file import is_file_name
from attnport.verbs import fuse as fusing
from attnport.verbs._arguments import verb
from attnport.verbs.bench import subjects
from attnport.verbs.check import check
from attnport.verbs.export import MODEL, WEIGHTS

STAGE, FILE = "tune", "tune.json"
RUNTIMES = ("ort_cpu", "openvino")
_MOST_ITEMS = 400
_TIMED_SHARE = 0.4
_LEAST_S = 20.0
_CALLS = 7
_NO_INTEGERS = "integers are not tried without items to judge them by: give --text, or many items with --inputs"


@verb
def tune(
    folder: Folder,
    runtimes: Annotated[
        Sequence[str],
        Option("ort_cpu, openvino, or one precision, openvino.bf16; default: all that are installed.", "--runtime"),
    ] = (),
    shapes: Shapes = (),
    text: Annotated[
        Path | None,
        Option("Sentences, one in each line: to time, and to judge integers by; half of them make the integers."),
    ] = None,
    inputs: Annotated[Path | None, Option("Instead, an .npz of many items, an array for each input.")] = None,
    *,
    lengths: Lengths = None,
    batch: Batch = MANY,
    metric: Annotated[
        str | None,
        Option("Your own measure, the larger the better; it judges all of them.", metavar="FILE.py:FUNCTION"),
    ] = None,
    max_drop: Annotated[
        float | str, Option("How much worse the metric may be than in float32, 0.5% or 0.005.", metavar="SHARE")
    ] = "0.5%",
    threads: Annotated[
        Sequence[int], Option("Compute threads; several allowed; default: the physical cores.", "--threads", least=1)
    ] = (),
    budget_s: Annotated[
        float, Option("Seconds for the search for integers and the timing.", "--budget", least=1)
    ] = 300.0,
    trust_source: Trust = False,
    force: Force = False,
    seed: Seed = 0,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> TuneReport:
    """Writes and times every form of the runtimes on the processor, keeps the fastest, and writes `tune.json`.

    Tried are float32, bf16 where the processor has it, and integers: linear layers in int8 or, of decoders with a
    cache, with weights of 4 bits, but those layers that cost more accuracy than is allowed. float32 and bf16 must pass
    `check`, by whose bound they are judged, unless there is a metric. Integers have no such bound and are judged by the
    metric. They are kept only if they are shown to be faster here.

    What an interrupted run has found is used by the next.

    A metric is `FILE.py:FUNCTION` or `MODULE:FUNCTION`; it takes one model, with the methods `run`, `map`, `embed` and
    `predict`, and returns a number. Without one, integers are judged by how much of the answers stays the same, and
    those of decoders by their perplexity.

    Raises:
        ArtifactError, IntegrityError, SpecError: the folder, its files or its source are not what they were, or the
            metric cannot be loaded or fails.
        UsageError: an unknown runtime, or inputs, text or lengths that do not fit.
    """
    manifest = open_folder(folder)
    require(manifest.source, given=trust_source)
    most = parse_share(max_drop)
    keys = [base.Key.parse(name) for name in runtimes or RUNTIMES]
    chosen = base.chosen(runtimes or RUNTIMES)
    if other := [runtime.name for runtime in chosen if runtime.name not in RUNTIMES]:
        raise UsageError(f"--runtime {other[0]}: tune tries {' and '.join(RUNTIMES)}.")
    if weights := [key for key in keys if key.precision in PLANS and PLANS[key.precision].weights]:
        raise UsageError(
            f"--runtime {weights[0]}: that is for GPUs; what is fastest on this processor says nothing of it.",
            hint=f"attnport build FOLDER --target {weights[0].runtime} --precision {weights[0].precision} writes it.",
        )
    sentences = read_sentences(text) if text else []
    # What cannot be read, or does not fit, is told before minutes of work.
    data = data_of(folder, manifest, sentences, inputs)
    todo = workloads(folder, manifest, shapes, sentences, seed, read_lengths(lengths) if lengths else {}, batch)
    measure = metric_of(folder, manifest, data, metric)
    beside = None
    if metric and data and not decoder_roles(manifest.io):
        with contextlib.suppress(UsageError):  # for too few items, or outputs that cannot be compared
            beside = Agreement(manifest.io, data.scored, queries=data.queries)
    if data is None:
        tell(_NO_INTEGERS)
    counts = tuple(dict.fromkeys(threads or (physical_cores(),)))
    progress("probing the runtimes")
    probed = probe_all([*chosen, base.get(BASELINE)], Limits())
    settings = [list(probed), list(map(str, keys)), list(shapes or ()), batch, metric, most, counts, budget_s, seed]
    digest = _digest(manifest, sentences, [inputs, lengths, _file_of(metric)], settings, probed)
    if not force and fresh(folder, manifest, STAGE, digest):
        check_source(manifest)
        return read(TuneReport, folder / FILE)
    ready = [runtime for runtime in chosen if probed[runtime.name].available]
    _write_plain(folder, ready, probed, keys, progress)
    names = [str(key) for key in keys if base.get(key.runtime) in ready]
    parity = check(folder, names, text, trust_source=trust_source, progress=progress) if ready else None
    run = Tuning(
        folder.resolve(),
        ready,
        probed,
        counts,
        most,
        data,
        measure,
        beside,
        todo,
        until_s=time.monotonic() + budget_s,
        seed=seed,
        progress=progress,
        keys=keys,
    )
    run.judge(parity.runtimes if parity else {}, by_metric=metric is not None)
    return run.finish(digest)


def parse_share(text: float | str) -> float:
    """A share such as `0.5%`, `0.005` or 0.005.

    Raises:
        UsageError: it is none between 0 and 1, or a text such as `0.5`, which may be meant as a percentage.
    """
    plain = str(text).strip()
    try:
        share = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:  # false for a NaN too
        raise UsageError(f"--max-drop: got {plain}; expected a share between 0 and 1.", hint="Give 0.5% or 0.005.")
    if isinstance(text, str) and not plain.endswith("%") and share >= 0.1:
        raise UsageError(
            f"--max-drop: got {plain}, which is {share:.0%} of the metric.",
            hint=f"Give {plain}% or {share:.0%}, as it is meant.",
        )
    return share


def data_of(folder: Path, manifest: Manifest, sentences: Sequence[str], inputs: Path | None) -> Data | None:
    """The user's items, of which every second one is for ranges; None if there are none."""
    if inputs is not None:
        items = items_of(manifest.io, inputs.name, read_feeds(inputs))
    elif sentences and manifest.tokenizer:
        texts = [manifest.prompts.usual + sentence for sentence in sentences[:_MOST_ITEMS]]
        items = text_cases(manifest.io, texts, folder / manifest.tokenizer, batch=1)
    else:
        return None
    pairs = () if inputs is not None or not any("\t" in each for each in sentences) else sentences[:_MOST_ITEMS]
    items = items[:_MOST_ITEMS]
    return Data(tuple(items[::2]), tuple(items[1::2]), tuple(each.partition("\t")[0] for each in pairs[1::2]))


def metric_of(folder: Path, manifest: Manifest, data: Data | None, metric: str | None) -> Metric | None:
    """What judges integers, and of the user's every form; None if there is none of the user's and there are no items.

    Raises as the metrics, for too few items too.
    """
    if metric:  # which has items of its own
        return UserMetric(metric, folder.resolve(), manifest)
    if data is None:
        return None
    roles = decoder_roles(manifest.io)
    if roles and not roles.context:
        return Perplexity(manifest.io, data.scored)
    return Agreement(manifest.io, data.scored, queries=data.queries)


def judged_by(manifest: Manifest, data: Data, metric: Metric, max_drop: float) -> str:
    """A digest of all that a search for integers depends on."""
    arrays = [array for item in (*data.ranged, *data.scored) for array in item.feeds.values()]
    parts = manifest.files[MODEL], metric.name, str(max_drop)
    return digest_text(*parts, *(repr(array.tobytes()) for array in arrays))


def _write_plain(
    folder: Path,
    runtimes: Sequence[Runtime],
    probed: Mapping[str, Capabilities],
    keys: Sequence[base.Key],
    progress: Progress,
) -> None:
    """Writes the forms that are not in integers, in every precision that is wanted and that the runtime has here."""
    for runtime in runtimes:
        usual, *further = lowerings.get(runtime.form).plans
        # fp16 in ONNX Runtime on a CPU is slower than fp32: the form is for GPUs, in the browser.
        wanted = [plan for plan in further if any(key.precision == plan or (plan == "bf16" and key.covers(
            f"{runtime.name}.{plan}")) for key in keys)]  # fmt: skip
        for plan in (usual, *wanted):  # integers are compared with the usual one
            if plan in probed[runtime.name].plans:
                fusing.fuse(folder, [f"{runtime.form}.{plan}"], progress=progress)


def _file_of(metric: str | None) -> Path | None:
    place = metric.rpartition(":")[0] if metric else ""
    file = place if is_file_name(place) else file_of_module(place) if place else None
    return Path(file) if file and Path(file).is_file() else None


def _digest(
    manifest: Manifest,
    sentences: Sequence[str],
    files: Sequence[Path | None],
    settings: Sequence[object],
    probed: Mapping[str, Capabilities],
) -> str:
    """All that the result depends on, but the forms, which the run itself writes."""
    here = machine()
    parts = [
        toolchain(*TOOLCHAIN, *base.distributions(probed)),
        [here.cpu, here.features],
        asdict(manifest.source),
        [manifest.files.get(MODEL), manifest.files.get(WEIGHTS)],
        settings,
        [asdict(found) for found in probed.values()],
        [digest_file(file) if file is not None and file.is_file() else "" for file in files],
    ]
    return digest_text(json.dumps(parts, sort_keys=True, default=str), *sentences)


def write_own_golden(folder: Path, graphs: Integers, kept: Sequence[str], key: str) -> None:
    """Lets bundles judge a form in integers, before it is there: whoever reads the folder meanwhile finds either both,
    or no such form."""
    with change(folder) as edit:
        fusing.drop_forms(edit, {key} & edit.manifest.forms.keys())  # an earlier one gave other numbers
        if GOLDEN in edit.manifest.files:
            check_files(folder, edit.manifest, GOLDEN)
            with graphs.open(kept) as session:
                set_own(session, edit.manifest.io, key, folder / GOLDEN, edit.path(GOLDEN))
        edit.finish(f"{STAGE}:golden", "")


@dataclass(frozen=True)
class Data:
    """What forms in integers are made and judged by: batches of one item each, for ranges and for the metric.

    Attributes:
        ranged: The items for ranges.
        scored: Those for the metric.
        queries: Of pairs of texts, the first text of each scored item.
    """

    ranged: tuple[Case, ...]
    scored: tuple[Case, ...]
    queries: tuple[str, ...] = ()


@dataclass
class Tuning:
    """One run of the verb.

    Attributes:
        beside: Counts the answers that stay the same, beside a metric of the user's, which judges.
    """

    folder: Path
    runtimes: Sequence[Runtime]
    probed: Mapping[str, Capabilities]
    threads: Sequence[int]
    max_drop: float
    data: Data | None
    metric: Metric | None
    beside: Agreement | None
    workloads: Sequence[Workload]
    until_s: float
    seed: int
    progress: Progress
    keys: Sequence[base.Key]
    notes: list[str] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)

    def judge(self, parity: Mapping[str, RuntimeParity], *, by_metric: bool) -> None:
        """Searches the forms in integers, then judges the numbers of every form.

        Args:
            by_metric: Whether the metric judges the other precisions too, in place of parity.
        """
        manifest = open_folder(self.folder)
        self.references: dict[str, Score] = {}
        inputs = ""
        if self.metric is not None:
            for number, runtime in enumerate(self.runtimes):
                with self._open(runtime, manifest.forms[runtime.form], manifest) as session:
                    self.references[runtime.name] = self.metric(session)
                    if self.beside is not None and number == 0:
                        self.beside(session)  # the answers that all others are compared with
        if self.data is None or self.metric is None:
            self.notes.append(_NO_INTEGERS)
        else:
            inputs = judged_by(manifest, self.data, self.metric, self.max_drop)
            for number, runtime in enumerate(self.runtimes):
                self._find(runtime, self.data, self.metric, inputs, len(self.runtimes) - number)
        manifest = open_folder(self.folder)
        for runtime in self.runtimes:
            for key, form in manifest.forms.items():
                stale = form.integers and inputs and form.integers.inputs != inputs
                if form.target == runtime.form and self._wanted(runtime, form.plan) and not stale:
                    row = parity.get(name_of(runtime.name, form.plan))
                    self._judge_form(runtime, key, manifest, row, by_metric=by_metric)
        scores = {one.plan: one.score.value for one in self.candidates if one.score}
        values = {one.score.value for one in self.candidates if one.score}
        if by_metric and len(scores) > 1 and len(values) == 1:
            self.notes.append(
                f"the metric is {values.pop():.4g} in {' and '.join(scores)} alike: it does not tell them apart; more "
                "or harder items may"
            )

    def _wanted(self, runtime: Runtime, plan: str) -> bool:
        """Whether a precision was asked for, and the runtime has it here."""
        name = name_of(runtime.name, plan)
        able = plan in self.probed[runtime.name].plans and not PLANS[plan].weights  # those are for GPUs
        return able and any(key.covers(name) for key in self.keys)

    def _judge_form(
        self, runtime: Runtime, key: str, manifest: Manifest, parity: RuntimeParity | None, *, by_metric: bool
    ) -> None:
        """Makes a candidate of a form for each number of threads, refused where its numbers are not good enough."""
        form = manifest.forms[key]
        score: Score | None = None
        reference, fall = self.references.get(runtime.name), None
        if form.integers is not None:
            score, reference, fall = form.integers.score, form.integers.reference, form.integers.drop
        if self.beside is not None or (self.metric is not None and score is None):
            self.progress(f"scoring {name_of(runtime.name, form.plan)}")
            with self._open(runtime, form, manifest) as session:
                if self.metric is not None and score is None:
                    score = self.metric(session)
                    fall = drop(score, self.references[runtime.name])
                if self.beside is not None and score is not None:
                    same = self.beside(session)
                    score = replace(score, parts=same.parts, counts=same.counts)
        verdict, reason = "", form.integers.share if form.integers else ""
        if not form.integers and not by_metric and (parity is None or parity.verdict != "PASS"):
            verdict, reason = REFUSED, f"parity: {parity.reason if parity else 'not checked'}"
        if (by_metric or form.integers) and fall is not None and fall > self.max_drop:
            verdict, reason = REFUSED, f"the metric is worse by {fall:.2%}"
        model = self.folder / form.file
        files = (model, *(self.folder / name for name in external_files(base.read_graph(model))))
        found = Candidate(
            runtime.name,
            key,
            form.plan,
            0,
            verdict,
            reason,
            score,
            fall,
            reference if score else None,
            size_bytes=sum(file.stat().st_size for file in files),
        )
        self.candidates += [replace(found, threads=threads) for threads in self.threads]

    def _find(self, runtime: Runtime, data: Data, metric: Metric, inputs: str, left: int) -> None:
        """Writes the form of a runtime in integers, unless there is none that is faster and within the metric.

        Args:
            inputs: See `IntegerPlan`; a form that was judged by the same is not made again.
            left: For how many runtimes there has to be time, this one included.
        """
        manifest = open_folder(self.folder)
        lowering = lowerings.get(runtime.form)
        bits = 4 if decoder_roles(manifest.io) else 8  # reading weights is a decoder's work
        known = (plan for plan in lowering.integers if self._wanted(runtime, plan))
        plan = next((plan for plan in known if PLANS[plan].bits == bits), None)
        earlier = manifest.forms.get(lowering.form_key(plan)) if plan else None
        if plan is None or (earlier and earlier.integers and earlier.integers.inputs == inputs):
            return
        self.progress(f"{runtime.name}: {plan}")
        with tempfile.TemporaryDirectory(prefix="attnport-tune-") as scratch:
            opening = Opening(manifest.io, plan, threads=max(self.threads))
            graphs = Integers(self.folder, manifest, lowering, plan, runtime, opening, data.ranged, Path(scratch))
            if graphs.layers and (slower := self._slower(runtime, graphs, manifest)):
                self.notes.append(f"{runtime.name}: int{bits} was not searched: {slower}")
                return
            now_s = time.monotonic()
            found = plan_integers(
                graphs,
                metric,
                self.references[runtime.name],
                max_drop=self.max_drop,
                scored=len(data.scored),
                inputs=inputs,
                until_s=now_s + max(0.0, self.until_s - now_s) * (1 - _TIMED_SHARE) / left,
                progress=lambda step: self.progress(f"{runtime.name}, {step}"),
            )
            if isinstance(found, str):
                self.notes.append(f"{runtime.name}: no form in int{bits}: {found}")
                return
            write_own_golden(self.folder, graphs, found.kept, lowering.form_key(plan))
            fusing.fuse_form(self.folder, lowering, plan, found, graphs.rewrite, force=True, progress=self.progress)

    def _slower(self, runtime: Runtime, graphs: Integers, manifest: Manifest) -> str:
        """Why integers cannot be faster here: by a few calls with every layer in them, beside the other precisions."""
        plain = [form for form in manifest.forms.values() if form.target == runtime.form and form.plan not in INTEGERS]
        plain = [form for form in plain if form.plan in self.probed[runtime.name].plans]
        with contextlib.ExitStack() as stack:
            sides = {form.plan: stack.enter_context(self._open(runtime, form, manifest)) for form in plain}
            sides["integers"] = stack.enter_context(graphs.open(()))
            ratios = []
            for workload in self.workloads:
                times: dict[str, list[float]] = {name: [] for name in sides}
                for _ in range(_CALLS):
                    for name, session in sides.items():
                        began = time.perf_counter()
                        session.run(workload.feeds)
                        times[name].append(time.perf_counter() - began)
                medians = {name: median(taken) for name, taken in times.items()}
                ratios.append(medians.pop("integers") / min(medians.values()))
        if (least := min(ratios)) < 1:
            return ""
        return f"with every layer in int{graphs.bits} it takes {least:.2f} of the fastest plainer precision"

    def _open(self, runtime: Runtime, form: Form, manifest: Manifest) -> contextlib.closing[Session]:
        opening = Opening(manifest.io, form.plan, self.folder / form.file, threads=max(self.threads))
        return contextlib.closing(runtime.open(opening))

    def finish(self, digest: str) -> TuneReport:
        """Times the candidates, chooses, removes the forms in integers that lost, and writes the report.

        What was not asked for stays, with its line of an earlier report.
        """
        latency = self._timed() if any(not one.verdict for one in self.candidates) else {}
        timed = [self._with_times(one, latency.get(one.threads)) for one in self.candidates]
        candidates = rank(timed, latency)
        with change(self.folder) as edit:
            forms = edit.manifest.forms
            before = if_whole(read_report, TuneReport, self.folder, edit.manifest, FILE)
            earlier = tuple(self._earlier(before, edit.manifest))
            if before and before.chosen and before.chosen.form in {one.form for one in earlier}:
                self.notes.append(
                    f"{before.chosen.form} was chosen before, and was not asked for now: bundle takes what is chosen "
                    f"now, or that one with --form {before.chosen.form}"
                )
            report = TuneReport(
                metric=self.metric.name if self.metric else "",
                max_drop=self.max_drop,
                candidates=(*candidates, *earlier),
                latency=latency,
                notes=tuple(self.notes),
            )
            chosen = report.chosen.form if report.chosen else ""
            lost = [key for key, form in forms.items() if form.integers and key != chosen and self._tried(form)]
            fusing.drop_forms(edit, lost)
            if lost and GOLDEN in edit.manifest.files:
                check_files(self.folder, edit.manifest, GOLDEN)
                drop_own(lost, self.folder / GOLDEN, edit.path(GOLDEN))
            edit.write(FILE, report)
            edit.finish(STAGE, digest, extra=(forms[chosen].file,) if chosen else ())
        return report

    def _tried(self, form: Form) -> bool:
        """Whether this run was asked to judge a form, and could."""
        return any(form.target == one.form and self._wanted(one, form.plan) for one in self.runtimes)

    def _earlier(self, report: TuneReport | None, manifest: Manifest) -> Iterator[Candidate]:
        """What earlier runs found of forms that this one was not asked for and that are still there, which stay."""
        for one in report.candidates if report else ():
            form = manifest.forms.get(one.form)
            if form is None or self._tried(form):
                continue
            if one.verdict != EARLIER:
                share = form.integers.share if form.integers else ""
                told = f"not asked for now; {one.verdict} in an earlier run, which its times are of"
                one = replace(one, verdict=EARLIER, reason="; ".join(filter(None, (share, told))))
            if self.metric is None or report is None or report.metric != self.metric.name:
                one = replace(one, score=None, drop=None, reference=None)
            yield one

    def _timed(self) -> dict[int, LatencyReport]:
        """The latency of every candidate that is not refused, for each number of threads in a run of its own."""
        manifest, found = open_folder(self.folder), {}
        able = {BASELINE, *(name_of(one.runtime, one.plan) for one in self.candidates if not one.verdict)}
        for number, threads in enumerate(self.threads):
            budget_s = max(_LEAST_S, (self.until_s - time.monotonic()) / (len(self.threads) - number))
            effort = Effort(threads, budget_s, seed=self.seed)
            every = [*self.runtimes, base.get(BASELINE)]
            timed = subjects(every, self.probed, self.folder, manifest, threads)
            timed = {name: subject for name, subject in timed.items() if name in able}
            with tempfile.TemporaryDirectory(prefix="attnport-tune-") as scratch:
                run = Measuring(self.folder, manifest, timed, self.workloads, effort, Path(scratch), self.progress)
                found[threads] = run.report({"threads": threads, "seed": self.seed})
        return found

    def _with_times(self, one: Candidate, latency: LatencyReport | None) -> Candidate:
        if one.verdict or latency is None:
            return one
        rows = {shape: rows[name_of(one.runtime, one.plan)] for shape, rows in latency.shapes.items()}
        ms = {shape: row.median_ns / 1e6 for shape, row in rows.items() if row.median_ns is not None}
        if len(ms) < len(rows):
            why = next(row.reason for row in rows.values() if row.kind)
            return replace(one, verdict=NOT_RUN, reason=why)
        return replace(one, ms=ms)
