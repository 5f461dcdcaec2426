"""What `attnport check` does with an open folder: measure every runtime and form, then judge them all.

Measuring comes first for all, since the bound asks for eager's largest error over every case that anyone ran: its
errors at each precision are what others are judged by.

A GPU makes the float64 reference in slices of one batch item, since a processor would take the longest part of the
time for it. The reference is itself compared with the processor's on the first case. See ADR 11.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import (
    AUTO,
    INTEGERS,
    PLANS,
    Capabilities,
    CaseResult,
    Form,
    IOContract,
    Manifest,
    ModelSpec,
    ParityReport,
    RuntimeParity,
    Session,
)
from attnport.cases.choosing import of_all_tokens
from attnport.cases.inputs import Array, Case, batch_dim, cases, untried
from attnport.dims import TensorSpec
from attnport.errors import ArtifactError, BundleError, IntegrityError, ParityFailed, UnavailableError, whole_cause
from attnport.exporter.targets import base as lowerings
from attnport.folder.portable import portable
from attnport.folder.workspace import MODEL, by_metric, graph_digest, to_open
from attnport.masks import MaskSpec
from attnport.options import advised
from attnport.parities import OPPOSITE
from attnport.parity import bound as parity
from attnport.parity.evaluate import (
    Means,
    Progress,
    References,
    SessionErrors,
    make_references,
    measure_items,
    measure_session,
)
from attnport.parity.invariance import ON_THE_LEFT, Spread, not_tried, untold
from attnport.processes.isolated import ChildError, IsolatedSession, reason_of_failure
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime
from attnport.sources.parsing import text_of
from attnport.sources.structure import Input, Leaf
from attnport_bundle.feeds import check_shapes

EAGER = "torch_eager"
EAGER_ON_GPU = "torch_eager_cuda"
DRAWS = 32
"""How often eager is run again at most, where a result is over its bound: see docs/adr/0017."""


@dataclass
class Eager:
    """PyTorch eager, run when it is asked for.

    Attributes:
        io: The contract of `spec`.
        cases: Every case; the references of those that are run are in `store`.
        runtime: The name of the runtime that is eager on this device.
        items: How many batch items are also run alone and with more padding, in float32.
    """

    io: IOContract
    spec: ModelSpec
    cases: Sequence[Case]
    store: References
    threads: int | None
    progress: Progress
    runtime: str = EAGER
    items: int = 1 << 30

    def __post_init__(self) -> None:
        self._found: dict[str, SessionErrors] = {}
        self._worst: dict[str, dict[str, dict[str, parity.Errors]]] = {}
        self._draws: dict[tuple[str, str], int] = {}

    @contextlib.contextmanager
    def session(
        self,
        plan: str,
        *,
        float64: bool = False,
        step_by_step: bool = False,
        nudged: int | None = None,
    ) -> Iterator[Session]:
        """The module, opened at a plan; the arguments are those of `Opening`. On a GPU in float64, item by item."""
        given = Opening(of_all_tokens(self.io), plan=plan, spec=self.spec, threads=self.threads, contract=True)
        opening = replace(given, float64=float64, step_by_step=step_by_step, nudged=nudged)
        with contextlib.closing(base.get(self.runtime).open(opening)) as session:
            yield Sliced(session, self.io) if float64 and self.runtime != EAGER else session

    @property
    def extremes(self) -> list[str]:
        """The cases with extreme values."""
        return [case.name for case in self.cases if case.group == "extremes"]

    @functools.cached_property
    def _module(self) -> Any:
        """Made once for all draws, since some modules are read from a disk; a session copies what it changes."""
        return self.spec.make()

    def measured(self, plan: str, names: Collection[str] | None = None) -> SessionErrors:
        """Eager's errors on the named cases, or on all, and on whichever it had before; each is run once."""
        had = self._found.get(plan)
        asked = {case.name for case in self.cases} if names is None else set(names)
        todo = [case for case in self.cases if case.name in asked and not (had and case.name in had.errors)]
        if todo:
            items = self.items if plan == "fp32" else 0
            with self._own_way(plan) as session:
                found = measure_session(session, self.io, todo, self.store, self._saying(plan), items=items)
            self._found[plan] = replace(had, errors={**had.errors, **found.errors}) if had else found
            self._worst.setdefault(plan, {}).update(found.errors)
        return self._found[plan]

    def yardstick(self, plan: str) -> parity.Yardstick:
        """The bounds at a plan, by the errors on every case that was measured."""
        if plan == AUTO:
            return parity.Yardstick.of_auto(self._worst["fp16"], self._worst[AUTO], self.extremes)
        return parity.Yardstick(plan, self._worst[plan], self.extremes)

    def judged(self, plan: str, found: parity.ByCase, left_out: Collection[tuple[str, str]] = ()) -> list[CaseResult]:
        """The verdicts of another's errors, on cases that were measured; `left_out` are cases and outputs.

        Where a result is over its bound, eager is run again on that case until it is not, or `DRAWS` times: one run is
        a single draw of what rounding does there. Where it is farther off than rounding explains, `parity.JUMPS` times.
        """
        while True:
            by = self.yardstick(plan)
            results = [
                parity.judge(case, output, errors, by)
                for case, by_output in found.items()
                for output, errors in by_output.items()
                if (case, output) not in left_out
            ]
            over = {
                result.case
                for result in results
                if (result.used or 0.0) > 1
                and self._draws.get((plan, result.case), 0)
                < (DRAWS if parity.within_rounding(result) else parity.JUMPS)
                and by.errors(result.case, result.output).rms is not None
            }
            drawn = [self.draw(each, over) for each in (("fp16", AUTO) if plan == AUTO else (plan,))]
            if not any(drawn):
                return results

    def notes(self) -> list[str]:
        """The cases that have no bound, and those whose bounds are by more than one run of eager."""
        found = [self._without_bound(plan) for plan in self._found if plan != AUTO]  # auto's are those of fp16
        by_plan: dict[str, list[str]] = {}
        for (plan, case), count in sorted(self._draws.items()):
            by_plan.setdefault(plan, []).append(f"{case} ({count})")
        if by_plan:
            cases = "; ".join(f"{plan}, {', '.join(names)}" for plan, names in by_plan.items())
            found.append(
                "where a result was over its bound, PyTorch was run again with weights and inputs rounded otherwise "
                f"and equal elements sorted otherwise, and the worst of its runs counts; more runs: {cases}"
            )
        return [*filter(None, found)]

    def _without_bound(self, plan: str) -> str:
        """The extreme cases in which eager has no finite result at a plan, so that nothing is judged there; "" = none.

        What has no finite result in usual cases fails, see `bound.judge`.
        """
        measured = self._found[plan].errors
        beyond = [
            case
            for case in self.extremes
            if any(one.elements and one.rms is None and not one.raised for one in measured.get(case, {}).values())
        ]
        if not beyond:
            return ""
        search = f"; --precision {plan} --bisect names the module that overflows first" if PLANS[plan].half else ""
        return (
            f"{plan} has no finite result in the case{'s' * (len(beyond) > 1)} {', '.join(map(repr, beyond))}, in "
            f"PyTorch either, so nothing was judged there{search}"
        )

    def redrawn(self) -> dict[str, parity.ByCase]:
        """The worst errors on the cases that were run more than once, by plan, case and output."""
        found: dict[str, dict[str, Mapping[str, parity.Errors]]] = {}
        for plan, case in self._draws:
            found.setdefault(plan, {})[case] = self._worst[plan][case]
        return dict(found)

    def _own_way(self, plan: str, nudged: int | None = None) -> contextlib.AbstractContextManager[Session]:
        """Attention in half precision step by step, also where the module casts itself: its one kernel keeps the scores
        in float32, which a graph that is run node by node does not."""
        return self.session(plan, step_by_step=True, nudged=nudged)

    def draw(self, plan: str, names: Collection[str]) -> bool:
        """Runs eager once more on cases, with weights and inputs moved by one rounding; keeps the larger errors.

        Returns:
            Whether any case had fewer than `DRAWS` such runs.
        """
        drawn = {name: self._draws.get((plan, name), 0) for name in names}
        number = min(drawn.values(), default=DRAWS)
        if number == DRAWS:
            return False
        todo = [case for case in self.cases if drawn.get(case.name) == number]
        once = replace(self, spec=replace(self.spec, make=lambda: self._module))
        with once._own_way(plan, nudged=number) as session:
            label = self._saying(f"{plan}, draw {number + 1} of at most {DRAWS}")
            errors = measure_session(session, self.io, todo, self.store, label).errors
        kept = self._worst[plan]
        for case, by_output in errors.items():
            kept[case] = {name: parity.worse(kept[case][name], error) for name, error in by_output.items()}
            self._draws[plan, case] = number + 1
        return True

    def _saying(self, label: str) -> Progress:
        return lambda message: self.progress(f"{self.runtime} {label}: {message}")


