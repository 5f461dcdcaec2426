"""Where a model's numbers go wrong: a search for the tensor that diverges though all that it is made of does not.

Errors grow and shrink along a graph, so that "diverges" is not monotone and a plain bisection may end beside the cause.
Here a tensor found fine only *presumes* that what it is made of is fine too; before a tensor is named, its nearest
comparable ancestors are measured themselves, and one that diverges takes its place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnport.artifacts import Verdict
from attnport.cases.inputs import Array
from attnport.dims import TensorSpec
from attnport.parity.bound import Errors, Yardstick, judge, measure

Excess = float | None
"""A tensor's error over its bound: above 1 it diverges; None where it cannot be compared."""
Evaluate = Callable[[Sequence[str]], Mapping[str, Sequence[Excess]]]
"""Marks tensors as outputs, runs every sample once, and returns each tensor's excess by sample."""


@dataclass(frozen=True)
class Reading:
    """One runtime's errors at a tensor, on one sample, against the float64 run; integers have none but a reason."""

    subject: str
    verdict: Verdict
    reason: str
    rms_error: float | None = None
    rms_bound: float | None = None
    max_error: float | None = None
    max_bound: float | None = None


@dataclass(frozen=True)
class SearchResult:
    """What a search for one runtime or form found.

    Attributes:
        subject: As in the parity report; a form has `form ` in front.
        reason: Why no tensor is named; "" when one is.
        tensor: The first that diverges, though everything comparable that it is made of does not.
        operator: What makes it in the graph that was run.
        difference: Of a tensor of integers or booleans, its type and what differs in `sample`; "" for one of floats.
        module: The path of the torch module that it belongs to.
        between: The operators from the fine ancestors to the tensor.
        fine: The nearest comparable ancestors, all measured; empty where it is made of the inputs.
        samples: The cases whose search ended here.
        elsewhere: Of the other cases, the tensor where theirs ended.
        sample: The case that `readings` are of.
        odd: The one runtime that lies apart while the others agree; "" where there is no such one, or too few to tell.
        fusion: What marking outputs changed in the runtime; "" when nothing was seen to change.
        runs: Probe models that were made and run.
        notes: What else the reader must know: whether the graph itself is wrong, tensors that were not probed.
    """

    subject: str
    reason: str = ""
    tensor: str = ""
    operator: str = ""
    difference: str = ""
    module: str = ""
    between: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    sample: str = ""
    readings: tuple[Reading, ...] = ()
    odd: str = ""
    fusion: str = ""
    runs: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ancestry:
    """Comparable tensors in topological order, each with its nearest comparable ancestors."""

    parents: Mapping[str, tuple[str, ...]]

    def ancestors(self, name: str) -> set[str]:
        """Everything that a tensor is made of."""
        return self.behind(name, ())

    def behind(self, name: str, walls: Collection[str]) -> set[str]:
        """What a tensor is made of, without going past `walls` (they are left out)."""
        found, pending = set[str](), list(self.parents[name])
        while pending:
            one = pending.pop()
            if one not in found and one not in walls:
                found.add(one)
                pending += self.parents[one]
        return found

    def nearest(self, name: str, passed: Collection[str]) -> list[str]:
        """The nearest ancestors, seen through those of `passed`."""
        found, pending, seen = set[str](), list(self.parents[name]), set[str]()
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in passed:
                pending += self.parents[one]
            else:
                found.add(one)
        return [one for one in self.parents if one in found]


