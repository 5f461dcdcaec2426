"""The plan `auto`: half precision with the fewest parts in float32 that keep the bound, found by measuring.

See docs/precision.md, and docs/adr/0013-the-twin-of-auto-does-not-overflow.md for the bound.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import AUTO, Island, Manifest, PrecisionPlan
from attnport.cases.inputs import Case, cases
from attnport.errors import ParityFailed
from attnport.exporter.lowering.base import Lowering
from attnport.folder.workspace import load_spec
from attnport.parity import bound as parity
from attnport.parity import islands
from attnport.parity.candidates import Candidates
from attnport.parity.comparing import TYPED_EVALUATOR
from attnport.parity.eager import Eager
from attnport.parity.evaluate import Progress, References, make_references
from attnport.parity.metrics import measure_all
from attnport.runtimes import base
from attnport.runtimes.base import Runtime

HALF = "fp16"
LARGEST = 65504.0
BUDGET = 2.0
"""The budget that is the bound of `check`."""
_DRAWS = 4
MOST = 100
_ROUNDS = 4
_FIRST = ("right padding", "one row fully masked", "usual sizes", "opt sizes")


def plan_precision(
    folder: Path,
    manifest: Manifest,
    lowering: Lowering,
    *,
    budget: float = BUDGET,
    most: int = MOST,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress = lambda message: None,
) -> PrecisionPlan:
    """Searches the islands of a model.

    Args:
        folder: An artifact folder, whose files were checked.
        manifest: Its manifest.
        lowering: The target, which takes fp16.
        budget: How many times PyTorch eager's RMS error is allowed; see `docs/precision.md`.
        most: The most graphs to evaluate.
        seed: Of the cases, as in `check`.

    Raises:
        ParityFailed: no islands around the attentions keep the bound; says whether an attention is why.
        SpecError: the module is not what was exported.
    """
    runtime = base.get(TYPED_EVALUATOR)
    base.available(runtime)
    tried = cases(manifest.io, seed)
    with tempfile.TemporaryDirectory(prefix="attnport-auto-") as scratch:
        (references := Path(scratch) / "references").mkdir()
        (graphs := Path(scratch) / "graphs").mkdir()
        store = References(references)
        by = _yardstick(manifest, tried, store, threads, progress)
        progress("lowering")
        candidates = Candidates(folder, manifest, lowering, runtime, graphs, threads)
        return _Planning(manifest, candidates, tried, store, by, budget, most, runtime, progress).plan()


def _yardstick(
    manifest: Manifest, tried: list[Case], store: References, threads: int | None, progress: Progress
) -> parity.Yardstick:
    """Float64 references of all cases, and PyTorch eager's errors."""
    eager = Eager(manifest.io, load_spec(manifest), tried, store, threads, progress)
    with eager.session("fp32", float64=True) as session:
        make_references(session, manifest.io, tried, store, progress)
    for plan in (HALF, AUTO):
        eager.measured(plan)
        for _ in range(_DRAWS):  # beforehand, since every graph of the search is judged by the same bound
            eager.draw(plan, [case.name for case in tried])
    return eager.yardstick(AUTO)


