"""Generation: prompts as ids or texts, the encoder in front, and each new token, chosen by the model's scores.

Tokens are chosen greedily, by sampling or by beam search, and by the rules of a generation config, as transformers
applies them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import flag, integer, mapping, number, require, several
from ..errors import BundleError, FeedError
from ..feeds import not_an_array
from ..format.contract import IO, TensorSpec
from ..format.decoder import NAMES, Decoder, Roles, Rules
from ..text import IDS, Tokens, open_file, text_feeds, text_length, told
from .caches import Decoding, MakeSteps, Run

if TYPE_CHECKING:
    import numpy as np

    from .caches import Array

Prompts = str | Sequence[str] | Sequence[Sequence[int]] | Mapping[str, Any]
OnToken = Callable[[int, Any], None]
NO_TOKEN = "rules: they leave no token that may follow; take some of them back, or make fewer tokens."


@dataclass(frozen=True)
class Options:
    """How tokens are chosen, as `Model.generate` says; here `stop` has ids, which are part of the result."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Collection[int] = ()
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        """Raises FeedError for what has no meaning."""
        integer("max_tokens", self.max_tokens, 1)
        number("temperature", self.temperature, 0)
        integer("top_k", self.top_k, 0)
        number("top_p", self.top_p, 0, 1, above=True)
        if self.seed is not None:
            integer("seed", self.seed, 0)
        if self.rules.beams > 1 and self.temperature > 0:
            raise FeedError("temperature: beam search draws nothing; expected 0.")


_OPTIONS = frozenset(each.name for each in dataclasses.fields(Options)) - {"stop", "rules"}
"""What a call may say besides the arguments of `generate` and the rules."""


@dataclass(frozen=True)
class Opened:
    """An open model.

    Attributes:
        run: Runs it.
        tokenizer: Its `tokenizer.json`, which texts need.
        steps: Of a decoder: makes what keeps its caches, where the runtime can.
    """

    run: Run
    io: IO
    tokenizer: Path | None
    steps: MakeSteps | None = None


def generate(
    model: Opened,
    decoder: Decoder,
    prompts: Prompts,
    *,
    encoder: Opened | None = None,
    context: Mapping[str, Array] | None = None,
    start: Sequence[int | str] | None = None,
    stop: Sequence[int | str] | None = None,
    as_text: bool | None = None,
    on_token: OnToken | None = None,
    **options: Any,
) -> Any:
    """Continues prompts, or answers those of an encoder; see `Model.generate`.

    Args:
        start, stop: None = the model's own.
        options: Those of `Options` and of `decoder.Rules`; None = the model's own.
    """
    single = isinstance(prompts, str)
    given: Any = prompts
    if not isinstance(prompts, Mapping):
        given = [prompts] if single else list(several("prompts", prompts, "texts, or lists of token ids"))
    texts = not isinstance(given, Mapping) and any(isinstance(prompt, str) for prompt in given)
    if texts and not all(isinstance(prompt, str) for prompt in given):
        raise FeedError("prompts: got texts and token ids; expected one kind.")
    require(on_token is None or callable(on_token), "on_token", on_token, "a function")
    start, stop = _named(start, "start"), _named(stop, "stop")
    stops = decoder.stop if stop is None else stop
    as_text = texts if as_text is None else flag("as_text", as_text)
    roles, context = Roles(model.io, decoder), _arrays(model.io, context)
    named = any(isinstance(each, str) for each in (*(start or ()), *stops))
    words = Words(model.tokenizer) if as_text or named or (texts and encoder is None) else None
    if encoder is not None:
        context = {**_encoded(encoder, given, roles.context, context), **context}
        begin = _tokens(decoder.start if start is None else start, words, "start")
        if not begin:
            raise FeedError("start: got no token, and the model names none; give those that a text begins with.")
        batch = roles.ids.dims[0]
        counts = [context[spec.name].shape[spec.dims.index(batch)] for spec in roles.context if batch in spec.dims]
        ids = [begin] * (counts[0] if counts else 1)
    elif isinstance(given, Mapping):
        raise FeedError("prompts: got arrays by name, which an encoder takes; give the encoder, or token ids.")
    elif start is not None:
        raise FeedError("start: texts begin with their prompts; it is for texts behind an encoder.")
    else:
        ids = [_ids(prompt, words) for prompt in given]
    ends = _tokens(stops, words, "stop")
    chosen = _options(decoder, ends, options)
    found: list[list[int]] = [[] for _ in ids]
    streams = [Stream(words, ends) for _ in ids] if words and as_text else None
    tokens_of_all = searched if chosen.rules.beams > 1 else generated
    for row, token in tokens_of_all(Decoding(model.run, model.io, roles, model.steps, context), ids, chosen):
        found[row].append(token)
        if on_token:
            whole = token in ends or len(found[row]) == chosen.max_tokens
            on_token(row, streams[row].more(token, whole=whole) if streams else token)
    result = [words.text(tokens, ends) for tokens in found] if words and as_text else found
    return result[0] if single else result


