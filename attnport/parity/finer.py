"""What has to stay finer than the rest of a form: parts in float32 among half precision, layers among integers.

`fewest` searches among names, by measured errors alone. The graphs that it tries are `Variants` of one model, lowered
once: `Halves` for the plan `auto`, of which `plan_precision` finds the islands (docs/precision.md; the bound is that of
docs/adr/0013-the-twin-of-auto-does-not-overflow.md), and `Integers` for `tune`, of which `plan_integers` finds the
layers (docs/tune.md).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.artifacts import (
    AUTO,
    PLANS,
    IntegerPlan,
    Island,
    Manifest,
    PrecisionPlan,
    Score,
    Session,
    drop,
)
from attnport.cases.inputs import Array, Case, cases
from attnport.dims import TensorSpec
from attnport.errors import ParityFailed
from attnport.exporter import storage
from attnport.exporter.precision import integers
from attnport.exporter.precision.parts import add_largest, parts_of, scope_of
from attnport.exporter.targets.base import Lowering
from attnport.folder.workspace import MODEL, load_spec
from attnport.parity import bound as parity
from attnport.parity.comparing import TYPED_EVALUATOR, Eager
from attnport.parity.evaluate import Progress, References, make_references
from attnport.parity.scoring import Agreement, Metric
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime, external_files, read_graph

if TYPE_CHECKING:
    import onnx_ir as ir

Names = frozenset[str]
HALF = "fp16"
LARGEST = 65504.0
BUDGET = 2.0
"""The budget that is the bound of `check`."""
MOST = 100
"""Graphs that a search for islands runs."""
_DRAWS = 4
_ROUNDS = 4
_FIRST = ("right padding", "one row fully masked", "usual sizes", "opt sizes")
_OF_BF16 = "whose range is that of float32"
_RANKED = 32
"""Items by which layers are put in order."""


class NothingHolds(Exception):
    """The error is too large even if everything is kept; `error` is how large."""

    def __init__(self, error: float) -> None:
        super().__init__(f"{error:.3g} of what is allowed")
        self.error = error


@dataclass(frozen=True)
class Kept:
    """What a search found.

    Attributes:
        names: What has to be kept, in the order in which it was given.
        tried: The error with each set of names that was tried, as a share of what is allowed.
        capped: Whether the search ended at its limit, so that fewer names may be enough.
    """

    names: tuple[str, ...]
    tried: Mapping[Names, float]
    capped: bool

    @property
    def error(self) -> float:
        """The error with these names kept."""
        return self.tried[frozenset(self.names)]

    def without(self, name: str) -> float:
        """The error if one of the names is not kept; NaN if that was not tried, as may be where `capped`."""
        return self.tried.get(frozenset(self.names) - {name}, math.nan)


def fewest(names: Sequence[str], error_of: Callable[[str], float], error: Callable[[Names], float], most: int) -> Kept:
    """As few names as a search finds to be enough.

    First nothing is kept, then the names whose own error is above 1. If these are not enough, all are kept, and those
    with the smallest own errors are dropped by halves. At the end each name that is left is dropped alone, until none
    can be.

    Args:
        names: What can be kept.
        error_of: How large the error of one name seems to be if it is not kept; called only if nothing kept is not
            enough.
        error: The measured error with a set of names kept, as a share of what is allowed: up to 1 it is enough; NaN and
            inf are not.
        most: The most sets to try, at least 3.

    Raises:
        NothingHolds: the error is too large with every name kept.
    """
    run = _Search(error, max(most, 3))
    capped = False
    if not run.holds(frozenset()):
        errors = {name: error_of(name) for name in names}
        order = sorted(names, key=errors.__getitem__, reverse=True)
        suspects = frozenset(name for name in names if errors[name] > 1.0)
        run.kept = suspects if suspects and run.holds(suspects) else frozenset(names)
        if not run.holds(run.kept):
            raise NothingHolds(run.tried[run.kept])
        try:
            if run.kept != suspects:
                run.halve(order)
            before = None
            while run.kept != before:  # errors need not shrink with every name that is kept
                before = run.kept
                for name in reversed(order):
                    run.drop({name} & run.kept)
        except _Spent:
            capped = True
            run.kept = min((kept for kept, share in run.tried.items() if share <= 1.0), key=len)
    return Kept(tuple(name for name in names if name in run.kept), run.tried, capped)


class _Spent(Exception):
    """The limit of sets is reached."""


@dataclass
class _Search:
    """The sets that were tried, and the smallest so far that is enough."""

    error: Callable[[Names], float]
    most: int
    tried: dict[Names, float] = field(default_factory=dict)
    kept: Names = frozenset()

    def holds(self, kept: Names) -> bool:
        if kept not in self.tried:
            if len(self.tried) >= self.most:
                raise _Spent
            self.tried[kept] = self.error(kept)
        return self.tried[kept] <= 1.0  # a NaN does not

    def drop(self, group: Collection[str]) -> bool:
        """Drops a group if the others are enough."""
        if dropped := self.holds(self.kept.difference(group)):
            self.kept = self.kept.difference(group)
        return dropped

    def halve(self, group: Sequence[str]) -> None:
        """Drops what can go of a group that cannot go as a whole."""
        if len(group) > 1:
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            if self.drop(second):
                self.halve(first)
            else:
                self.halve(second)
                if not self.drop(first):
                    self.halve(first)


class Variants(abc.ABC):
    """A lowered model in float32, of which graphs are made in which all but some parts are coarser."""

    def __init__(self, folder: Path, model: ir.Model, runtime: Runtime, opening: Opening, scratch: Path) -> None:
        """Keeps the lowered model.

        Args:
            folder: An artifact folder, with the weights that the graphs read.
            opening: Their contract and precision plan.
            scratch: An empty folder, which the caller deletes.
        """
        self._runtime, self.opening = runtime, opening
        self._lowered, self._variant = scratch / "lowered.onnx", scratch / "variant.onnx"
        for weights in external_files(read_graph(folder / MODEL)):
            place = scratch / weights
            place.parent.mkdir(parents=True, exist_ok=True)
            # A copy: readers refuse a link, soft or hard, as an attack.
            shutil.copyfile(folder / weights, place)
        storage.save_form(model, self._lowered, "lowered.bin")

    @abc.abstractmethod
    def rewrite(self, model: ir.Model, kept: Collection[str]) -> None:
        """Makes everything in the lowered graph coarser, in place, but what is called one of `kept`.

        Raises:
            ExportError: the graph does not fit the plan.
        """

    def open(self, kept: Collection[str]) -> contextlib.closing[Session]:
        """A session of the graph that `rewrite` writes; raises as that. Close it before the next is opened."""
        model = storage.load(self._lowered)
        self.rewrite(model, kept)
        return self._opened(model, self.opening)

    def open_plain(
        self, add: Callable[[ir.Model], tuple[TensorSpec, ...]] = lambda model: ()
    ) -> contextlib.closing[Session]:
        """A session of the graph in float32.

        Args:
            add: Gives the graph further outputs, in place.
        """
        model = storage.load(self._lowered)
        io = self.opening.io
        io = dataclasses.replace(io, outputs=(*io.outputs, *add(model)))
        return self._opened(model, dataclasses.replace(self.opening, io=io, plan="fp32"))

    def _opened(self, model: ir.Model, opening: Opening) -> contextlib.closing[Session]:
        self._variant.unlink(missing_ok=True)
        storage.save_form(model, self._variant, "variant.bin")
        return contextlib.closing(self._runtime.open(dataclasses.replace(opening, model=self._variant)))


class Halves(Variants):
    """Graphs in fp16 but for some nodes, which stay in float32.

    Attributes:
        parts: What may stay in float32, by name, in topological order.
    """

    def __init__(self, folder: Path, manifest: Manifest, lowering: Lowering, runtime: Runtime, scratch: Path) -> None:
        """Lowers the model; arguments as of `Variants`."""
        model = storage.load(folder / MODEL)
        usual = manifest.io.profile().sizes("opt")
        lowered = lowering.fuse_graph(model, manifest.attentions, plan=AUTO, masks=manifest.io.masks, sizes=usual)
        self._lowering = lowering
        self.parts = {part.name: part for part in parts_of(model, lowered.anchors)}
        self._of_parts = {name: {*part.reads, *part.makes} for name, part in self.parts.items()}
        made = {str(node.name): {str(value.name) for value in node.outputs} for node in model.graph}
        self._of_attentions = {
            name: set[str]().union(*(made[node] for node in made if node.startswith(scope_of(nodes))))
            for name, nodes in lowered.anchors.items()
            if nodes
        }
        super().__init__(folder, model, runtime, Opening(manifest.io, AUTO), scratch)

    def rewrite(self, model: ir.Model, kept: Collection[str]) -> None:
        """Writes the graph in fp16, in place, but the nodes `kept`; raises as of `Variants`."""
        self._lowering.finish(model, AUTO, kept)

    def largest(self, items: Sequence[Case]) -> tuple[dict[str, float], dict[str, float]]:
        """The largest finite magnitude in float32 that each part reads or makes, and that each attention makes."""
        outputs: dict[str, str] = {}
        wanted = set().union(*self._of_parts.values(), *self._of_attentions.values())

        def add(model: ir.Model) -> tuple[TensorSpec, ...]:
            outputs.update(add_largest(model, wanted))
            return tuple(TensorSpec(output, "float32", ()) for output in outputs.values())

        with self.open_plain(add) as session:
            found = dict.fromkeys(outputs, 0.0)
            for item in items:
                made = session.run(item.feeds)
                found = {name: max(largest, float(made[outputs[name]])) for name, largest in found.items()}
        in_parts, in_attentions = (
            {name: max((found.get(tensor, 0.0) for tensor in tensors), default=0.0) for name, tensors in each.items()}
            for each in (self._of_parts, self._of_attentions)
        )
        return in_parts, in_attentions


class Integers(Variants):
    """Graphs with linear layers in int8, or with weights of few bits.

    Attributes:
        bits: 8 or 4.
        form: `int8`, `int4`, `fp8` or `fp4`.
        floats: See `Plan`.
        finer: What the layers that are kept have: a type, or `8 bits`.
        layers: The number of weights of each layer by its name, in topological order.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        lowering: Lowering,
        plan: str,
        runtime: Runtime,
        opening: Opening,
        items: Sequence[Case],
        scratch: Path,
    ) -> None:
        """Lowers the model; for int8 runs it in float32 on `items` for the ranges. Other arguments as of `Variants`.

        Args:
            plan: One of `lowering.integers`.
            opening: In this plan; of an engine's in fp32, as a processor runs its graph.
            items: The user's inputs, of one item each.
        """
        model = storage.load(folder / MODEL)
        usual = manifest.io.profile().sizes("opt")
        lowering.lower(model, manifest.attentions, plan="fp32", masks=manifest.io.masks, sizes=usual)
        super().__init__(folder, model, runtime, opening, scratch)
        self._plan, self.items = PLANS[plan], items
        self.bits, self.floats, self.finer = self._plan.bits, self._plan.floats, self._plan.finer
        self.form = f"{'fp' if self.floats else 'int'}{self.bits}"
        self._dequantizes = self._plan.weights and lowering.searched  # an engine's graph
        self._half = scratch / "half.onnx" if opening.plan == plan and self._plan.weights else None
        if self._half:
            half, beside = storage.load(folder / MODEL), lowering.plan_beside(plan)
            lowering.lower(half, manifest.attentions, plan=beside, masks=manifest.io.masks, sizes=usual)
            storage.save_form(half, self._half, "half.bin")
        found = integers.layers(model, halves=self._plan.weights)
        self.layers = {layer.name: layer.weights for layer in found}
        self._seen = self._ranges(found) if found and self.bits == 8 and not self._plan.weights else {}
        self._packed = integers.pack_all(model) if self.bits == 4 and not self._dequantizes else {}

    def open(self, kept: Collection[str]) -> contextlib.closing[Session]:
        """As of every kind; of a form that is half precision besides, and runs so, in that."""
        if self._half is None:
            return super().open(kept)
        model = storage.load(self._half)
        self.rewrite(model, kept)
        return self._opened(model, self.opening)

    def rewrite(self, model: ir.Model, kept: Collection[str]) -> None:
        """Writes the layers of the graph in few bits, in place, but those `kept`, which are as `finer` says."""
        if self._dequantizes:
            integers.write_weights(model, self.bits, kept, floats=self.floats)
        elif self.bits == 8:
            integers.write_int8(model, self._seen, kept)
        else:
            integers.write_int4(model, self._packed, kept)

    def _opened(self, model: ir.Model, opening: Opening) -> contextlib.closing[Session]:
        integers.widen_fp4(model)
        return super()._opened(model, opening)

    def error_of(self, layer: str) -> float:
        """The error of the graph with this layer alone in integers, as a share of its work; at most 1 if finite."""
        near = self._near  # before the next graph is opened
        with self.open(self.layers.keys() - {layer}) as session:
            return (1 - near(session).value) ** 2 / self.layers[layer]

    @cached_property
    def _near(self) -> Agreement:
        """1 - the error of a session."""
        near = Agreement(self.opening.io, self.items[:_RANKED], near=True)
        with self.open_plain() as session:
            near(session)
        return near

    def _ranges(self, found: Sequence[integers.Layer]) -> dict[str, integers.Seen]:
        rows: dict[str, list[Array]] = {}

        def add(model: ir.Model) -> tuple[TensorSpec, ...]:
            rows.update((name, []) for name in integers.observe(model, found))
            return tuple(TensorSpec(name, "float32", ("channels",)) for name in rows)

        with self.open_plain(add) as session:
            for item in self.items:
                made = session.run(item.feeds)
                for name, of_items in rows.items():
                    of_items.append(made[name])
        return integers.observed(found, rows)


