"""`io.decoder`: which input and output of a model that generates is for what, as its writer decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..arguments import flag, integer, number, require, several
from ..errors import FeedError, UsageError
from .contract import IO, TensorSpec, dims_in

IN_PLACE = "attnport.in_place"
"""The key of the metadata of a model that writes to its caches where input and output are one buffer; it holds the name
of the input of new tokens."""
Covers = Literal["all", "past", "new"]
_UNLIMITED = (1 << 31) - 1
"""The tokens before new ones where no dim counts them."""


def not_generating(why: str = "") -> FeedError:
    """The error about a model that does not generate, with the reason if it is known."""
    return FeedError(f"the model does not generate{why and ': '}{why}. Decoders of hf: do, exported --with-past.")


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
        FeedError: a value has no meaning.
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
        for name, usual in _USUAL.items():
            object.__setattr__(self, name, _value(name, usual, getattr(self, name)))

    def changed(self, **given: Any) -> Rules:
        """These rules with other values. A `min_tokens` takes the place of any `min_length`, as in transformers.

        Raises:
            FeedError: a value has no meaning.
        """
        if "min_tokens" in given:
            given["min_length"] = 0
        return dataclasses.replace(self, **given)


_USUAL = {field.name: field.default for field in dataclasses.fields(Rules)}
NAMES = frozenset(_USUAL)


def _value(name: str, usual: Any, value: Any) -> Any:
    """The value of a rule, as the rule keeps it. Raises FeedError if it has no meaning."""
    if name == "bad_words":
        words = tuple(_ids(name, word) for word in several(name, value, "lists of token ids"))
        require(all(words), name, list(words), "lists of one or more token ids")
        return words
    if isinstance(usual, tuple):
        return _ids(name, value)
    if isinstance(usual, bool):
        return flag(name, value)
    if isinstance(usual, int):
        return integer(name, value, 1, MOST_BEAMS) if name == "beams" else integer(name, value, 0)
    return number(name, value, 0, above=True) if name == "repetition_penalty" else number(name, value)


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


class Roles:
    """A decoder's inputs and outputs, checked against their use, and the sizes that their dims give.

    Attributes:
        ids, mask, mask_covers, positions, logits: As of `Decoder`.
        caches: Inputs, each with the output that follows it and the axis of its length, None for a state.
        returns_whole_cache: Whether the outputs of caches are whole caches, and not what is to be put behind them.
        scores_every_token: Whether there are scores after every new token, and not after the last alone.
        mask_covers_new: Whether a mask can say that new tokens are padding.
        context: The other inputs, which are the same at every step: those of cross-attention.
        past, start: The dim of the cache's length, "" without one, and how many empty places it begins with.
        longest_seq, longest_past: The most new tokens of a pass, and the most tokens before them.
        window, window_mask: Of the caches that hold the last tokens alone, and what says which of these and of the new
            ones are real; None = all hold all.
        window_most: The most tokens that these hold.
    """

    def __init__(self, io: IO, decoder: Decoder) -> None:
        """Finds what a decoder names. Raises UsageError: an input or output is missing, or does not fit its use."""
        self._io, self._decoder, window = io, decoder, decoder.window
        inputs, outputs = {spec.name: spec for spec in io.inputs}, {spec.name: spec for spec in io.outputs}
        own_mask = window.mask if window else None
        used = (decoder.ids, decoder.positions, decoder.mask, own_mask, *(cache.input for cache in decoder.caches))
        _once(used, inputs, "input")
        _once([decoder.logits, *(cache.output for cache in decoder.caches)], outputs, "output")
        self.ids, self.logits = inputs[decoder.ids], outputs[decoder.logits]
        self.mask, self.positions = inputs.get(decoder.mask or ""), inputs.get(decoder.positions or "")
        self.mask_covers, self.mask_covers_new = decoder.mask_covers, decoder.mask_covers in ("all", "new")
        self.scores_every_token = len(self.logits.dims) == 3
        self.caches = tuple((inputs[cache.input], cache.output, cache.axis) for cache in decoder.caches)
        self.returns_whole_cache = decoder.output_holds != "new"
        self.context = tuple(spec for spec in io.inputs if spec.name not in used)
        self._dims = dims = {dim.name: dim for dim in io.dims}
        self._check_tokens()
        self._batch, self._seq = str(self.ids.dims[0]), self.ids.dims[1]
        for cache, (spec, _, _) in zip(decoder.caches, self.caches, strict=True):
            self._check_cache(cache, spec, outputs[cache.output])
        far, near = ({str(spec.dims[axis]) for spec, axis in self.growing(holds)} for holds in ("all", "window"))
        self._check_kinds(far, near)
        self.past = next(iter(far or near), "")
        covered: dict[str | None, list[str | int]] = {"past": [self.past], "new": [self._seq]}
        self._check_mask(self.mask, covered.get(decoder.mask_covers, _grown(self.past, self._seq)))
        self._check_mask(inputs.get(own_mask or ""), _grown(next(iter(near), ""), self._seq))
        fits = self.positions is None or (self.positions.high is not None and self.positions.dims == self.ids.dims)
        _require(fits, f"{self.positions}: expected positions with a high")
        changing = {str(self._seq), *far, *near} & dims.keys()
        for spec in self.context:
            grows = any(changing & dims_in(dim) for dim in spec.dims if isinstance(dim, str))
            _require(not grows, f"{spec} differs from step to step, and nothing says what it is for")
        self.longest_seq = dims[str(self._seq)].max if self._seq in dims else 1
        self.start = dims[self.past].min if self.past else 0
        self.longest_past = dims[self.past].max if self.past else _UNLIMITED
        self.window, self.window_mask = window, inputs[own_mask or decoder.mask or ""] if window else None
        self.window_most = dims[min(near)].max if near else 0
        if window:
            if self.window_most < window.places:  # so few that none may go
                self.longest_past = min(self.longest_past, self.window_most)
            elif self.positions and self.positions.high:
                self.longest_past = self.start + self.positions.high - 1

    def growing(self, holds: Literal["all", "window"]) -> list[tuple[TensorSpec, int]]:
        """The inputs of caches that hold all tokens, or the last ones alone, each with the axis of its length."""
        pairs = zip(self._decoder.caches, self.caches, strict=True)
        return [(spec, axis) for cache, (spec, _, axis) in pairs if axis is not None and cache.holds == holds]

    def _check_tokens(self) -> None:
        decoder, ids = self._decoder, self.ids
        for what, tokens in (("stop", decoder.stop), ("start", decoder.start)):
            _require(not tokens or min(tokens) >= 0, f"got {what} {list(tokens)}; expected token ids of 0 or more")
        two = ids.high is not None and len(ids.dims) == 2
        fits = two and ids.dims[0] in self._dims and (ids.dims[1] == 1 or ids.dims[1] in self._dims)
        _require(fits, f"{ids}: expected [batch, seq], with a high")
        known = ((ids.dims[0], ids.high), (*ids.dims, ids.high))
        _require(self.logits.dims in known, f"{self.logits} does not score the {ids.high} ids")

    def _check_cache(self, cache: Cache, taken: TensorSpec, given: TensorSpec) -> None:
        """Checks one cache, and the output that follows it."""
        axis, seq = cache.axis, self._seq
        _require((axis is None) is (cache.holds is None), f"{cache.input}: a state, and nothing else, has no axis")
        _require(self._batch in taken.dims, f"{taken}: a cache has the dim {self._batch}")
        expected = [taken.dims]
        if axis is not None:
            own = 0 <= axis < len(taken.dims) and taken.dims[axis] in self._dims.keys() - {self._batch, str(seq)}
            _require(own, f"{taken}: its length is no dim of its own at axis {axis}")
            lengths: Sequence[str | int] = _grown(taken.dims[axis], seq) if self.returns_whole_cache else [seq]
            expected = [(*taken.dims[:axis], each, *taken.dims[axis + 1 :]) for each in lengths]
        _require(given.dims in expected, f"{given} does not follow {taken}")

    def _check_kinds(self, far: set[str], near: set[str]) -> None:
        """Checks what caches of all tokens, of a window, and states have to do with each other and with masks."""
        decoder, window, covers = self._decoder, self._decoder.window, self._decoder.mask_covers
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
        _require((decoder.mask is None) is (covers is None), "mask_covers is null where mask is")
        of_states = growing is not (covers == "new") or decoder.mask is None
        _require(of_states, 'mask_covers is "new" where every cache is a state, and nowhere else')
        _require(window is None or covers == "all", 'with a window, mask_covers is "all"')

    def _check_mask(self, spec: TensorSpec | None, lengths: Collection[str | int]) -> None:
        if spec is None:
            return
        held = [mask for mask in self._io.masks if mask.input == spec.name]
        keeps = bool(held) and all(mask.carries == "mask" and mask.polarity == "keep" for mask in held)
        fits = len(spec.dims) == 2 and spec.dims[0] == self._batch and spec.dims[1] in lengths
        expected = f"[{self._batch}, {' or '.join(map(str, lengths))}]"
        _require(keeps and fits, f"{spec}: expected a mask that keeps, {expected}")


def _grown(length: str | int, seq: str | int) -> list[str | int]:
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