def _options(decoder: Decoder, ends: Sequence[int], options: Mapping[str, Any]) -> Options:
    """What a call says, and for the rest what the model says. Raises FeedError for what has no meaning."""
    given = {name: value for name, value in options.items() if value is not None}
    ruled = {name: given.pop(name) for name in NAMES & given.keys()}
    if given.get("temperature"):
        ruled = {"beams": 1, **ruled}  # who draws asks for no search
    rules = (decoder.rules or Rules()).changed(**ruled)
    if unknown := given.keys() - _OPTIONS:
        known = ", ".join(sorted(_OPTIONS | NAMES))
        raise FeedError(f"{min(unknown)}: generate has no such option; it has {known}.")
    return Options(stop=tuple(ends), rules=rules, **given)


def _named(tokens: Any, option: str) -> Any:
    """Tokens and ids as a list, of which one text is one token; None as it is."""
    if tokens is None or isinstance(tokens, str):
        return tokens if tokens is None else [tokens]
    return list(several(option, tokens, "a list of tokens or ids"))


def _tokens(tokens: Sequence[int | str], words: Words | None, option: str) -> list[int]:
    return [
        words.id(each, option)
        if words and isinstance(each, str)
        else integer(option, each, 0, what="tokens, or ids of")
        for each in tokens
    ]


def _ids(prompt: Any, words: Words | None) -> list[int]:
    """The token ids of a prompt, which is a text or has them."""
    if words and isinstance(prompt, str):
        return words.ids(prompt)
    of = "texts alone, or lists of token ids"
    return [integer("prompts", token, 0, what=f"{of} of") for token in several("prompts", prompt, of)]


def _arrays(io: IO, context: Any) -> dict[str, Array]:
    """The arrays of a context; none for None. Raises FeedError if something else is given."""
    dtypes = {spec.name: spec.dtype for spec in io.inputs}
    found = mapping("context", {} if context is None else context, "an array for each input")
    for name, value in found.items():
        if name in dtypes and (problem := not_an_array(value, dtypes[name])):
            raise FeedError(f"context: {name!r}: {problem}.")
    return dict(found)