@dataclass(frozen=True)
class Budget:
    """What one run may hold.

    Attributes:
        probes: The most tensors that are marked at once: each is one more thing that may break a fusion.
        cap_bytes: The most that the tensors of one run may take.
        size_bytes: What each tensor takes.
    """

    probes: int = 4
    cap_bytes: int = 1 << 28
    size_bytes: Mapping[str, int] = field(default_factory=dict)

    def spread(self, names: Sequence[str]) -> list[str]:
        """Evenly spaced ones of `names`, as many as the budget has room for; at least one."""
        for count in range(min(self.probes, len(names)), 1, -1):
            picked = [names[(place + 1) * len(names) // (count + 1)] for place in range(count)]
            picked = list(dict.fromkeys(picked))
            if self._size(picked) <= self.cap_bytes:
                return picked
        return [names[len(names) // 2]]

    def parts(self, names: Sequence[str]) -> Iterator[list[str]]:
        """All of `names`, in runs that the budget has room for."""
        part: list[str] = []
        for name in names:
            if part and (len(part) == self.probes or self._size([*part, name]) > self.cap_bytes):
                yield part
                part = []
            part.append(name)
        if part:
            yield part

    def _size(self, names: Sequence[str]) -> int:
        return sum(self.size_bytes.get(name, 0) for name in names)


def locate(
    graph: Ancestry, starts: Sequence[str | None], evaluate: Evaluate, budget: Budget = Budget()
) -> list[str | None]:
    """For each sample, the tensor from which on it diverges.

    Args:
        graph: The comparable tensors, outputs among them.
        starts: By sample, an output that diverges; None for a sample on which none does.
        evaluate: Is asked for no tensor twice.

    Returns:
        By sample: a tensor that diverges, while every nearest comparable ancestor was measured and does not. None for
        a sample without a start.
    """
    search = _Search(graph, evaluate, budget)
    return [None if start is None else search.sample(place, start) for place, start in enumerate(starts)]


class _Search:
    """The searches of several samples; what was measured for one is known to all."""

    def __init__(self, graph: Ancestry, evaluate: Evaluate, budget: Budget) -> None:
        self._graph, self._evaluate, self._budget = graph, evaluate, budget
        self._known: dict[str, Sequence[Excess]] = {}

    def sample(self, place: int, start: str) -> str:
        """Each round asks for tensors before `bad` that are not known, so `bad` moves towards the inputs and ends."""
        bad = start
        while True:
            passed = {name for name, found in self._known.items() if found[place] is None}
            fine = {name for name in self._known if name not in passed and not self._bad(name, place)}
            live = self._graph.behind(bad, fine)
            worse = [name for name in self._graph.parents if name in live and self._bad(name, place)]
            if worse:
                bad = worse[0]
                continue
            cleared = {one for name in fine & self._graph.ancestors(bad) for one in self._graph.ancestors(name)}
            left = [name for name in self._graph.parents if name in live - cleared and name not in self._known]
            if left:
                self._measure(self._budget.spread(left))
                continue
            presumed = [name for name in self._graph.nearest(bad, passed) if name not in self._known]
            if not presumed:
                return bad
            self._measure(presumed)

    def _bad(self, name: str, place: int) -> bool:
        found = self._known[name][place] if name in self._known else None
        return found is not None and found > 1

    def _measure(self, names: Sequence[str]) -> None:
        for part in self._budget.parts(names):
            self._known.update(self._evaluate(part))


def errors_at(got: Array | None, expected: Array, valid: Array, name: str) -> Errors | None:
    """A tensor's errors against the float64 run; None where the two cannot be compared.

    They cannot where the float64 run itself is not finite (a mask of -inf), or where a form keeps the name for a tensor
    of another shape.
    """
    if got is None or got.shape != expected.shape or expected.size == 0 or not np.isfinite(expected).all():
        return None
    found = measure(got, expected, valid, TensorSpec(name, "float32", tuple(expected.shape)))
    # A cosine is for embeddings that somebody uses as such.
    return dataclasses.replace(found, cosine=None)


def reading(subject: str, sample: str, name: str, errors: Errors | None, by: Yardstick) -> Reading:
    """The verdict on a tensor, by the rule for outputs."""
    if errors is None:
        return Reading(subject, "NOT_RUN", "it cannot be compared")
    judged = judge(sample, name, errors, by)
    return Reading(
        subject, judged.verdict, judged.reason, judged.rms_error, judged.rms_bound, judged.max_error, judged.max_bound
    )


def excess(sample: str, name: str, errors: Errors | None, by: Yardstick) -> Excess:
    """How many times its bound an error is, the worse of RMS and largest; infinite for NaN where none belongs."""
    if errors is None or errors.problem == "no element to compare":
        return None
    if errors.rms is None or errors.max is None or by.errors(sample, name).rms is None:
        return math.inf
    pairs = zip((errors.rms, errors.max), by.bounds(sample, name, errors.reference_rms), strict=True)
    return max(error / bound if bound > 0 else (math.inf if error > 0 else 0.0) for error, bound in pairs)


def odd_one(results: Mapping[str, Array], valid: Array) -> str:
    """The one of three or more results that lies farther from each other one than any two of those from each other.

    "" when there is no such one: two wrong results that agree, or all of them apart.
    """
    names = list(results)
    if len(names) < 3:
        return ""
    apart = {
        frozenset((one, other)): _distance(results[one], results[other], valid)
        for place, one in enumerate(names)
        for other in names[:place]
    }
    for name in names:
        own = min(distance for pair, distance in apart.items() if name in pair)
        rest = max(distance for pair, distance in apart.items() if name not in pair)
        if own > rest:
            return name
    return ""


def _distance(one: Array, other: Array, valid: Array) -> float:
    """RMS of the difference over valid elements; infinite where a shape differs or a value is not finite."""
    if one.shape != other.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        difference = (one.astype(np.float64) - other.astype(np.float64))[valid]
    found = math.sqrt(float(np.mean(np.square(difference)))) if difference.size else 0.0
    return found if math.isfinite(found) else math.inf
