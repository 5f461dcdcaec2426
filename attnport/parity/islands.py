"""The search for the smallest set of parts that must stay in float32, by measured error alone.

It knows no graph and no runtime: parts are names, and `evaluate` says how far a set of them is from the bound. First
none is tried, then the suspects, then all; where all are needed to be sure, halves are tried as QuickXplain does
(Junker, AAAI 2004), which needs few evaluations for few islands. At the end each island is taken out alone: what is
returned is minimal in the sense that no single one of them can go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

Parts = frozenset[str]


class NothingHolds(Exception):
    """Not even all parts together keep the bound; `share` is how far they are from it."""

    def __init__(self, share: float) -> None:
        super().__init__(f"{share:.3g} of the bound")
        self.share = share


@dataclass(frozen=True)
class Islands:
    """What a search found.

    Attributes:
        parts: The islands, in the order of the parts; empty where none is needed.
        share: The error with them, of the bound.
        share_of_none: The error without any; inf or NaN where it is not finite.
        without: By island, the error with that one alone taken out; those that were not tried are missing, and there
            are some only where `capped`.
        evaluations: How many sets were evaluated.
        capped: The limit was reached: the bound is kept, but fewer islands may do.
    """

    parts: tuple[str, ...]
    share: float
    share_of_none: float
    without: Mapping[str, float]
    evaluations: int
    capped: bool = False


class _Spent(Exception):
    """The limit of evaluations is reached."""


@dataclass
class _Search:
    evaluate: Callable[[Parts], float]
    order: tuple[str, ...]
    most: int
    known: dict[Parts, float] = field(default_factory=dict)

    def share(self, parts: Collection[str]) -> float:
        wanted = frozenset(parts)
        if wanted not in self.known:
            if len(self.known) >= self.most:
                raise _Spent
            self.known[wanted] = self.evaluate(wanted)
        return self.known[wanted]

    def holds(self, parts: Collection[str]) -> bool:
        return self.share(parts) <= 1.0  # a NaN does not

    def smallest(self) -> Parts:
        """The smallest set known to keep the bound."""
        return min((parts for parts, share in self.known.items() if share <= 1.0), key=len)


def search(
    parts: Sequence[str],
    evaluate: Callable[[Parts], float],
    suspects: Collection[str] = (),
    most: int = 100,
) -> Islands:
    """The parts that must stay in float32.

    Args:
        parts: All of them, in the order of the graph.
        evaluate: The error with a set of parts in float32 and all others in half precision, as a share of the bound:
            up to 1 keeps it, NaN and inf do not.
        suspects: Parts that have values which half precision cannot hold; tried first.
        most: The limit of evaluations, at least 3.

    Raises:
        NothingHolds: the bound fails with every part in float32.
    """
    likely = [part for part in parts if part in suspects]
    ordered = (*likely, *(part for part in parts if part not in suspects))
    run = _Search(evaluate, ordered, max(most, 3))
    capped = False
    try:
        found = _start(run, likely)
        found = _shrunk(run, found)
    except _Spent:
        capped, found = True, run.smallest()
    without = {part: run.known[found - {part}] for part in parts if part in found and found - {part} in run.known}
    shown = tuple(part for part in parts if part in found)
    return Islands(shown, run.known[found], run.known.get(frozenset(), math.nan), without, len(run.known), capped)


def _start(run: _Search, suspects: Sequence[str]) -> Parts:
    """A set that keeps the bound: none, the suspects, or the few of all that QuickXplain finds."""
    if run.holds(()):
        return frozenset()
    if suspects and run.holds(suspects):
        return frozenset(suspects)
    if not run.holds(run.order):
        raise NothingHolds(run.share(run.order))
    return frozenset(_needed(run, (), list(run.order), fresh=False))


def _needed(run: _Search, given: Sequence[str], among: list[str], *, fresh: bool) -> list[str]:
    """Of `among`, in order of preference, enough that the bound holds together with `given`.

    `fresh`: `given` grew since it was last tried.
    """
    if fresh and run.holds(given):
        return []
    if len(among) == 1:
        return among
    first, second = among[: len(among) // 2], among[len(among) // 2 :]
    behind = _needed(run, [*given, *first], second, fresh=True)
    before = _needed(run, [*given, *behind], first, fresh=bool(behind))
    return [*before, *behind]


def _shrunk(run: _Search, found: Parts) -> Parts:
    """Takes out what can go, until each part that is left was measured to be needed beside the others."""
    while True:
        for part in reversed(run.order):
            if part in found and run.holds(found - {part}):
                found -= {part}
        if not any(run.holds(found - {part}) for part in found):
            return found
