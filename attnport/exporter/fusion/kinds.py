"""The kinds of a mask that was read as formulas: padding, causal, window, ... as a MaskSpec names them.

A kind is named only if it is proved: the mask that the MaskSpec means, built from its input, is the mask of the
formulas. Any condition without a proof makes the mask `explicit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from attnport.exporter.fusion.formula import (
    BATCH,
    TRUE,
    ZERO,
    Axis,
    Bound,
    Const,
    Expr,
    Held,
    I,
    J,
    Lengths,
    Op,
    Read,
    always,
    axes_of,
    bound,
    conjuncts,
    disjuncts,
    is_of_keys,
    length_of,
    linear,
    moved,
    normal,
    op,
    position,
    reads_of,
    same,
    same_at_query,
    size_sum,
    terms,
    truth_of,
    written,
)
from attnport.masks import MaskSpec
from attnport.onnx_graph import ir

Rows = Literal["none", "padding", "any"]
"""Rows that may have no allowed key in an item that has keys: none, those of padding alone, or any."""


def spec_of(keeps: Iterable[Expr], *, biased: bool, lengths: Sequence[Expr | None] = (None, None)) -> MaskSpec:
    """The MaskSpec of a mask that allows a key where every formula of `keeps` holds.

    Args:
        keeps: Over the axes b, h, i, j.
        biased: Whether a bias is added to the scores too.
        lengths: Query and key length as formulas, which are needed to prove `lower_right`; None = unknown.
    """
    known = _lengths(*lengths)
    reading = _Reading(known, dict(zip((I, J), lengths, strict=True)))
    for keep in keeps:
        for part in conjuncts(normal(keep)):
            reading.take(part)
    return reading.spec(biased=biased)


def hides_padding(keeps: Iterable[Expr], mask: MaskSpec) -> bool:
    """Whether a mask that allows a key where every formula of `keeps` holds hides what the input of `mask` hides.

    Args:
        mask: A padding mask `[B,T]`, of which item b hides keys from the queries of item b.
    """
    truths = [truth_of(part) for keep in keeps for part in conjuncts(normal(keep))]
    return any(
        (read.value.name, read.index, polarity) == (mask.input, (BATCH, J), mask.polarity)
        for read, polarity in filter(None, truths)
    )


def hidden_by(keeps: Iterable[Expr]) -> list[ir.Value]:
    """The tensors by which keys are hidden from all queries of an item, so that it may have none; as of `spec_of`."""
    parts = [part for keep in keeps for part in conjuncts(normal(keep)) if is_of_keys(part)]
    return list({read.value: None for part in parts for read in reads_of(part)})


def rows_without_key(keeps: Iterable[Expr], lengths: Sequence[Expr | None] = (None, None)) -> Rows:
    """Which rows of an item that has keys may be without an allowed key, as far as formulas as of `spec_of` tell."""
    parts = [part for keep in keeps for part in conjuncts(normal(keep))]
    if all(axes_of(part) <= {"b", "h", "j"} for part in parts):
        return "none"
    query, key = (terms(each) if each is not None else None for each in lengths)
    if query is None or key is None:
        return "any"
    known = Lengths(query, key)
    if min(known.shift.values(), default=0) < 0:
        return "any"  # of more queries than keys, the first have no position of their own
    # A query whose own position is an allowed key has one.
    own = op("Add", I, written(known.shift)) if known.shift else I
    of_keys = {normal(moved(part, own)) for part in parts if is_of_keys(part)}
    at_own = {normal(moved(part, own)) for part in parts}
    left = {part for part in at_own - of_keys if part != TRUE and not always(part, known)}
    return "any" if left else "padding" if of_keys else "none"


def last_sees_all(keeps: Iterable[Expr], lengths: Sequence[Expr | None] = (None, None)) -> bool:
    """Whether the last query may attend to every key that is no padding, as behind a causal mask.

    It is then without a key only in an item without any. The arguments are those of `spec_of`.
    """
    query, key = (terms(each) if each is not None else None for each in lengths)
    if query is None or key is None:
        return False
    last = op("Sub", written(query), Const(1))
    parts = (normal(part) for keep in keeps for part in conjuncts(normal(keep)) if not is_of_keys(part))
    return all(always(normal(moved(part, last, I)), Lengths(query, key)) for part in parts)


def _lengths(query: Expr | None, key: Expr | None) -> Lengths | None:
    sums = [linear(length) if length is not None else None for length in (query, key)]
    return Lengths(sums[0], sums[1]) if sums[0] is not None and sums[1] is not None else None


class _Reading:
    """What the conditions so far mean."""

    def __init__(self, lengths: Lengths | None, sizes: Mapping[Expr, Expr | None]) -> None:
        self.lengths = lengths
        self.sizes = sizes
        """By index variable, the number of its values."""
        self.held: dict[str, list[Held | None]] = {}
        """Inputs by kind, in order of appearance; None for a computed condition. Bounds have the kind `distance`."""
        self.bounds: list[Bound] = []
        self.near: list[Bound] = []
        """Bounds between tokens that are not global."""
        self.marks: set[Expr] = set()
        """The conditions that mark a key as global; with more than one, the mask is explicit."""
        self.alignments: set[str] = set()

    def take(self, part: Expr) -> None:
        """Adds a condition."""
        if always(part, self.lengths):
            return
        found = bound(part, self.lengths)
        if found is not None:
            self.held.setdefault("distance", [])
            self.bounds.append(found)
            self.alignments.add(found.alignment)
        elif reads_of(part) and is_of_keys(part):
            self._hold("padding", _padding(part) if self._fits(part) else None)
        elif not self._fits(part):
            self._hold("explicit", None)
        elif not (self._prefix(part) or self._documents(part) or self._global(part)):
            self._hold("explicit", _pairs(part))

    def _fits(self, part: Expr) -> bool:
        """Whether what a condition reads is as long as the queries and keys: the mask of a MaskSpec is.

        What is read at a query alone, as the document that it belongs to, is of keys in a MaskSpec.
        """
        return all(
            same(size_sum(read.value, axis), self.sizes.get(at))
            for read in reads_of(part)
            for axis, at in enumerate(read.index)
            if J in read.index
        )

    def _hold(self, kind: str, held: Held | None) -> None:
        self.held.setdefault(kind, []).append(held)

    def _prefix(self, part: Expr) -> bool:
        """`j <= i or j < prefix[b]`; beside `j <= i`, `i < prefix[b] and j < prefix[b]` has the same meaning."""
        alignments: set[str] = set()
        inputs: set[str] = set()
        causal = False
        for each in disjuncts(part):
            found = bound(each, self.lengths)
            if found is not None and found.later and found.by == 0:
                causal = True
                alignments.add(found.alignment)
                continue
            keys = [length_of(inner, J, self.lengths) for inner in conjuncts(each)]
            queries = [length_of(inner, I, self.lengths) for inner in conjuncts(each)]
            if not any(keys) or not all(of_key or of_query for of_key, of_query in zip(keys, queries, strict=True)):
                return False
            inputs.update(of[0] for of in (*keys, *queries) if of)
            alignments.update(of[1] for of in queries if of)
        if not causal or len(alignments) != 1 or len(inputs) != 1:
            return False
        self._hold("prefix", Held(inputs.pop(), "lengths"))
        self.alignments |= alignments
        return True

    def _documents(self, part: Expr) -> bool:
        """`ids[b, i] == ids[b, j]`."""
        if not isinstance(part, Op) or part.name != "Equal":
            return False
        reads = [arg for arg in part.args if isinstance(arg, Read) and arg.value.is_graph_input()]
        found = [position(read.index, self.lengths) for read in reads]
        places = {at[0]: at[1] for at in found if at is not None}
        if set(places) != {I, J} or len({read.value for read in reads}) != 1:
            return False
        self._hold("documents", Held(str(reads[0].value.name), "ids"))
        self.alignments.add(places[I])
        return True

    def _global(self, part: Expr) -> bool:
        """`near, or marks[b, i], or marks[b, j]`; the marks may be computed."""
        marks: dict[Expr, list[Expr]] = {I: [], J: []}
        near: list[Bound] | None = None
        for each in disjuncts(part):
            bounds = [bound(inner, self.lengths) for inner in conjuncts(each)]
            known = [found for found in bounds if found is not None]
            of = [axis for axis in (I, J) if axes_of(each) - {"b"} == axes_of(axis)]
            if near is None and len(known) == len(bounds):
                near = known
            elif of:
                marks[of[0]].append(each)
            else:
                return False
        if not near or len(marks[I]) != 1 or len(marks[J]) != 1:
            return False
        (query,), (key,) = marks[I], marks[J]
        alignment = same_at_query(key, query, self.lengths)
        if alignment is None:
            return False
        self._hold("global", _marks(key))
        self.marks.add(key)
        self.near += near
        self.alignments |= {alignment, *(found.alignment for found in near)}
        return True

    def spec(self, *, biased: bool) -> MaskSpec:
        """The MaskSpec of all conditions."""
        held = dict(self.held)
        later, before = _least(self.bounds)
        causal, proved, width = later == 0, len(self.alignments) <= 1, before
        if self.bounds:  # on one side, or the same on both
            proved = proved and (before or 0) >= 0 and (causal or later == before)
        if "global" in held:
            far, width = _least(self.near)
            # If later keys are hidden anyway, it does not matter how many of them the window includes.
            same = far == width or (causal and (far is None or far >= 0))
            proved = proved and before is None and (not self.bounds or causal) and width is not None and width >= 0
            proved = proved and same and len(self.marks) == 1
        if causal and "prefix" in held:
            del held["prefix"]  # `j <= i` alone is narrower
        if not proved:
            placed = [kind for kind in held if kind in ("distance", "prefix", "documents", "global")]
            for kind in placed:
                del held[kind]
            held["explicit"] = [*held.get("explicit", []), None]
        kinds: dict[str, None] = {}
        for kind in held:
            distance = ["causal"] * causal + ["window"] * (before is not None)
            named = {"distance": distance, "prefix": ["causal", kind], "global": ["window", kind]}.get(kind, [kind])
            kinds.update(dict.fromkeys(named))
        if biased:
            kinds["bias"] = None
        one = _one_input(held)
        placed_by = next(iter(self.alignments)) if proved and self.alignments else "upper_left"
        return MaskSpec(
            tuple(kinds) or ("none",),
            one.input if one else None,
            one.polarity if one else "keep",
            placed_by,
            width or 0 if "window" in kinds else 0,
            one.carries if one else "mask",
        )


def _least(bounds: Sequence[Bound]) -> tuple[int | None, int | None]:
    """How far a key may be after and before the query; None = any distance."""
    later, before = ([found.by for found in bounds if found.later is side] for side in (True, False))
    return min(later, default=None), min(before, default=None)


def _one_input(held: dict[str, list[Held | None]]) -> Held | None:
    """The only input of the mask; None if there are several, or if a condition is computed."""
    every = [each for of_kind in held.values() for each in of_kind]
    known = {each for each in every if each is not None}
    if None in every or len({each.input for each in known}) != 1:
        return None
    if len(known) == 1:
        one = known.pop()
        return None if one.carries == "lengths" and {"padding", "prefix"} <= set(held) else one
    ids = next((each for each in known if each.carries == "ids"), None)
    paddings = held.get("padding", [])
    from_ids = set(held) - {"distance"} == {"documents", "padding"} and all(each and each.nonzero for each in paddings)
    return ids if from_ids else None


def _marks(of_key: Expr) -> Held | None:
    """The input that marks tokens as global; None if the marks are computed."""
    truth = truth_of(of_key)
    if truth is None or truth[1] != "keep" or truth[0].index not in ((BATCH, J), (ZERO, J)):
        return None
    return Held(str(truth[0].value.name), "marks")


def _padding(part: Expr) -> Held | None:
    """The input of a condition on keys, which holds lengths or a mask; None if the condition is computed."""
    length = length_of(part, J, None)
    if length is not None:
        return Held(length[0], "lengths")
    truth = truth_of(part)
    index = truth[0].index if truth is not None else ()
    if truth is None or index[-1:] != (J,) or len(index) > 4 or any(at not in (BATCH, ZERO) for at in index[:-1]):
        return None
    nonzero = isinstance(part, Op) and part.name == "Ne"
    return Held(str(truth[0].value.name), "mask", truth[1], nonzero)


def _pairs(part: Expr) -> Held | None:
    """The input of a condition on pairs, `[B,S,T]` or `[B,H,S,T]`; None if the condition is computed."""
    truth = truth_of(part)
    if truth is None or len(truth[0].index) < 3 or truth[0].index[-2:] != (I, J):
        return None
    leading = truth[0].index[:-2]
    expected = ((BATCH, ZERO), (Axis("h"), ZERO))[: len(leading)]
    fits = all(at in allowed for at, allowed in zip(leading, expected, strict=True))
    return Held(str(truth[0].value.name), "mask", truth[1]) if fits else None