@dataclass
class _Planning:
    manifest: Manifest
    candidates: Candidates
    tried: Sequence[Case]
    store: References
    by: parity.Yardstick
    budget: float
    most: int
    runtime: Runtime
    progress: Progress

    def __post_init__(self) -> None:
        self.evaluations = 0
        self.names = [spec.name for spec in self.manifest.io.outputs]
        self.parts = {part.name: part for part in self.candidates.parts}

    def plan(self) -> PrecisionPlan:
        """Searches on a few cases, tries what was found on all, and searches again with one that fails."""
        chosen = first_cases(self.tried)
        self.progress("measuring how large the numbers become")
        self.ranges = self.candidates.ranges([case for case in self.tried if case.group != "extremes"])
        suspects = {name for name in self.parts if self._largest(name) > LARGEST / 2}
        for _ in range(_ROUNDS):
            found = self._search(chosen, suspects)
            held_out = [case for case in self.tried if case not in chosen]
            worst, case = self._worst(self._nodes(found.parts), held_out)
            if worst <= 1.0:
                return self._told(found, chosen, len(held_out))
            chosen, suspects = [*chosen, case], suspects | set(found.parts)
        raise ParityFailed(
            f"plan {AUTO}: after {_ROUNDS} searches the islands still fail on a case that was held out, {case.name}.",
            hint=f"{self._larger()}--dtype bf16, or fp32.",
        )

    def _search(self, chosen: Sequence[Case], suspects: Collection[str]) -> islands.Islands:
        def share(kept: islands.Parts) -> float:
            return self._share(self._nodes(kept), chosen)

        try:
            return islands.search(list(self.parts), share, suspects, self.most - self.evaluations)
        except islands.NothingHolds as err:
            raise self._why_nothing(chosen) from err

    def _told(self, found: islands.Islands, chosen: Sequence[Case], held_out: int) -> PrecisionPlan:
        return PrecisionPlan(
            half=HALF,
            budget=self.budget,
            share=found.share,
            share_of_half=_finite(found.share_of_none),
            islands=tuple(
                Island(
                    name,
                    tuple(dict.fromkeys(self.parts[name].operators)),
                    self.parts[name].nodes,
                    self._largest(name),
                    _finite(found.without.get(name, math.nan)),
                )
                for name in found.parts
            ),
            parts=len(self.parts),
            evaluations=self.evaluations,
            capped=found.capped,
            cases=tuple(case.name for case in chosen),
            held_out=held_out,
            evaluator=self.runtime.name,
        )

    def _largest(self, part: str) -> float:
        """The largest magnitude of what a part reads and makes."""
        names = (*self.parts[part].reads, *self.parts[part].makes)
        return max((self.ranges.get(name, 0.0) for name in names), default=0.0)

    def _nodes(self, parts: Collection[str]) -> frozenset[str]:
        return frozenset(node for part in parts for node in self.parts[part].nodes)

    def _share(self, nodes: Collection[str], chosen: Sequence[Case]) -> float:
        """The error of a graph as a share of the bound, the largest over outputs and cases; inf where not finite."""
        self.evaluations += 1
        self.progress(f"evaluation {self.evaluations}: {len(nodes)} nodes in float32")
        return self._worst(nodes, chosen)[0]

    def _worst(self, nodes: Collection[str], chosen: Sequence[Case]) -> tuple[float, Case]:
        """The largest share, and its case; the first that is not finite ends it."""
        worst, at = 0.0, chosen[0] if chosen else self.tried[0]
        with self.candidates.open(nodes) as session:
            for case in chosen:
                # What the evaluator raises is no error of the plan, and ends the search as itself.
                outputs = session.run(case.feeds)
                found = measure_all(outputs, self.store.load(case.name, self.names), case, self.manifest.io)
                share = max(
                    (self._share_of(case.name, output, errors) for output, errors in found.items()), default=0.0
                )
                if share > worst:
                    worst, at = share, case
                if math.isinf(worst):
                    break
        return worst, at

    def _share_of(self, case: str, output: str, errors: parity.Errors) -> float:
        """One result's share of the bound at the budget."""
        result = parity.judge(case, output, errors, self.by)
        if result.verdict == "NOT_RUN":
            return 0.0
        share = parity.share_of_bound(result)
        if errors.problem or (result.verdict == "FAIL" and share <= 1.0):
            return math.inf
        return share * BUDGET / self.budget

    def _larger(self) -> str:
        return "Take a larger budget, or " if self.budget < BUDGET else "Take "

    def _why_nothing(self, chosen: Sequence[Case]) -> ParityFailed:
        """The error of a model for which no islands are enough: an attention, or everything."""
        attentions, every = self.candidates.attentions, self._nodes(self.parts)
        beyond = {one for one in attentions if self.candidates.largest_in(one, self.ranges) > LARGEST}

        def evaluate(kept: islands.Parts) -> float:
            return self._share(every | {node for one in kept for node in attentions[one]}, chosen)

        try:
            needed = islands.search(list(attentions), evaluate, beyond, self.most).parts
        except islands.NothingHolds as err:
            error = "NaN or Inf" if math.isinf(err.share) else f"{err.share:.2f} times the bound"
            return ParityFailed(
                f"plan {AUTO}: with every part of the graph in float32 the error is still {error} at a budget of "
                f"{self.budget:g}x.",
                hint=f"{self._larger()}--dtype fp32, and see what attnport check says of it.",
            )
        named = ", ".join(f"{one} (values up to {self.candidates.largest_in(one, self.ranges):.3g})" for one in needed)
        return ParityFailed(
            f"plan {AUTO}: the bound needs attention in float32, for which TensorRT has no fused kernel: {named}.",
            hint="Take --dtype bf16, whose range is that of float32, or fp32.",
        )


def first_cases(tried: Sequence[Case]) -> list[Case]:
    """The few cases that a search starts with: padding, a row without keys, the opt sizes, and the extremes."""
    found = [case for case in tried if case.name in _FIRST or case.group == "extremes"]
    return found or list(tried[:1])


def _finite(share: float) -> float | None:
    return share if math.isfinite(share) else None