class Words:
    """A model's tokenizer, by the package `tokenizers`."""

    def __init__(self, file: Path | None) -> None:
        if file is None:
            raise BundleError("the model has no tokenizer; give prompts and stop as token ids.")
        self._file, self._made = file, open_file(file)
        self._made.no_padding()
        self._made.no_truncation()

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a prompt; without `special`, it has the tokens around it already."""
        with told(self._file, "cannot be applied to this text"):
            return list(self._made.encode(text, add_special_tokens=special).ids)

    def id(self, token: str, option: str) -> int:
        """The id of one token that an option names."""
        found = self._made.token_to_id(token)
        if found is None:
            raise FeedError(f"{option}: got {token!r}, which is no token of the model's tokenizer.")
        return int(found)

    def text(self, tokens: Sequence[int], ends: Sequence[int]) -> str:
        """The text of new tokens, without the one that ended it."""
        kept = tokens[:-1] if tokens and tokens[-1] in ends else tokens
        return str(self._made.decode(list(kept)))


class Stream:
    """A text that grows: what of it is new, and whole, with each token."""

    def __init__(self, words: Words, ends: Sequence[int]) -> None:
        self._words, self._ends, self._told = words, ends, ""
        self._tokens: list[int] = []

    def more(self, token: int, *, whole: bool) -> str:
        """What a token adds; "" while a letter of several tokens is not `whole`."""
        self._tokens.append(token)
        text = self._words.text(self._tokens, self._ends)
        if text.endswith("\ufffd") and not whole:
            return ""
        new, self._told = text[len(self._told) :], text
        return new


def _encoded(
    encoder: Opened, prompts: Any, wanted: Sequence[TensorSpec], known: Mapping[str, Array]
) -> dict[str, Array]:
    """Runs an encoder on prompts; gives the inputs that a decoder takes from it: its outputs or inputs of that name.

    Args:
        prompts: Texts or token ids, or an array for each input of the encoder.
        wanted: The decoder's inputs that are the same at every step.
        known: Those that the caller gives.

    Raises:
        FeedError: the encoder does not take these prompts, or does not give what is wanted.
    """
    if not wanted:
        raise FeedError("encoder: the model takes nothing of one; it continues the prompts themselves.")
    feeds = prompts
    if not isinstance(prompts, Mapping):
        words = Words(encoder.tokenizer) if any(isinstance(prompt, str) for prompt in prompts) else None
        feeds = _padded(encoder.io, [_ids(prompt, words) for prompt in prompts])
    given = {**feeds, **encoder.run(**feeds)}
    names = [spec.name for spec in wanted if spec.name not in known]
    if missing := [name for name in names if name not in given]:
        raise FeedError(
            f"encoder: it does not give {', '.join(missing)}. Of hf:, export it with --part encoder-with-past."
        )
    return {name: given[name] for name in names}


def _padded(io: IO, prompts: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Token ids as an encoder takes them: a row for each prompt, padded on the right."""
    if not any(spec.name == IDS and len(spec.dims) == 2 for spec in io.inputs):
        raise FeedError(
            f"prompts: the encoder takes {', '.join(map(str, io.inputs))}; give an array for each by its name."
        )
    if not prompts or not all(prompts):
        raise FeedError("prompts: got none, or one without a token; expected one or more tokens each.")
    longest, most = max(map(len, prompts)), text_length(io).max
    if longest > most:
        raise FeedError(f"prompts: got one of {longest} tokens; the encoder reads at most {most}.")
    return text_feeds(io, [Tokens(tuple(prompt), (0,) * len(prompt)) for prompt in prompts])


def generated(decoding: Decoding, prompts: Sequence[Sequence[int]], options: Options) -> Iterator[tuple[int, int]]:
    """The new tokens of all prompts, step by step until all texts have ended: a prompt's number and its next token.

    Args:
        decoding: Without a text yet.

    Raises:
        FeedError: the model does not generate from these prompts.
        BundleError: its scores are NaN.
    """
    import numpy as np

    logits = _begun(decoding, prompts, options.max_tokens)
    draw, ended = np.random.default_rng(options.seed), np.zeros(len(prompts), dtype=bool)
    ruled, texts = Ruled(options.rules, options.stop, options.max_tokens), [list[int]() for _ in prompts]
    for step in range(options.max_tokens):
        _require_numbers(logits)
        scores = ruled.applied(logits, [None if done else (prompt, text)
                                        for prompt, text, done in zip(prompts, texts, ended, strict=True)])  # fmt: skip
        if (scores[~ended].max(-1) == -np.inf).any():
            raise FeedError(NO_TOKEN)
        chosen = _chosen(scores, options, draw)
        for row, token in enumerate(chosen.tolist()):
            texts[row].append(token)
            if not ended[row]:
                yield row, token
        ended |= np.isin(chosen, list(options.stop))
        if ended.all() or step + 1 == options.max_tokens:
            return
        logits = decoding.push(chosen[:, None], np.ones((len(chosen), 1), dtype=bool))