def plan_precision(
    folder: Path,
    manifest: Manifest,
    lowering: Lowering,
    *,
    budget: float = BUDGET,
    most: int = MOST,
    progress: Progress = lambda message: None,
) -> PrecisionPlan:
    """Searches the islands of a model: the parts that stay in float32 under the plan `auto`.

    Args:
        folder: An artifact folder, whose files were checked.
        lowering: The target, which takes fp16.
        budget: How many times PyTorch eager's RMS error is allowed; see `docs/precision.md`.
        most: The most graphs to evaluate.

    Raises:
        ParityFailed: no islands around the attentions keep the bound; says whether an attention is why.
        SpecError: the module is not what was exported.
    """
    runtime = base.get(TYPED_EVALUATOR)
    base.available(runtime)
    tried = cases(manifest.io)
    with tempfile.TemporaryDirectory(prefix="attnport-auto-") as scratch:
        (references := Path(scratch) / "references").mkdir()
        (graphs := Path(scratch) / "graphs").mkdir()
        store = References(references)
        eager = Eager(manifest.io, load_spec(manifest), tried, store, None, progress)
        with eager.session("fp32", float64=True) as session:
            make_references(session, manifest.io, tried, store, progress)
        for plan in (HALF, AUTO):
            eager.measured(plan)
            for _ in range(_DRAWS):  # beforehand, since every graph of the search is judged by the same bound
                eager.draw(plan, [case.name for case in tried])
        progress("lowering")
        halves = Halves(folder, manifest, lowering, runtime, graphs)
        return _IslandSearch(halves, tried, store, eager.yardstick(AUTO), budget, most, progress).plan()


