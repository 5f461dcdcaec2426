"""What `tune` does with an open folder: search integers, score, time, choose, and keep what was chosen."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

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
from attnport.cases.inputs import Case
from attnport.decoders import decoder_roles
from attnport.exporter.lowering import base as lowerings
from attnport.folder.openings import name_of
from attnport.folder.workspace import change, check_files, open_folder
from attnport.jsonfile import digest_text
from attnport.latency.choice import NOT_RUN, REFUSED, rank
from attnport.latency.measuring import BASELINE, Effort, Measuring
from attnport.latency.workloads import Workload
from attnport.parity.evaluate import Progress
from attnport.parity.finer import Integers, plan_integers
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import set_plan
from attnport.parity.scoring import Agreement, Metric, Perplexity, UserMetric
from attnport.runtimes import base
from attnport.runtimes.base import Key, Opening, Runtime
from attnport.verbs import fuse as fusing
from attnport.verbs.bench import subjects
from attnport.verbs.export import MODEL

STAGE, FILE = "tune", "tune.json"
_TIMED_SHARE = 0.4
_LEAST_S = 20.0
_CALLS = 7


@dataclass(frozen=True)
class Data:
    """What forms in integers are made and judged by: batches of one item each, for ranges and for the metric."""

    ranged: tuple[Case, ...]
    scored: tuple[Case, ...]


@dataclass
class Tuning:
    """One run of the verb."""

    folder: Path
    runtimes: Sequence[Runtime]
    probed: Mapping[str, Capabilities]
    threads: Sequence[int]
    max_drop: float
    data: Data | None
    workloads: Sequence[Workload]
    until_s: float
    seed: int
    progress: Progress
    keys: Sequence[Key]
    notes: list[str] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)

    def judge(self, parity: Mapping[str, RuntimeParity], metric: str | None) -> None:
        """Finds the forms in integers, and says of every form whether its numbers are good enough."""
        manifest = open_folder(self.folder)
        self.metric = self._metric(manifest, metric)
        self.references: dict[str, Score] = {}
        inputs = ""
        if self.data is None or self.metric is None:
            self.notes.append("integers were not tried: give sentences with --text, or many items with --inputs")
        else:
            arrays = [array for item in (*self.data.ranged, *self.data.scored) for array in item.feeds.values()]
            judged_by = manifest.files[MODEL], self.metric.name, str(self.max_drop)
            inputs = digest_text(*judged_by, *(repr(array.tobytes()) for array in arrays))
            for runtime in self.runtimes:
                with self._open(runtime, manifest.forms[runtime.form], manifest) as session:
                    self.references[runtime.name] = self.metric(session)
            for number, runtime in enumerate(self.runtimes):
                self._find(runtime, self.data, self.metric, inputs, len(self.runtimes) - number)
        manifest = open_folder(self.folder)
        for runtime in self.runtimes:
            for key, form in manifest.forms.items():
                stale = form.integers and inputs and form.integers.inputs != inputs
                if form.target == runtime.form and self._wanted(runtime, form.plan) and not stale:
                    row = parity.get(name_of(runtime.name, form.plan))
                    self._judge_form(runtime, key, manifest, row, by_metric=metric is not None)

    def _wanted(self, runtime: Runtime, plan: str) -> bool:
        """Whether a precision was asked for, and the runtime has it here."""
        name = name_of(runtime.name, plan)
        return plan in self.probed[runtime.name].plans and any(key.covers(name) for key in self.keys)

    def _metric(self, manifest: Manifest, metric: str | None) -> Metric | None:
        if self.data is None:
            return None
        if metric:
            return UserMetric(metric, self.folder, manifest)
        roles = decoder_roles(manifest.io)
        kind = Perplexity if roles and not roles.context else Agreement
        return kind(manifest.io, self.data.scored)

    def _judge_form(
        self, runtime: Runtime, key: str, manifest: Manifest, parity: RuntimeParity | None, *, by_metric: bool
    ) -> None:
        """Makes a candidate of a form for each number of threads, refused where its numbers are not good enough."""
        form, score, fall = manifest.forms[key], None, None
        if form.integers is not None:
            score, fall = form.integers.score, form.integers.drop
        elif self.metric is not None:
            self.progress(f"scoring {name_of(runtime.name, form.plan)}")
            with self._open(runtime, form, manifest) as session:
                score = self.metric(session)
            fall = drop(score, self.references[runtime.name])
        verdict, reason = "", form.integers.share if form.integers else ""
        if not form.integers and not by_metric and (parity is None or parity.verdict != "PASS"):
            verdict, reason = REFUSED, f"parity: {parity.reason if parity else 'not checked'}"
        if (by_metric or form.integers) and fall is not None and fall > self.max_drop:
            verdict, reason = REFUSED, f"the metric is worse by {fall:.2%}"
        self.candidates += [
            Candidate(runtime.name, key, form.plan, threads, verdict, reason, score, fall) for threads in self.threads
        ]

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
            graphs = Integers(self.folder, manifest, lowering, runtime, opening, data.ranged, Path(scratch))
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
        """Times the candidates, chooses, removes the forms in integers that lost, and writes the report."""
        latency = self._timed() if any(not one.verdict for one in self.candidates) else {}
        timed = [self._with_times(one, latency.get(one.threads)) for one in self.candidates]
        candidates = rank(timed, latency)
        report = TuneReport(
            metric=self.metric.name if self.metric else "",
            max_drop=self.max_drop,
            candidates=candidates,
            latency=latency,
            notes=tuple(self.notes),
        )
        manifest = open_folder(self.folder)
        best = report.chosen
        chosen = manifest.forms[best.form] if best else None
        if best and chosen and chosen.integers and GOLDEN in manifest.files:
            self._write_golden(base.get(best.runtime), chosen)
        with change(self.folder) as edit:
            fusing.drop_forms(
                edit, [key for key, form in edit.manifest.forms.items() if form.integers and form != chosen]
            )
            edit.write(FILE, report)
            edit.finish(STAGE, digest, extra=(chosen.file,) if chosen else ())
        return report

    def _write_golden(self, runtime: Runtime, form: Form) -> None:
        """Lets bundles judge the form; a change of its own, as `check` writes this file too."""
        with change(self.folder) as edit:
            check_files(self.folder, edit.manifest, GOLDEN)
            with self._open(runtime, form, edit.manifest) as session:
                set_plan(session, edit.manifest.io, form.plan, self.folder / GOLDEN, edit.path(GOLDEN))
            edit.finish(f"{STAGE}:golden", "")

    def _timed(self) -> dict[int, LatencyReport]:
        """The latency of every candidate that is not refused, for each number of threads in a run of its own."""
        manifest, found = open_folder(self.folder), {}
        refused = {name_of(one.runtime, one.plan) for one in self.candidates if one.verdict}
        for number, threads in enumerate(self.threads):
            budget_s = max(_LEAST_S, (self.until_s - time.monotonic()) / (len(self.threads) - number))
            effort = Effort(threads, budget_s, seed=self.seed)
            every = [*self.runtimes, base.get(BASELINE)]
            timed = subjects(every, self.probed, self.folder, manifest, threads)
            timed = {name: subject for name, subject in timed.items() if name not in refused}
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
            why = next(row.why.text for row in rows.values() if row.why)
            return replace(one, verdict=NOT_RUN, reason=why)
        return replace(one, ms=ms)