def _begun(decoding: Decoding, prompts: Sequence[Sequence[int]], most: int) -> Array:
    """Pushes the prompts, padded at the left; gives the scores of what follows them."""
    import numpy as np

    roles = decoding.roles
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or min(lengths) < 1:
        raise FeedError("prompts: got none, or one without a token; expected one or more tokens each.")
    longest = max(lengths)
    room = roles.longest_past - roles.start
    if longest + most - 2 > room:
        raise FeedError(f"prompts: {longest} tokens and {most} new ones; the model keeps at most {room} in its cache.")
    if min(lengths) < longest and roles.context:
        raise FeedError("prompts: they have different lengths; behind a context, all have the same.")
    if min(lengths) < longest and not roles.mask_covers_new:
        raise FeedError("prompts: they have different lengths, and the model takes no mask [batch, past+seq].")
    ids_BS = np.zeros((len(prompts), longest), np.int64)
    keep_BS = np.zeros(ids_BS.shape, dtype=bool)
    for row, prompt in enumerate(prompts):
        ids_BS[row, longest - len(prompt) :] = prompt
        keep_BS[row, longest - len(prompt) :] = True
    largest, last = int(ids_BS.max()), (roles.ids.high or np.iinfo(roles.ids.dtype).max + 1) - 1
    if largest > last:  # told before the cast to the input's type, which would make another token of it
        low = ids_BS[keep_BS].min()
        raise FeedError(f"input {roles.ids.name!r}: got values {low} to {largest}; expected 0 to {last}.")
    for start in range(0, longest, roles.longest_seq):
        part = slice(start, start + roles.longest_seq)
        logits = decoding.push(ids_BS[:, part], keep_BS[:, part])
    return logits


def _require_numbers(logits: Array) -> None:
    """Raises BundleError for scores of which no token is the likeliest."""
    import numpy as np

    if np.isnan(logits).any():
        raise BundleError("the model's scores are NaN, so that no token follows; attnport check says where they begin.")


def _chosen(logits_BV: Array, options: Options, draw: np.random.Generator) -> Array:
    """A token for each row."""
    import numpy as np

    if options.temperature == 0:
        return np.asarray(logits_BV.argmax(-1))
    scores = logits_BV.astype(np.float64) / options.temperature
    order = np.argsort(-scores, axis=-1, kind="stable")
    sorted_ = np.take_along_axis(scores, order, -1)
    weights = np.exp(sorted_ - sorted_[:, :1])
    if options.top_k:
        weights[:, options.top_k :] = 0
    weights /= weights.sum(-1, keepdims=True)
    # A token is kept if the likelier ones together do not reach top_p.
    weights[np.cumsum(weights, -1) - weights >= options.top_p] = 0
    bounds = np.cumsum(weights, -1)
    places = (bounds > draw.random((len(scores), 1)) * bounds[:, -1:]).argmax(-1)
    return np.take_along_axis(order, places[:, None], -1)[:, 0]


def searched(decoding: Decoding, prompts: Sequence[Sequence[int]], options: Options) -> Iterator[tuple[int, int]]:
    """As `generated`, by beam search: at its end, the tokens of the first prompt, then those of the others."""
    import numpy as np

    count, beams = len(prompts), options.rules.beams
    ruled = Ruled(options.rules, options.stop, options.max_tokens)
    logits = _begun(decoding, prompts, options.max_tokens)
    decoding.take(np.repeat(np.arange(count), beams))
    logits = np.repeat(logits, beams, axis=0)
    every = [_Beams(options) for _ in range(count)]
    for length in range(1, options.max_tokens + 1):
        scores = np.array([one.scores for one in every])
        _require_numbers(logits)
        logs = _logs(logits)
        logs = ruled.applied(logs, ((prompt, text) for prompt, one in zip(prompts, every, strict=True)
                                    for text in one.texts))  # fmt: skip
        logs = _logs(logs) if options.rules.renormalize else logs
        best, places = _likeliest(scores, logs, max(2, 1 + len(options.stop)) * beams)
        for one, score, place in zip(every, best, places, strict=True):
            one.grow(score, *np.divmod(place, logits.shape[-1]))
        if length == options.max_tokens:
            break
        settled = [one.settled() for one in every]
        if all(settled):
            break
        parents = np.array([one.parents for one in every])
        decoding.take((parents + np.arange(count)[:, None] * beams).reshape(-1))
        tokens = np.array([text[-1] for one in every for text in one.texts])
        logits = decoding.push(tokens[:, None], np.ones((len(tokens), 1), dtype=bool))
    yield from [(row, token) for row, one in enumerate(every) for token in one.best()]