@dataclass
class _IslandSearch:
    """One search for islands."""

    halves: Halves
    tried: Sequence[Case]
    store: References
    by: parity.Yardstick
    budget: float
    most: int
    progress: Progress
    evaluations: int = 0

    @cached_property
    def largest(self) -> tuple[dict[str, float], dict[str, float]]:
        """See `Halves.largest`."""
        self.progress("measuring how large the numbers become")
        return self.halves.largest([case for case in self.tried if case.group != "extremes"])

    def plan(self) -> PrecisionPlan:
        """Searches on a few cases, tries what was found on all, and searches again with one that fails."""
        chosen, earlier = first_cases(self.tried), frozenset[str]()
        for _ in range(_ROUNDS):
            found = self._search(chosen, earlier)
            held_out = [case for case in self.tried if case not in chosen]
            worst, case = self._worst(self._nodes(found.names), held_out)
            if worst <= 1.0:
                return self._plan_of(found, chosen, len(held_out))
            chosen, earlier = [*chosen, case], earlier.union(found.names)
        raise ParityFailed(
            f"{AUTO}: after {_ROUNDS} searches the islands still fail on a case that was held out, {case.name}.",
            hint=f"Take --precision bf16, {_OF_BF16}, or fp32.",
        )

    def _search(self, chosen: Sequence[Case], earlier: Names) -> Kept:
        """Searches on some cases; the islands that were found on fewer are the first to be tried."""

        def error_of(part: str) -> float:
            return math.inf if part in earlier else self.largest[0][part] / (LARGEST / 2)

        def error(kept: Names) -> float:
            return self._error(self._nodes(kept), chosen)

        try:
            return fewest(tuple(self.halves.parts), error_of, error, self.most - self.evaluations)
        except NothingHolds as err:
            raise self._why_nothing(err.error) from err

    def _plan_of(self, found: Kept, chosen: Sequence[Case], held_out: int) -> PrecisionPlan:
        islands = []
        for part in map(self.halves.parts.__getitem__, found.names):
            operators, without = tuple(dict.fromkeys(part.operators)), _finite(found.without(part.name))
            islands.append(Island(part.name, operators, part.nodes, self.largest[0][part.name], without))
        return PrecisionPlan(
            half=HALF,
            budget=self.budget,
            share=found.error,
            share_of_half=_finite(found.tried[frozenset()]),
            islands=tuple(islands),
            parts=len(self.halves.parts),
            evaluations=self.evaluations,
            capped=found.capped,
            cases=tuple(case.name for case in chosen),
            held_out=held_out,
            evaluator=TYPED_EVALUATOR,
        )

    def _nodes(self, parts: Collection[str]) -> Names:
        return frozenset(node for part in parts for node in self.halves.parts[part].nodes)

    def _error(self, nodes: Names, chosen: Sequence[Case]) -> float:
        """The error of a graph as a share of the bound, the largest over outputs and cases; inf where not finite."""
        self.evaluations += 1
        self.progress(f"evaluation {self.evaluations}: {len(nodes)} nodes in float32")
        return self._worst(nodes, chosen)[0]

    def _worst(self, nodes: Names, chosen: Sequence[Case]) -> tuple[float, Case]:
        """The largest error, and its case; the first that is not finite ends it."""
        worst, at = 0.0, chosen[0] if chosen else self.tried[0]
        names = [spec.name for spec in self.halves.opening.io.outputs]
        with self.halves.open(nodes) as session:
            for case in chosen:
                # What the evaluator raises is no error of the plan, and ends the search as itself.
                outputs = session.run(case.feeds)
                exact, compared = self.store.load(case.name, names), self.store.compared(case)
                measured = parity.measure_all(outputs, exact, compared, self.halves.opening.io)
                for output, errors in measured.items():
                    share = self._share_of_bound(case.name, output, errors)
                    if share > worst:
                        worst, at = share, case
                if math.isinf(worst):
                    break
        return worst, at

    def _share_of_bound(self, case: str, output: str, errors: parity.Errors) -> float:
        """One result's share of the bound at the budget."""
        result = parity.judge(case, output, errors, self.by)
        if result.verdict == "NOT_RUN":
            return 0.0
        share = result.used or 0.0
        if errors.problem or (result.verdict == "FAIL" and share <= 1.0):
            return math.inf
        return share * BUDGET / self.budget

    def _why_nothing(self, error: float) -> ParityFailed:
        """Why no islands are enough: values in an attention, or rounding."""
        # fp16 is never advised: it may pass only as PyTorch's own overflow is as wrong, which makes the bound large.
        larger = "a larger budget" if self.budget < BUDGET else f"--precision bf16, {_OF_BF16}"
        beyond = [
            f"{name} (values up to {largest:.3g})" for name, largest in self.largest[1].items() if largest > LARGEST
        ]
        if beyond:
            return ParityFailed(
                f"{AUTO}: attention computes values that {HALF} cannot hold, and in float32 TensorRT has no fused "
                f"kernel for it: {', '.join(beyond)}.",
                hint=f"Take --precision bf16, {_OF_BF16}, or fp32.",
            )
        how_large = "NaN or Inf" if math.isinf(error) else f"{error:.2f} times the bound"
        return ParityFailed(
            f"{AUTO}: with all but attention in float32 the error is still {how_large} at a budget of "
            f"{self.budget:g}x.",
            hint=f"Take {larger}, or fp32.",
        )


