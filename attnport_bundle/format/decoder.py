"""`io.decoder`: which input and output of a model that generates is for what, as its writer decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..arguments import flag, integer, number, several
from ..errors import FeedError, UsageError
from . import expressions
from .contract import IO, TensorSpec

IN_PLACE = "attnport.in_place"
"""The key of the metadata of a model that writes to its caches where input and output are one buffer; it holds the name
of the input of new tokens."""
Covers = Literal["all", "past", "new"]
_UNLIMITED = (1 << 31) - 1
"""The tokens before new ones where no dim counts them."""


def not_generating(why: str = "") -> FeedError:
    """The error about a model that does not generate, with the reason if it is known."""
    return FeedError(f"the model does not generate{why and ': '}{why}. Of hf:, export it with --with-past.")


MOST_BEAMS = 1000
"""A contract may come from anybody, and each beam takes memory."""


@dataclass(frozen=True)
class Rules:
    """How a decoder's tokens are chosen unless a call says otherwise; without a value, by the scores alone.

    In brackets, the name in transformers.

    Attributes:
        suppress: Tokens that never follow [suppress_tokens].
        suppress_first: Tokens that are not the first new one [begin_suppress_tokens]; behind `forced_first`, not the
            second.
        bad_words: Sequences of tokens that are never completed, except for a single end [bad_words_ids].
        forced_first: What follows a single token, if any are named [forced_bos_token_id].
        forced_last: What the last of `max_tokens` is, if any are named [forced_eos_token_id].
        min_length: A text of fewer tokens, with its prompt, does not end [min_length].
        min_tokens: A text of fewer new tokens does not end [min_new_tokens].
        repetition_penalty: Divides positive scores of tokens that the text has, with its prompt, and multiplies
            negative ones [repetition_penalty].
        no_repeat_ngram: So many tokens in a row are in a text, with its prompt, once; 0 = any number of times
            [no_repeat_ngram_size].
        beams: 1, or the number of beginnings that beam search follows [num_beams].
        length_penalty: Beam search divides a text's log probability by its length to this power [length_penalty].
        early_stopping: Beam search is over with as many texts as beams, also where a better one may follow
            [early_stopping].
        renormalize: Beam search makes probabilities of what the other rules leave [renormalize_logits].

    Raises:
        UsageError: a value has no meaning.
    """

    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    forced_first: tuple[int, ...] = ()
    forced_last: tuple[int, ...] = ()
    min_length: int = 0
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    renormalize: bool = False

    def __post_init__(self) -> None:
        for name in ("suppress", "suppress_first", "forced_first", "forced_last"):
            if any(token < 0 for token in getattr(self, name)):
                raise UsageError(f"{name}: got {list(getattr(self, name))}; expected token ids of 0 or more.")
        if any(not word or min(word) < 0 for word in self.bad_words):
            raise UsageError("bad_words: expected lists of one or more token ids of 0 or more.")
        for name, fits, expected in (
            ("min_length", self.min_length >= 0, "0 or more"),
            ("min_tokens", self.min_tokens >= 0, "0 or more"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            ("no_repeat_ngram", self.no_repeat_ngram >= 0, "0 or more"),
            ("beams", 1 <= self.beams <= MOST_BEAMS, f"1 to {MOST_BEAMS}"),
        ):
            if not fits:
                raise UsageError(f"{name}: got {getattr(self, name)}; expected {expected}.")

    def changed(self, **given: Any) -> Rules:
        """These rules with other values. A `min_tokens` takes the place of any `min_length`, as in transformers.

        Raises:
            UsageError: a value has no meaning.
        """
        if "min_tokens" in given:
            given = {**given, "min_length": 0}
        return dataclasses.replace(self, **{name: _value(name, value) for name, value in given.items()})


_USUAL = {field.name: field.default for field in dataclasses.fields(Rules)}
NAMES = frozenset(_USUAL)


def _value(name: str, value: Any) -> Any:
    """A caller's value of a rule, as the rule keeps it. Raises FeedError if it is of another kind."""
    usual = _USUAL[name]
    if name == "bad_words":
        return tuple(_ids(name, word) for word in several(name, value, "lists of token ids"))
    if isinstance(usual, tuple):
        return _ids(name, value)
    if isinstance(usual, bool):
        return flag(name, value)
    return integer(name, value, 0) if isinstance(usual, int) else number(name, value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(integer(name, each, 0, what="token ids of") for each in several(name, value, "lists of token ids"))


@dataclass(frozen=True)
class Cache:
    """A tensor that a model gives at each step and takes at the next.

    Attributes:
        input, output: The names of the input, and of the output that follows it.
        axis: Where its length is; None for a state, whose size stays.
        holds: All tokens, or those of a window, the last ones; None for a state.
    """

    input: str
    output: str
    axis: int | None
    holds: Literal["all", "window"] | None


@dataclass(frozen=True)
class Window:
    """What the caches of layers with a sliding window hold.

    Attributes:
        mask: The input `[batch, window+seq]` that says which of the cached and new tokens are real; None where every
            cache is of a window, so that the decoder's `mask` is this one.
        places: So many tokens before a new one may be seen. Where there are more, the caches hold these at least.
    """

    mask: str | None
    places: int

    def __post_init__(self) -> None:
        if self.places < 1:
            raise UsageError(f"window: got {self.places} places; expected 1 or more.")


@dataclass(frozen=True)
class Decoder:
    """What the inputs and outputs of a model that generates are for. All other inputs are the same at every step.

    Attributes:
        ids: The input of new tokens, `[batch, seq]`, or `[batch, 1]` of a model that takes one at a time.
        mask: The input that says which tokens are real; None = all are.
        mask_covers: Which tokens the mask is about: past and new ones, past ones alone, or new ones alone.
        positions: The input of the new tokens' positions; None where the model counts them itself.
        logits: The output that scores the next token, `[batch, vocabulary]`, or after every new token,
            `[batch, seq, vocabulary]`.
        output_holds: Whether the outputs of caches are whole caches, or only what is put behind them; None where every
            cache is a state.
        window: Of the caches that hold the last tokens alone; None = there are none.
        stop: The tokens that end a text.
        start: The tokens that a text behind an encoder begins with.
        rules: How tokens are chosen unless a call says otherwise; None = by the scores alone.
    """

    ids: str
    mask: str | None
    mask_covers: Covers | None
    positions: str | None
    logits: str
    caches: tuple[Cache, ...]
    output_holds: Literal["all", "new"] | None
    window: Window | None
    stop: tuple[int, ...]
    start: tuple[int, ...]
    rules: Rules | None

    def check(self, io: IO) -> None:
        """Raises UsageError unless the inputs and outputs of `io` fit their use."""
        _Check(self, io).all()


class _Check:
    """Compares a decoder with the contract of its model."""

    def __init__(self, decoder: Decoder, io: IO) -> None:
        self._decoder, self._io = decoder, io
        self._inputs = {spec.name: spec for spec in io.inputs}
        self._outputs = {spec.name: spec for spec in io.outputs}
        self._dims = {dim.name: dim for dim in io.dims}

    def all(self) -> None:
        decoder = self._decoder
        masks = (decoder.mask, decoder.window.mask if decoder.window else None)
        taken = [decoder.ids, decoder.positions, *masks, *(cache.input for cache in decoder.caches)]
        _once(taken, self._inputs, "input")
        _once([decoder.logits, *(cache.output for cache in decoder.caches)], self._outputs, "output")
        for what, tokens in (("stop", decoder.stop), ("start", decoder.start)):
            _require(not tokens or min(tokens) >= 0, f"got {what} {list(tokens)}; expected token ids of 0 or more")
        ids, logits = self._inputs[decoder.ids], self._outputs[decoder.logits]
        two = ids.high is not None and len(ids.dims) == 2
        fits = two and ids.dims[0] in self._dims and (ids.dims[1] == 1 or ids.dims[1] in self._dims)
        _require(fits, f"{ids}: expected [batch, seq], with a high")
        batch, seq = str(ids.dims[0]), ids.dims[1]
        known = ((batch, ids.high), (batch, seq, ids.high))
        _require(logits.dims in known, f"{logits} does not score the {ids.high} ids")
        for cache in decoder.caches:
            self._cache(cache, batch, seq)
        far, near = self._lengths("all"), self._lengths("window")
        self._kinds(far, near)
        self._masks(batch, seq, next(iter(far or near), None), next(iter(near), None))
        changing = {str(seq), *far, *near} & self._dims.keys()
        for name in context_of(decoder, self._inputs):
            grows = any(changing & expressions.names(dim) for dim in self._inputs[name].dims if isinstance(dim, str))
            _require(not grows, f"{self._inputs[name]} differs from step to step, and nothing says what it is for")

    def _lengths(self, holds: str) -> set[str]:
        """The dims that are the lengths of caches."""
        return {str(self._inputs[cache.input].dims[cache.axis]) for cache in self._decoder.caches
                if cache.axis is not None and cache.holds == holds}  # fmt: skip

    def _cache(self, cache: Cache, batch: str, seq: str | int) -> None:
        """Checks one cache, and the output that follows it."""
        taken, given, axis = self._inputs[cache.input], self._outputs[cache.output], cache.axis
        _require((axis is None) is (cache.holds is None), f"{cache.input}: a state, and nothing else, has no axis")
        _require(batch in taken.dims, f"{taken}: a cache has the dim {batch}")
        expected = [taken.dims]
        if axis is not None:
            own = 0 <= axis < len(taken.dims) and taken.dims[axis] in self._dims.keys() - {batch, str(seq)}
            _require(own, f"{taken}: its length is no dim of its own at axis {axis}")
            new = self._decoder.output_holds == "new"
            lengths: Sequence[str | int] = [seq] if new else _grown(taken.dims[axis], seq)
            expected = [(*taken.dims[:axis], each, *taken.dims[axis + 1 :]) for each in lengths]
        _require(given.dims in expected, f"{given} does not follow {taken}")

    def _kinds(self, far: set[str], near: set[str]) -> None:
        """Checks what caches of all tokens, of a window, and states have to do with each other."""
        decoder, window = self._decoder, self._decoder.window
        growing = bool(far or near)
        _require(bool(decoder.caches), "it has no cache")
        _require(growing is (decoder.output_holds is not None), "output_holds is null where every cache is a state")
        alike = len(far) < 2 and len(near) < 2 and not far & near
        _require(alike, "caches of one kind have one length of their own")
        _require(bool(near) is (window is not None), "caches of a window, and nothing else, have a window")
        if window:
            _require(decoder.output_holds == "all", "the outputs of caches with a window hold all of them")
            own = (window.mask is not None) is bool(far) is (decoder.positions is None)
            _require(own, "the window has a mask of its own, or all caches are of it and positions is an input")
        else:
            _require(decoder.positions is None, "positions are for models with a window alone")
        least = {self._dims[name].min for name in far | near}
        _require(len(least) < 2, "caches begin with different numbers of places")
        _require(decoder.mask is not None or not any(least), "its cache cannot be empty, and no mask hides a place")

    def _masks(self, batch: str, seq: str | int, past: str | None, near: str | None) -> None:
        decoder, covers = self._decoder, self._decoder.mask_covers
        _require((decoder.mask is None) is (covers is None), "mask_covers is null where mask is")
        of_states = (past is None) is (covers == "new") or decoder.mask is None
        _require(of_states, 'mask_covers is "new" where every cache is a state, and nowhere else')
        _require(decoder.window is None or covers == "all", 'with a window, mask_covers is "all"')
        covered: dict[str | None, Collection[str | int | None]] = {"past": [past], "new": [seq]}
        self._mask(decoder.mask, batch, covered.get(covers, _grown(past, seq)))
        self._mask(decoder.window.mask if decoder.window else None, batch, _grown(near, seq))
        if decoder.positions is not None:
            spec = self._inputs[decoder.positions]
            _require(spec.high is not None and spec.dims == (batch, seq), f"{spec}: expected positions with a high")

    def _mask(self, name: str | None, batch: str, lengths: Collection[str | int | None]) -> None:
        if name is None:
            return
        held = [mask for mask in self._io.masks if mask.input == name]
        keeps = bool(held) and all(mask.carries == "mask" and mask.polarity == "keep" for mask in held)
        spec = self._inputs[name]
        fits = len(spec.dims) == 2 and spec.dims[0] == batch and spec.dims[1] in lengths
        _require(keeps and fits, f"{spec}: expected a mask that keeps, [{batch}, {' or '.join(map(str, lengths))}]")


def _grown(length: str | int | None, seq: str | int) -> list[str]:
    """The size of a length and the new tokens, in both ways to write it."""
    return [f"{length}+{seq}", f"{seq}+{length}"]


def _once(names: Collection[str | None], known: Collection[str], what: str) -> None:
    """Raises UsageError unless each is known, and there once."""
    named = [name for name in names if name is not None]
    for name in named:
        _require(name in known, f"{name!r} is no {what}")
        _require(named.count(name) == 1, f"the {what} {name!r} is named twice")


def _require(fits: bool, problem: str) -> None:
    if not fits:
        raise UsageError(f"decoder: {problem}.")


def context_of(decoder: Decoder, inputs: Collection[str]) -> list[str]:
    """The inputs that are the same at every step: those that have no other use, in their order."""
    window = decoder.window.mask if decoder.window else None
    used = {decoder.ids, decoder.mask, decoder.positions, window, *(cache.input for cache in decoder.caches)}
    return [name for name in inputs if name not in used]


class Kept(NamedTuple):
    """Caches that hold the last tokens alone.

    Attributes:
        names: Of their inputs.
        mask: What says which of these tokens and of the new ones are real, `[batch, window+seq]`.
        places: How many they hold at least, where there are as many.
        most: How many they hold at most.
    """

    names: frozenset[str]
    mask: TensorSpec
    places: int
    most: int


class Roles:
    """A decoder's inputs and outputs, which fit its contract, and what follows from their dims.

    Attributes:
        ids, mask, mask_covers, positions, logits: As of `Decoder`.
        caches: Inputs, each with the output that follows it and the axis of its length, None for a state.
        returns_whole_cache: Whether the outputs of caches are whole caches, and not what is to be put behind them.
        scores_every_token: Whether there are scores after every new token, and not after the last alone.
        mask_covers_new: Whether a mask can say that new tokens are padding.
        context: The other inputs, which are the same at every step: those of cross-attention.
        past, start: The dim of the cache's length, "" without one, and how many empty places it begins with.
        longest_seq, longest_past: The most new tokens of a pass, and the most tokens before them.
        window: The caches that hold the last tokens alone; None = all hold all.
    """

    def __init__(self, io: IO, decoder: Decoder) -> None:
        inputs, dims = {spec.name: spec for spec in io.inputs}, {dim.name: dim for dim in io.dims}
        self.ids = inputs[decoder.ids]
        self.mask, self.positions = inputs.get(decoder.mask or ""), inputs.get(decoder.positions or "")
        self.mask_covers, self.mask_covers_new = decoder.mask_covers, decoder.mask_covers in ("all", "new")
        self.logits = next(spec for spec in io.outputs if spec.name == decoder.logits)
        self.scores_every_token = len(self.logits.dims) == 3
        self.caches = tuple((inputs[cache.input], cache.output, cache.axis) for cache in decoder.caches)
        self.returns_whole_cache = decoder.output_holds != "new"
        self.context = tuple(inputs[name] for name in context_of(decoder, inputs))
        self.longest_seq = dims[str(self.ids.dims[1])].max if self.ids.dims[1] in dims else 1
        lengths = {cache.holds: str(inputs[cache.input].dims[cache.axis]) for cache in decoder.caches
                   if cache.axis is not None}  # fmt: skip
        self.past = lengths.get("all") or lengths.get("window", "")
        self.start = dims[self.past].min if self.past else 0
        self.longest_past = dims[self.past].max if self.past else _UNLIMITED
        self.window: Kept | None = None
        if decoder.window:
            names = frozenset(cache.input for cache in decoder.caches if cache.holds == "window")
            places, most = decoder.window.places, dims[lengths["window"]].max
            self.window = Kept(names, inputs[decoder.window.mask or decoder.mask or ""], places, most)
            if most < places:  # so few that none may go
                self.longest_past = min(self.longest_past, most)
            elif self.positions and self.positions.high:
                self.longest_past = self.start + self.positions.high - 1
