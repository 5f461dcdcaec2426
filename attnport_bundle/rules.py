"""What decides besides the scores which token follows: a generation config's rules, as transformers applies them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .arguments import flag, integer, number, several
from .decode import STRICT
from .errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
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

    __pydantic_config__ = STRICT

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


class Ruled:
    """Rules on the scores of texts that grow."""

    def __init__(self, rules: Rules, stop: Collection[int], max_tokens: int) -> None:
        """Keeps what the rules are about.

        Args:
            stop: The tokens that end a text.
            max_tokens: The most new tokens of a text.
        """
        self._rules, self._stop, self._max_tokens = rules, sorted(stop), max_tokens
        self._bad_words = [word for word in rules.bad_words if len(word) > 1 or word[0] not in self._stop]
        plain = Rules(beams=rules.beams, length_penalty=rules.length_penalty, early_stopping=rules.early_stopping)
        self._changes_nothing = dataclasses.replace(rules, renormalize=False) == plain

    def applied(self, scores_BV: Array, texts: Iterable[tuple[Sequence[int], Sequence[int]] | None]) -> Array:
        """The scores by which a token is chosen; -inf is one that may not follow.

        Args:
            scores_BV: Scores, or log probabilities.
            texts: For each row, the prompt and the new tokens; None where the text has ended.
        """
        import numpy as np

        if self._changes_nothing:
            return scores_BV
        scores_BV = scores_BV.astype(np.float64)
        for scores_V, text in zip(scores_BV, texts, strict=True):
            if text is not None:
                self._apply(scores_V, [*text[0], *text[1]], text[1])
        return scores_BV

    def _apply(self, scores_V: Array, text: Sequence[int], new: Sequence[int]) -> None:
        """Changes one row; in the order of transformers, as a rule may be about what another one left."""
        import numpy as np

        rules, count = self._rules, len(scores_V)

        def known(tokens: Iterable[int]) -> list[int]:
            return [token for token in tokens if token < count]

        if rules.repetition_penalty != 1:
            seen = known(set(text))
            old = scores_V[seen]
            scores_V[seen] = np.where(old < 0, old * rules.repetition_penalty, old / rules.repetition_penalty)
        scores_V[known(self._completing(text))] = -np.inf
        if len(text) < rules.min_length or len(new) < rules.min_tokens:
            scores_V[known(self._stop)] = -np.inf
        forced_first = bool(rules.forced_first) and len(text) == 1
        for forced, now in ((rules.forced_first, forced_first),
                            (rules.forced_last, len(new) + 1 == self._max_tokens)):  # fmt: skip
            if forced and now:
                scores_V[:] = -np.inf
                scores_V[known(forced)] = 0
        scores_V[known(rules.suppress)] = -np.inf
        # What was forced behind a single token is no choice, so that the first one is the next.
        behind_forced = bool(rules.forced_first) and len(text) - len(new) == 1
        if len(new) == int(behind_forced):
            scores_V[known(rules.suppress_first)] = -np.inf

    def _completing(self, text: Sequence[int]) -> Iterable[int]:
        """The tokens that would complete a bad word, or repeat what may be in the text once."""
        for word in self._bad_words:
            before = len(word) - 1
            if before <= len(text) and list(word[:before]) == list(text[len(text) - before :]):
                yield word[-1]
        size = self._rules.no_repeat_ngram
        if 0 < size <= len(text):
            begun = list(text[len(text) + 1 - size :])
            for at in range(len(text) - size + 1):
                if list(text[at : at + size - 1]) == begun:
                    yield text[at + size - 1]