def first_cases(tried: Sequence[Case]) -> list[Case]:
    """The few cases that a search starts with: padding, a row without keys, the opt sizes, and the extremes."""
    found = [case for case in tried if case.name in _FIRST or case.group == "extremes"]
    return found or list(tried[:1])


def _finite(share: float) -> float | None:
    return share if math.isfinite(share) else None


def plan_integers(
    graphs: Integers,
    metric: Metric,
    reference: Score,
    *,
    max_drop: float,
    scored: int,
    inputs: str,
    until_s: float = math.inf,
    progress: Progress = lambda message: None,
) -> IntegerPlan | str:
    """The plan that keeps as few layers as it can and loses no more than is allowed, or why there is none.

    If the drop with no layer kept is too large, each layer is put in integers alone, and those with the largest error
    for their work are kept: as many as bisection finds to be enough. Errors of layers add up, so that their order
    hardly depends on the others.

    Args:
        reference: The score of the same target's form in float32.
        max_drop: The largest drop that is allowed, as a share of `reference`.
        scored: The number of inputs that the metric is taken of.
        inputs: See `IntegerPlan`.
        until_s: The time (of `time.monotonic`) after which no layer is tried alone any more; the others are kept.
    """
    if not graphs.layers:
        return "it has no linear layer with a weight of its own"
    count, scores = len(graphs.layers), dict[Names, Score]()

    def drop_with(kept: Names) -> float:
        progress(f"{graphs.form}: {len(kept)} of {count} layers in {graphs.finer}")
        with graphs.open(kept) as session:
            scores[kept] = metric(session)
        return drop(scores[kept], reference)

    def error(kept: Names) -> float:
        return drop_with(kept) / max_drop if len(kept) < count else 0.0  # tried last, if nothing less is enough

    def error_of(layer: str) -> float:
        if time.monotonic() > until_s:
            return 1.0  # more than any that was measured and is finite
        progress(f"{graphs.form}: {layer} alone")
        return graphs.error_of(layer)

    found = fewest(tuple(graphs.layers), error_of, error, most=2 + math.ceil(math.log2(count)))
    kept = frozenset(found.names)
    if len(kept) == count and (graphs.bits == 8 or drop_with(kept) > max_drop):
        fall = drop(scores[frozenset()], reference)
        rest = f"and by more than {max_drop:.2%} with any layer in {graphs.form}"
        return f"{metric.name} is worse by {fall:.2%}, {rest}"
    return IntegerPlan(
        bits=graphs.bits,
        metric=metric.name,
        score=scores[kept],
        reference=reference,
        max_drop=max_drop,
        layers=count,
        kept=found.names,
        drop_of_all=drop(scores[frozenset()], reference),
        items=(len(graphs.items), scored),
        evaluations=len(scores),
        inputs=inputs,
        floats=graphs.floats,
    )