class Sliced:
    """A session that is given one batch item after the other: in float64 a whole batch of scores may not fit.

    Attributes:
        undefined: As of a session of PyTorch eager, for the last call.
        gave_numbers: The same.
    """

    def __init__(self, session: Session, io: IOContract) -> None:
        self._session, self._io, self.ran = session, io, session.ran
        self.undefined: frozenset[str] = frozenset()
        self.gave_numbers = False
        batch = batch_dim(io)
        self._batch = batch if all(batch in spec.dims for spec in io.outputs) else None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, as of the whole batch where no item sees another."""
        batch = self._batch
        axes = {
            spec.name: spec.dims.index(batch) for spec in self._io.inputs if batch is not None and batch in spec.dims
        }
        counts = {feeds[name].shape[axis] for name, axis in axes.items()}
        self.undefined, self.gave_numbers = frozenset(), False
        if batch is None or len(counts) != 1 or counts == {1}:
            return self._ran(feeds)
        parts = []
        for item in range(counts.pop()):
            taken = {name: feeds[name].take([item], axis) for name, axis in axes.items()}
            parts.append(self._ran({**feeds, **taken}))
        return {
            spec.name: np.concatenate([part[spec.name] for part in parts], spec.dims.index(batch))
            for spec in self._io.outputs
        }

    def _ran(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self._session.run(feeds)
        self.undefined |= getattr(self._session, "undefined", frozenset())
        self.gave_numbers |= getattr(self._session, "gave_numbers", False)
        return outputs

    def close(self) -> None:
        """Closes the session."""
        self._session.close()


FAST_EVALUATOR, TYPED_EVALUATOR = "ort_cpu", "onnx_reference"

# The evaluator is slow. It gets every case of the contract, and of the sentences one batch; in a thorough check as
# many as hold so many tokens: all of a few hundred sentences, part of a book.
_SLOW_TOKENS, _SLOW_HALF_TOKENS = 20_000, 10_000
# A mask that leaks does so for each item. In a thorough check every item is run on the runtimes; forms are asked for an
# item or so of each batch there too.
_FEW_ITEMS, _ALL_ITEMS = 8, 1 << 30
_UNTOLD = "rows of an item are not told by the size"


@dataclass
class _Measured:
    """A runtime or form that was run, to be judged when all are."""

    plan: str
    found: SessionErrors
    note: str = ""
    as_exported: bool = False
    model: Path | None = None
    on_gpu: bool = False


AS_THE_MODULE = "as in the module itself"
"""In the reason of a result that is not finite where the unchanged module is not."""
_MOST_NAMED = 4
"""Results that a note names."""
AGREES = 1e-9
"""Two float64 runs of one module, as a share of the RMS of the result: their rounding, through many layers."""


@dataclass(frozen=True)
class Wanted:
    """What a comparison is of.

    Attributes:
        plan: The precision plan of every row, with modules cast to it; None = each form's own, and modules in fp32.
            Forms and engines of other plans are not in the manifest then.
        eager: The runtime that makes the reference, and whose error bounds that of the others.
        bundle: The bundle that the runtime `bundle` opens.
        thorough: Whether every item of a batch is run alone and with more padding too.
    """

    plan: str | None = None
    eager: str = EAGER
    bundle: Path | None = None
    thorough: bool = False


@dataclass
class Comparison:
    """One run of the verb: what it has to work with."""

    folder: Path
    manifest: Manifest
    spec: ModelSpec
    cases: list[Case]
    probed: dict[str, Capabilities]
    store: References
    wanted: Wanted = Wanted()
    means: Means = field(default_factory=Means)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.io: IOContract = self.manifest.io
        self._items = _ALL_ITEMS if self.wanted.thorough else _FEW_ITEMS
        self._processor = Eager(
            self.io,
            self.spec,
            self.cases,
            self.store,
            threads=self.means.threads,
            progress=self.means.progress,
            items=self._items,
        )
        self._eager_on_gpu = replace(self._processor, runtime=EAGER_ON_GPU)
        self.eager = self._processor if self.wanted.eager == EAGER else self._eager_on_gpu
        self._graphs: dict[tuple[str, str, str], tuple[str, _Measured]] = {}
        self._passed: dict[tuple[Path, str], tuple[str, _Measured]] = {}
        self._referred = False
        self._moved: frozenset[tuple[str, str]] = frozenset()
        self._not_compared: dict[tuple[str, str], Spread] = {}

    def report(self, chosen: Sequence[Runtime], forms: Mapping[str, Form]) -> ParityReport:
        """Everything, in order: the reference, runtimes, forms of the artifact, verdicts.

        Raises:
            ParityFailed: the reference of a GPU is not what the processor computes.
        """
        runtimes: dict[str, RuntimeParity | _Measured] = {}
        for runtime in chosen:
            runtimes.update(self._runtime(runtime))
        if any(isinstance(row, _Measured) for row in runtimes.values()):
            self._measure_eager(runtimes.values())
        for name, row in runtimes.items():
            if isinstance(row, _Measured) and row.model is not None and self._judged(row).verdict == "PASS":
                self._passed[row.model, row.plan] = name, row
        graphs = {name: self._form(name, form) for name, form in forms.items()}
        measured = [row for row in (*runtimes.values(), *graphs.values()) if isinstance(row, _Measured)]
        if measured:
            own = self._measure_eager(measured)
            self.notes += self.eager.notes()
            if self._eager_on_gpu is not self.eager:
                self.notes += self._eager_on_gpu.notes()
            if self._moved:
                self.notes.append(
                    "padding on the left moves the module's own rows, as positions do, and is not compared"
                )
            self.notes += self._padding_notes(own)
            self.notes += untried(self.io)
        return parity.report(
            {name: self._judged(tried) for name, tried in runtimes.items()},
            {name: self._judged_graph(forms[name], tried) for name, tried in graphs.items()},
            self.notes,
        )

    def _refer(self) -> None:
        """Makes the float64 references, once, before the first session is measured by them."""
        if self._referred:
            return
        self._referred = True
        if self.eager is not self._processor:
            self._check_reference()
        with self.eager.session("fp32", float64=True) as session:
            self.notes += make_references(session, self.io, self.cases, self.store, self.means.progress)
        if undefined := sorted(self.store.undefined):
            several = len(self.io.outputs) > 1
            named = [f"{case}, {output}" if several else case for case, output in undefined]
            more = f"; {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            self.notes.append(
                f"the module itself gives NaN or Inf ({'; '.join(named[:_MOST_NAMED])}{more}): a softmax of nothing "
                f"but -inf is NaN, as in {self._rows_without_key()}. There forms are judged by what the module gives "
                "if such rows of attention are zero"
            )
        if left := sorted(self.store.without_empty):
            self.notes.append(
                "items whose keys are all hidden are not compared, as they hold padding alone, and forms may give "
                f"other numbers there than the module: {', '.join(left)}"
            )

    def _measure_eager(self, rows: Iterable[RuntimeParity | _Measured]) -> SessionErrors:
        """Measures what the results of these rows are judged by; returns PyTorch eager's errors in float32."""
        every = [row for row in rows if isinstance(row, _Measured)]
        for tried in every:
            for plan in ("fp16", AUTO) if tried.plan == AUTO else (tried.plan,):
                self._measure_yardstick(tried, plan)
        for tried in every:
            self._results(tried)  # for the bounds: all are judged by the same, after the last that needs another run
        single = {name for tried in every if tried.plan == "fp32" for name in tried.found.errors}
        own = self.eager.measured("fp32", single or None)
        self._moved, self._not_compared = self._moves(own)
        return own

    def _check_reference(self) -> None:
        """Raises ParityFailed where the float64 run of the device is not that of the processor."""
        case = self.cases[0]
        with self._processor.session("fp32", float64=True) as session:
            expected = session.run(case.feeds)
        with self.eager.session("fp32", float64=True) as session:
            got, device = session.run(case.feeds), session.ran.device
        for name, array in expected.items():
            error = float(np.abs(np.asarray(got[name], np.float64) - array).max(initial=0.0))
            scale = float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
            if not error <= AGREES * scale:
                raise ParityFailed(
                    f"float64 on {device} is not the processor's: {name} of {case.name} differs by up to "
                    f"{error:.2e}; expected at most {AGREES:.0e} of {scale:.2e}.",
                    hint="Nothing can be judged by it: look at the driver, the memory and PyTorch's build. A module "
                    "whose batch items see each other cannot be judged there either: it is run one item at a time.",
                )

    def _runtime(self, runtime: Runtime) -> dict[str, RuntimeParity | _Measured]:
        """The rows of a runtime, one for each precision that it opens something in."""
        name, plan = runtime.name, self.wanted.plan or "fp32"
        place = self.folder, self.manifest, self.means.threads, self.wanted.plan, self.wanted.bundle
        openings = to_open(runtime, self.probed[name], *place, spec=self.spec, contract=True)
        if isinstance(openings, str):
            return {name: self._not_run(openings, plan)}
        if name == self.wanted.eager:
            self._refer()
            return {name: _Measured(plan, self.eager.measured(plan), "PyTorch eager, the yardstick of the others")}
        forms = {self.folder / form.file: form for form in self.manifest.forms.values() if form.integers}
        rows: dict[str, RuntimeParity | _Measured] = {}
        for key, opening in openings.items():
            form = forms.get(opening.model) if opening.model else None
            if form is None and opening.plan in INTEGERS:
                rows[key] = self._not_run("an engine in integers is compared by the selftest of a bundle", opening.plan)
                continue
            rows[key] = by_metric(form) if form else self._measured(runtime, opening)
        return rows

    def _form(self, name: str, form: Form) -> RuntimeParity | _Measured:
        """Graph parity: a form run numerically without its target, unless a runtime that opens it passes all cases."""
        if self.eager is not self._processor:
            return self._not_run(f"graphs are not run without their target where {self.wanted.eager} judges", form.plan)
        plan = lowerings.get(form.target).graph_plan(form.plan)
        if passed := self._passed.get((self.folder / form.file, plan)):
            runtime_name, row = passed
            return replace(row, note=f"this is what {runtime_name} opens, and ran", as_exported=False)
        if form.integers:
            return by_metric(form)
        opening = Opening(self.io, plan=plan, model=self.folder / form.file, threads=self.means.threads)
        refused: list[str] = []
        for runtime in self._evaluators(form, plan):
            if not self.probed[runtime.name].available:
                refused.append(f"{runtime.name}: {self.probed[runtime.name].reason}")
                continue
            graph = (runtime.name, plan, graph_digest(self.folder, self.manifest, form.file))
            if graph in self._graphs:
                first, tried = self._graphs[graph]
                return _Measured(
                    tried.plan, tried.found, f"{tried.note}, once for this and {first}: the graphs are equal"
                )
            problem = self._refusal(runtime, opening) if runtime.name == FAST_EVALUATOR else ""
            if problem:
                refused.append(f"{runtime.name} refuses it: {problem}")
                continue
            note = f"graph run by {runtime.name}" + (f" ({'; '.join(refused)})" if refused else "")
            found = self._measured(runtime, opening, note)
            if isinstance(found, _Measured):
                self._graphs[graph] = name, found
            return found
        return self._not_run(f"no evaluator can run it: {'; '.join(refused) or 'none is left'}", plan)

    def _evaluators(self, form: Form, plan: str) -> list[Runtime]:
        """What may stand in for a form's own target, the fast one first; only the other computes at declared types."""
        names = [TYPED_EVALUATOR] if plan != "fp32" else [FAST_EVALUATOR, TYPED_EVALUATOR]
        return [runtime for runtime in map(base.get, names) if form.target not in (runtime.name, runtime.form)]

    def _refusal(self, runtime: Runtime, opening: Opening) -> str:
        """Why a runtime cannot run a form that was not made for it; "" when it can."""
        try:
            with contextlib.closing(runtime.open(opening)) as session:
                for case in self.cases[:2]:  # the first has one token, of which every mask is as long as the queries
                    session.run(case.feeds)
        except IntegrityError:
            raise
        except Exception as err:  # also a runtime's own exceptions: whatever it says, it does not take the form
            return whole_cause(err)
        return ""

    def _measured(self, runtime: Runtime, opening: Opening, form_note: str = "") -> RuntimeParity | _Measured:
        """Runs a session over the cases; `form_note` says that it stands in for a form's own target."""
        self._refer()
        tried, notes = self.cases, [form_note] if form_note else []
        if not runtime.timed:
            tokens = 0 if not self.wanted.thorough else _SLOW_TOKENS if opening.plan == "fp32" else _SLOW_HALF_TOKENS
            tried, left_out = few_sentences(self.cases, tokens)
            if left_out:
                total = sum(case.group == "text" for case in self.cases)
                notes.append(f"{total - left_out} of {total} batches of sentences, since this evaluator is slow")
        items = _FEW_ITEMS if form_note or not runtime.timed else self._items
        label = opening.model.name if opening.model and form_note else runtime.name
        saying = self._saying(label)
        saying("opening")  # which is compiling, for some
        try:
            # A form that runs without its target does so here: its evaluators are in this process anyway.
            with self._opened(runtime, opening, here=bool(form_note)) as session:
                found = measure_session(session, self.io, tried, self.store, saying, items=items)
        except IntegrityError:
            raise
        except (ChildError, MemoryError) as err:
            return replace(self._not_run(reason_of_failure(err), opening.plan), kind="died")
        except UnavailableError as err:
            return self._not_run(err.message, opening.plan)
        except (ArtifactError, BundleError) as err:
            return RuntimeParity("FAIL", portable(f"it cannot be opened: {err.message}", self.folder), opening.plan)
        as_exported = opening.model in (None, self.folder / MODEL)
        return _Measured(opening.plan, found, "; ".join(notes), as_exported, opening.model, runtime.gpu)

    def _not_run(self, reason: str, plan: str) -> RuntimeParity:
        return RuntimeParity("NOT_RUN", portable(reason, self.folder), plan, kind="unavailable")

    def _judged(self, tried: RuntimeParity | _Measured) -> RuntimeParity:
        if isinstance(tried, RuntimeParity):
            return tried
        results, by = self._results(tried), self._yardstick_of(tried).yardstick(tried.plan)
        notes = [tried.note] if tried.note else []
        if missing := sum(map(len, tried.found.errors.values())) - len(results):
            notes.append(f"{missing} results left out, in which the module itself gives NaN or Inf")
        found = tried.found.spreads
        left_out = self._moved | self._not_compared.keys()
        kept = {key: one for key, one in found.items() if key not in left_out}
        pairs = parity.judge_invariance(kept, by, tried.found.compared)
        if found:
            pairs += [parity.not_compared(*key, str(spread)) for key, spread in self._not_compared.items()]
            pairs += [parity.not_compared(_UNTOLD, spec.name) for spec in untold(self.io)]
        return parity.conclude(by, tried.found.ran, results, pairs, "; ".join(notes), self._sizes())

    def _judged_graph(self, form: Form, tried: RuntimeParity | _Measured) -> RuntimeParity:
        """The verdict of a form's graph.

        One whose runtime cannot run here is NOT_RUN where PyTorch itself overflows in its precision on usual values:
        the module has no such precision, which is told, and no reason to fail what was not asked for it.
        """
        row = self._judged(tried)
        if isinstance(tried, RuntimeParity) or row.verdict != "FAIL" or self.wanted.plan or self._runs_here(form):
            return row
        by = self._yardstick_of(tried).yardstick(tried.plan)
        beyond = [one for one in row.cases if one.case not in by.extremes and by.errors(one.case, one.output).nonfinite]
        if not beyond:
            return row
        reason = (
            f"PyTorch itself overflows in {row.plan} in {len(beyond)} of {len(row.cases)} results, as in the case "
            f"{beyond[0].case}, so the module is not for {row.plan}, and what runs this form is not on this machine"
        )
        cases = tuple(replace(one, verdict="NOT_RUN") if one.verdict == "FAIL" else one for one in row.cases)
        pairs = tuple(replace(one, verdict="NOT_RUN") if one.verdict == "FAIL" else one for one in row.invariance)
        return replace(row, verdict="NOT_RUN", reason=reason, kind="no bound", cases=cases, invariance=pairs)

    def _runs_here(self, form: Form) -> bool:
        return any(found.available and base.get(name).form == form.target for name, found in self.probed.items())

    def _sizes(self) -> dict[str, str]:
        """By case, the sizes of its dims in words."""
        io = of_all_tokens(self.io)
        found = {case.name: check_shapes(io, case.feeds) for case in self.cases}
        return {case: ", ".join(f"{dim}={size}" for dim, size in sizes.items()) for case, sizes in found.items()}

    def _results(self, tried: _Measured) -> list[CaseResult]:
        # What was exported, or is the module, gives NaN where the module does; forms give numbers there.
        eager = self._yardstick_of(tried)
        results = eager.judged(tried.plan, tried.found.errors, self.store.undefined if tried.as_exported else ())
        why = f"{AS_THE_MODULE}: in {self._rows_without_key()} all scores are -inf, of which softmax is NaN"
        by = eager.yardstick(tried.plan)

        def as_the_module(one: CaseResult) -> bool:
            """Whether a form has NaN where the module has, and PyTorch has none if rows without a key are zero."""
            place, finite = (one.case, one.output), by.errors(one.case, one.output).rms is not None
            return finite and place in self.store.undefined and one.census is not None and one.census.total > 0

        return [replace(one, reason=f"{one.reason}, {why}") if as_the_module(one) else one for one in results]

    def _rows_without_key(self) -> str:
        masks = dict.fromkeys(mask.input for mask in self.io.masks if mask.input)
        return f"rows without a key under {' and '.join(masks)}" if masks else "rows without a key"

    def _measure_yardstick(self, tried: _Measured, plan: str) -> None:
        """Measures eager where `tried` ran, or on the processor where the GPU is too small for eager."""
        try:
            self._yardstick_of(tried).measured(plan, list(tried.found.errors))
        except (MemoryError, UnavailableError) as err:
            if self._yardstick_of(tried) is self.eager:
                raise
            self._eager_on_gpu = self.eager
            self.notes.append(f"{EAGER_ON_GPU} cannot be run, so the processor's bound stands for the GPU: {err}")
            self.eager.measured(plan, list(tried.found.errors))

    def _yardstick_of(self, tried: _Measured) -> Eager:
        """Whose errors bound these: in half precision on a GPU those of PyTorch there, which rounds otherwise."""
        judge = self.probed.get(EAGER_ON_GPU)
        able = judge is not None and judge.available and tried.plan in judge.plans
        return self._eager_on_gpu if tried.on_gpu and able and tried.plan != "fp32" else self.eager

    def _moves(self, own: SessionErrors) -> tuple[frozenset[tuple[str, str]], dict[tuple[str, str], Spread]]:
        """Comparisons and outputs in which the module's own rows change, so that no runtime is judged by them.

        Returns:
            Those of padding on the left where nothing else moves rows: the module has positions, declared or not. And
            all others, each with the change; but none if a mask has the opposite meaning of what is declared.
        """
        changed: dict[tuple[str, str], Spread] = {}
        for key, spread in own.spreads.items():
            (pair,) = parity.judge_invariance({key: spread}, self.eager.yardstick("fp32"), own.compared)
            if pair.verdict != "PASS":
                changed[key] = spread
        by_size = {key: spread for key, spread in changed.items() if key[1] in own.by_size}
        names = {name for name, output in changed.keys() - by_size.keys()}
        if all(name.startswith(ON_THE_LEFT) for name in names):
            return frozenset(key for key in own.spreads if key[0] in names), by_size
        opposite = self._opposite_masks()
        if opposite:
            specs = {spec.name: spec for spec in self.io.inputs}
            right = advised("inputs", [_declared(specs[str(mask.input)], mask) for mask in opposite])
            taken = ", ".join(str(mask.input) for mask in opposite)
            self.notes.append(f"the module takes {taken} {OPPOSITE}: with {right}, padding changes no valid row")
        return frozenset(), {} if opposite else changed

    def _opposite_masks(self) -> list[MaskSpec]:
        """The padding masks of one meaning that the module takes in the other, as such: so padding changes no row."""
        turned = {"keep": "hide", "hide": "keep"}
        masks = [mask for mask in self.io.padding_masks() if mask.carries == "mask" and mask.polarity in turned]
        other = {mask: replace(mask, polarity=turned[mask.polarity]) for mask in masks}
        io = replace(self.io, masks=tuple(other.get(mask, mask) for mask in self.io.masks))
        padded = next((case for case in cases(io) if case.name == "right padding"), None)
        if padded is None or not masks:
            return []
        with self.eager.session("fp32") as session:
            found = SessionErrors(session.ran)
            measure_items(session, io, padded, session.run(padded.feeds), found, _FEW_ITEMS)
        spreads = {key: one for key, one in found.spreads.items() if not key[0].startswith(ON_THE_LEFT)}
        pairs = parity.judge_invariance(spreads, self.eager.yardstick("fp32"), [padded.name])
        passed = pairs and all(pair.verdict == "PASS" for pair in pairs)
        return list(other.values()) if passed else []

    def _padding_notes(self, own: SessionErrors) -> list[str]:
        """What was not compared with other padding, and why."""
        if not own.spreads:
            return [f"padding invariance was not compared: {not_tried(self.io)}"]
        changed: dict[str, Spread] = {}
        for (_, output), spread in self._not_compared.items():
            changed[output] = max(changed.get(output, spread), spread, key=lambda each: each.largest)
        names = " and ".join(dict.fromkeys(str(mask.input) for mask in self.io.padding_masks()))
        notes = [
            f"{output}: padding beside an item changes its rows in the module itself, {spread}: the module does not "
            f"honour {names}, which is declared as a mask of padding. A runtime that computes the same passes, and "
            "these rows are not compared with other padding"
            + (
                "; they are taken to be the first rows, as many as the output's size gives for the item's length"
                if output in own.by_size
                else ""
            )
            for output, spread in changed.items()
        ]
        if specs := untold(self.io):
            named = ", ".join(map(str, specs))
            notes.append(f"not compared with other padding, as sizes say not which rows are an item's: {named}")
        return notes

    def _opened(self, runtime: Runtime, opening: Opening, *, here: bool) -> contextlib.closing[Session]:
        """A session, in a process of its own where the runtime gets one and is not to be opened here."""
        if here or not (runtime.isolated or self.means.limits.every):
            return contextlib.closing(runtime.open(opening))
        session: Session = IsolatedSession(runtime, opening, self.folder, self.manifest, self.means.limits)
        return contextlib.closing(session)

    def _saying(self, label: str) -> Progress:
        return lambda message: self.means.progress(f"{label}: {message}")


def _declared(spec: TensorSpec, mask: MaskSpec) -> str:
    """How a mask is declared, with its polarity also where that is the usual one."""
    text = text_of(Leaf((spec.name,), Input(spec, mask)))
    return text if f":{mask.polarity}" in text else f"{text}:{mask.polarity}"


def few_sentences(tried: Sequence[Case], tokens: int) -> tuple[list[Case], int]:
    """All cases, but of the sentences only batches of about usual size, up to `tokens` (padding counted) of them.

    Returns:
        The cases, and how many batches are left out; one batch always stays.
    """
    sizes = {case.name: max(array.size for array in case.feeds.values()) for case in tried if case.group == "text"}
    if not sizes:
        return list(tried), 0
    middle = sorted(sizes.values())[len(sizes) // 2]
    kept: set[str] = set()
    for name in sorted(sizes, key=lambda name: abs(sizes[name] - middle)):
        if not kept or sum(sizes[one] for one in kept) + sizes[name] <= tokens:
            kept.add(name)
    return [case for case in tried if case.group != "text" or case.name in kept], len(sizes) - len(kept)