class _Beams:
    """The beams of one prompt, and its texts that have ended.

    Attributes:
        scores: The log probability of each beam.
        parents: By beam, which one it was before the last step.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        # They are the same at first, so that one counts.
        beams = self._count = options.rules.beams
        self.scores = [0.0, *[-float("inf")] * (beams - 1)]
        self.texts: list[list[int]] = [[] for _ in range(beams)]
        self.parents = list(range(beams))
        self._over = False
        self._ended: list[tuple[float, list[int]]] = []

    def grow(self, scores: Array, parents: Array, tokens: Array) -> None:
        """Takes enough of the best continuations, in their order, that `beams` of them go on."""
        beams, kept = self._count, []
        for rank, (score, parent, token) in enumerate(zip(scores, parents.tolist(), tokens.tolist(), strict=True)):
            text = [*self.texts[parent], token]
            if token not in self._options.stop:
                kept.append((float(score), parent, text))
            elif rank < beams and not self._over:
                self._end(float(score), text)
        del kept[beams:]
        self.scores, self.parents = [score for score, _, _ in kept], [parent for _, parent, _ in kept]
        self.texts = [text for *_, text in kept]

    def settled(self) -> bool:
        """Whether no beam can become better than the texts that have ended, or goes on at all; asked between steps."""
        if max(self.scores, default=-float("inf")) == -float("inf"):
            if not self._ended:
                raise FeedError(NO_TOKEN)
            self._over = True
        elif not self._over and len(self._ended) == self._count:
            early = self._options.rules.early_stopping
            self._over = early or self._weighed(max(self.scores), self.texts[0]) <= self._ended[-1][0]
        return self._over

    def best(self) -> list[int]:
        """The text of the best score, of those that have ended and those that the end of the run cut."""
        if not self._over:
            for score, text in zip(self.scores, self.texts, strict=True):
                self._end(score, text)
        if not self._ended:
            raise FeedError(NO_TOKEN)
        return self._ended[0][1]

    def _end(self, score: float, text: list[int]) -> None:
        if score == -float("inf"):  # which no rule allows, or which follows a beam that does not count yet
            return
        self._ended.append((self._weighed(score, text), text))
        self._ended.sort(key=lambda one: -one[0])
        del self._ended[self._count :]

    def _weighed(self, score: float, text: list[int]) -> float:
        import numpy as np

        with np.errstate(all="ignore"):  # a power may be beyond what a float holds
            return float(np.float64(score) / np.float64(len(text)) ** self._options.rules.length_penalty)


def _logs(scores_BV: Array) -> Array:
    """Log probabilities, float64; a row of which no token may follow stays as it is."""
    import numpy as np

    best = scores_BV.max(-1, keepdims=True).astype(np.float64)
    best[best == -np.inf] = 0
    scores_BV = scores_BV - best
    sums = np.exp(scores_BV).sum(-1, keepdims=True)
    sums[sums == 0] = 1
    return np.asarray(scores_BV - np.log(sums))


def _likeliest(scores: Array, logs: Array, count: int) -> tuple[Array, Array]:
    """For every prompt, the best continuations of all its beams: log probabilities, and beam times token."""
    import numpy as np

    prompts, beams = scores.shape
    every = (scores[:, :, None] + logs.reshape(prompts, beams, -1)).reshape(prompts, -1)
    order = np.argsort(-every, axis=-1, kind="stable")[:, :count]
    return np.take_along_axis(every, order, -1), order


class Ruled:
    """Rules on the scores of texts that grow."""

    def __init__(self, rules: Rules, stop: Collection[int], max_tokens: int) -> None:
        """Keeps the rules, the tokens that end a text, and the most new tokens of one."""
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
