"""What `attnport check` does with an open folder: measure every runtime and form, then judge them all.

Measuring comes first for all, since the bound asks for eager's largest error over every case that anyone ran.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attnport.artifacts import (
    AUTO,
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
from attnport.cases.decoding import of_all_tokens
from attnport.cases.inputs import Case, cases
from attnport.cases.sizes import untried
from attnport.errors import ArtifactError, BundleError, IntegrityError, ParityFailed, UnavailableError, whole_cause
from attnport.exporter.lowering import base as lowerings
from attnport.folder.openings import MODEL, graph_digest, model_openings, not_in, openings_at, why_none
from attnport.folder.portable import portable
from attnport.folder.verdicts import by_metric
from attnport.parity import bound as parity
from attnport.parity.eager import EAGER, EAGER_ON_GPU, Eager
from attnport.parity.evaluate import (
    Means,
    Progress,
    References,
    SessionErrors,
    make_references,
    measure_items,
    measure_session,
)
from attnport.parity.invariance import ON_THE_LEFT, Spread, Spreads, untold
from attnport.processes.child import ChildError
from attnport.processes.isolated import IsolatedSession, reason_of_failure, unavailable
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime
from attnport_bundle.feeds import check_shapes

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
        self._eager = self._processor if self.wanted.eager == EAGER else self._eager_on_gpu
        self._graphs: dict[tuple[str, str, str], tuple[str, _Measured]] = {}
        self._passed: dict[tuple[Path, str], tuple[str, _Measured]] = {}
        self._moved: frozenset[tuple[str, str]] = frozenset()
        self._not_compared: dict[tuple[str, str], Spread] = {}

    def report(self, chosen: Sequence[Runtime], forms: Mapping[str, Form]) -> ParityReport:
        """Everything, in order: the reference, runtimes, forms of the artifact, verdicts.

        Raises:
            ParityFailed: the reference of a GPU is not what the processor computes.
        """
        if not chosen and not forms:
            return parity.report({}, {}, self.notes)
        if self._eager is not self._processor:
            self._check_reference()
        with self._eager.session("fp32", float64=True) as session:
            self.notes += make_references(session, self.io, self.cases, self.store, self.means.progress)
        if undefined := sorted(self.store.undefined):
            found = "; ".join(f"{case}, {output}" for case, output in undefined)
            self.notes.append(
                f"the module itself gives NaN or Inf in {len(undefined)} results; there forms are compared with what "
                f"it gives if rows without a key are zero: {found}"
            )
        if left := sorted(self.store.without_empty):
            self.notes.append(
                f"items without any key are not compared, as the module gives other numbers than zero there: "
                f"{', '.join(left)}"
            )
        runtimes: dict[str, RuntimeParity | _Measured] = {}
        for runtime in chosen:
            runtimes.update(self._runtime(runtime))
        self._measure_eager(runtimes.values())
        for name, row in runtimes.items():
            if isinstance(row, _Measured) and row.model is not None and self._judged(row).verdict == "PASS":
                self._passed[row.model, row.plan] = name, row
        graphs = {name: self._form(name, form) for name, form in forms.items()}
        own = self._measure_eager([*runtimes.values(), *graphs.values()])
        self.notes += self._eager.notes()
        if self._eager_on_gpu is not self._eager:
            self.notes += self._eager_on_gpu.notes()
        if self._moved:
            self.notes.append("padding on the left moves the module's own rows, as positions do, and is not compared")
        self.notes += self._padding_notes(own)
        self.notes += untried(self.io)
        return parity.report(
            {name: self._judged(tried) for name, tried in runtimes.items()},
            {name: self._judged(tried) for name, tried in graphs.items()},
            self.notes,
        )

    def redrawn(self) -> Mapping[str, parity.ByCase]:
        """What `report` found of PyTorch eager where it was run more than once: see `Eager.redrawn`."""
        return self._eager.redrawn()

    def _measure_eager(self, rows: Iterable[RuntimeParity | _Measured]) -> SessionErrors:
        """Measures what the results of these rows are judged by; returns PyTorch eager's errors in float32."""
        every = [row for row in rows if isinstance(row, _Measured)]
        for tried in every:
            for plan in ("fp16", AUTO) if tried.plan == AUTO else (tried.plan,):
                self._measure_yardstick(tried, plan)
        for tried in every:
            self._results(tried)  # for the bounds: all are judged by the same, after the last that needs another run
        single = {name for tried in every if tried.plan == "fp32" for name in tried.found.errors}
        own = self._eager.measured("fp32", single or None)
        self._moved, self._not_compared = self._moves(own)
        return own

    def _check_reference(self) -> None:
        """Raises ParityFailed where the float64 run of the device is not that of the processor."""
        case = self.cases[0]
        with self._processor.session("fp32", float64=True) as session:
            expected = session.run(case.feeds)
        with self._eager.session("fp32", float64=True) as session:
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
        name, found, only = runtime.name, self.probed[runtime.name], self.wanted.plan
        plan = only or "fp32"
        if not found.available:
            return {name: self._not_run(unavailable(found), plan)}
        if only and (why := not_in(found, only)):
            return {name: self._not_run(why, plan)}
        if name == self.wanted.eager:
            return {name: _Measured(plan, self._eager.measured(plan), "PyTorch eager, the yardstick of the others")}
        if runtime.opens == "module":
            opening = Opening(self.io, plan=plan, spec=self.spec, threads=self.means.threads, contract=True)
            return {name: self._measured(runtime, opening)}
        threads, bundle = self.means.threads, self.wanted.bundle
        if only:
            openings = openings_at(only, runtime, self.folder, self.manifest, threads, bundle)
        else:
            openings = model_openings(runtime, self.folder, self.manifest, found.plans, threads, bundle)
        if not openings:
            return {name: self._not_run(why_none(runtime, only), plan)}
        forms = {self.folder / form.file: form for form in self.manifest.forms.values() if form.integers}
        rows: dict[str, RuntimeParity | _Measured] = {}
        for key, opening in openings.items():
            form = forms.get(opening.model) if opening.model else None
            rows[key] = by_metric(form) if form else self._measured(runtime, opening)
        return rows

    def _form(self, name: str, form: Form) -> RuntimeParity | _Measured:
        """Graph parity: a form run numerically without its target, unless a runtime that opens it passes all cases."""
        if self._eager is not self._processor:
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
            with _opened(runtime, opening) as session:
                session.run(self.cases[0].feeds)
        except IntegrityError:
            raise
        except Exception as err:  # also a runtime's own exceptions: whatever it says, it does not take the form
            return whole_cause(err)
        return ""

    def _measured(self, runtime: Runtime, opening: Opening, form_note: str = "") -> RuntimeParity | _Measured:
        """Runs a session over the cases; `form_note` says that it stands in for a form's own target."""
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
            opened = _opened(runtime, opening) if form_note else self._apart(runtime, opening)
            with opened as session:
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
        found = tried.found.spreads.found
        left_out = self._moved | self._not_compared.keys()
        kept = Spreads({key: one for key, one in found.items() if key not in left_out})
        pairs = parity.judge_invariance(kept, by, tried.found.compared)
        if found:
            pairs += [parity.not_compared(*key, str(spread)) for key, spread in self._not_compared.items()]
            pairs += [parity.not_compared(_UNTOLD, spec.name) for spec in untold(self.io)]
        return parity.conclude(by, tried.found.ran, results, pairs, "; ".join(notes), self._sizes())

    def _sizes(self) -> dict[str, str]:
        """By case, the sizes of its dims in words."""
        io = of_all_tokens(self.io)
        found = {case.name: check_shapes(io, case.feeds) for case in self.cases}
        return {case: ", ".join(f"{dim}={size}" for dim, size in sizes.items()) for case, sizes in found.items()}

    def _results(self, tried: _Measured) -> list[CaseResult]:
        # What was exported, or is the module, gives NaN where the module does; forms give numbers there.
        eager = self._yardstick_of(tried)
        return eager.judged(tried.plan, tried.found.errors, self.store.undefined if tried.as_exported else ())

    def _measure_yardstick(self, tried: _Measured, plan: str) -> None:
        """Measures eager where `tried` ran, or on the processor where the GPU is too small for eager."""
        try:
            self._yardstick_of(tried).measured(plan, list(tried.found.errors))
        except (MemoryError, UnavailableError) as err:
            if self._yardstick_of(tried) is self._eager:
                raise
            self._eager_on_gpu = self._eager
            self.notes.append(f"{EAGER_ON_GPU} cannot be run, so the processor's bound stands for the GPU: {err}")
            self._eager.measured(plan, list(tried.found.errors))

    def _yardstick_of(self, tried: _Measured) -> Eager:
        """Whose errors bound these: in half precision on a GPU those of PyTorch there, which rounds otherwise."""
        judge = self.probed.get(EAGER_ON_GPU)
        able = judge is not None and judge.available and tried.plan in judge.plans
        return self._eager_on_gpu if tried.on_gpu and able and tried.plan != "fp32" else self._eager

    def _moves(self, own: SessionErrors) -> tuple[frozenset[tuple[str, str]], dict[tuple[str, str], Spread]]:
        """Comparisons and outputs in which the module's own rows change, so that no runtime is judged by them.

        Returns:
            Those of padding on the left where nothing else moves rows: the module has positions, declared or not. And
            all others, each with the change; but none if a mask has the opposite meaning of what is declared.
        """
        changed: dict[tuple[str, str], Spread] = {}
        for key, spread in own.spreads.found.items():
            (pair,) = parity.judge_invariance(Spreads({key: spread}), self._eager.yardstick("fp32"), own.compared)
            if pair.verdict != "PASS":
                changed[key] = spread
        by_size = {key: spread for key, spread in changed.items() if key[1] in own.by_size}
        names = {name for name, output in changed.keys() - by_size.keys()}
        if all(name.startswith(ON_THE_LEFT) for name in names):
            return frozenset(key for key in own.spreads.found if key[0] in names), by_size
        opposite = self._opposite_masks()
        if opposite:
            self.notes.append(
                f"the module takes {', '.join(opposite)} in the opposite meaning of what is declared (:keep or :hide): "
                "with the other, padding changes no valid row"
            )
        return frozenset(), {} if opposite else changed

    def _opposite_masks(self) -> list[str]:
        """The padding masks of one meaning that the module takes in the other: with that, padding changes no row."""
        turned = {"keep": "hide", "hide": "keep"}
        masks = [mask for mask in self.io.padding_masks() if mask.carries == "mask" and mask.polarity in turned]
        other = {mask: replace(mask, polarity=turned[mask.polarity]) for mask in masks}
        io = replace(self.io, masks=tuple(other.get(mask, mask) for mask in self.io.masks))
        padded = next((case for case in cases(io) if case.name == "right padding"), None)
        if padded is None or not masks:
            return []
        with self._eager.session("fp32") as session:
            found = SessionErrors(session.ran)
            measure_items(session, io, padded, session.run(padded.feeds), found, _FEW_ITEMS)
        spreads = {key: one for key, one in found.spreads.found.items() if not key[0].startswith(ON_THE_LEFT)}
        pairs = parity.judge_invariance(Spreads(spreads), self._eager.yardstick("fp32"), [padded.name])
        return [str(mask.input) for mask in masks] if pairs and all(pair.verdict == "PASS" for pair in pairs) else []

    def _padding_notes(self, own: SessionErrors) -> list[str]:
        """What was not compared with other padding, and why."""
        if not own.spreads.found:
            masked = bool(self.io.padding_masks())
            why = "no item of a case can be run alone" if masked else "no input says which keys of an item are padding"
            return [f"padding invariance was not compared: {why}"]
        changed: dict[str, Spread] = {}
        for (_, output), spread in self._not_compared.items():
            changed[output] = max(changed.get(output, spread), spread, key=lambda each: each.largest)
        notes = [
            f"{output}: padding beside an item changes its rows in the module itself, {spread}, so that these are not "
            "compared with other padding"
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

    def _apart(self, runtime: Runtime, opening: Opening) -> contextlib.closing[Session]:
        """A session, in a process of its own where the runtime gets one."""
        if not runtime.isolated and not self.means.limits.every:
            return contextlib.closing(runtime.open(opening))
        session: Session = IsolatedSession(runtime, opening, self.folder, self.manifest, self.means.limits)
        return contextlib.closing(session)

    def _saying(self, label: str) -> Progress:
        return lambda message: self.means.progress(f"{label}: {message}")


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


@contextlib.contextmanager
def _opened(runtime: Runtime, opening: Opening) -> Iterator[Session]:
    with contextlib.closing(runtime.open(opening)) as session:
        yield session
