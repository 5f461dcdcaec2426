"""`generate` of an open model: prompts as ids or texts, new tokens as the prompts were; the encoder in front of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import flag, integer, mapping, require, several
from ..errors import BundleError, FeedError
from ..feeds import not_an_array
from ..format.contract import IO, TensorSpec
from ..format.decoder import NAMES, Decoder, Roles, Rules
from ..text.tokenizer import IDS, open_file, text_feeds, text_length
from ..text.wordpiece import Tokens
from .caches import Decoding, MakeSteps, Run
from .choosing import Options, generated, searched

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Prompts = str | Sequence[str] | Sequence[Sequence[int]] | Mapping[str, Any]
OnToken = Callable[[int, Any], None]
_OPTIONS = frozenset(field.name for field in dataclasses.fields(Options)) - {"stop", "rules"}
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
        options: Those of `choosing.Options` and of `decoder.Rules`; None = the model's own.
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
    words = _Words(model.tokenizer) if as_text or named or (texts and encoder is None) else None
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
    streams = [_Stream(words, ends) for _ in ids] if words and as_text else None
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
    chosen = Options(stop=tuple(ends), rules=rules, **given)
    chosen.check()
    return chosen


def _named(tokens: Any, option: str) -> Any:
    """Tokens and ids as a list, of which one text is one token; None as it is."""
    if tokens is None or isinstance(tokens, str):
        return tokens if tokens is None else [tokens]
    return list(several(option, tokens, "a list of tokens or ids"))


def _tokens(tokens: Sequence[int | str], words: _Words | None, option: str) -> list[int]:
    return [
        words.id(each, option)
        if words and isinstance(each, str)
        else integer(option, each, 0, what="tokens, or ids of")
        for each in tokens
    ]


def _ids(prompt: Any, words: _Words | None) -> list[int]:
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


class _Words:
    """A model's tokenizer, by the package `tokenizers`."""

    def __init__(self, file: Path | None) -> None:
        if file is None:
            raise BundleError("the model has no tokenizer; give prompts and stop as token ids.")
        self._made = open_file(file)
        self._made.no_padding()
        self._made.no_truncation()

    def ids(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return list(self._made.encode(text).ids)

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


class _Stream:
    """A text that grows: what of it is new, and whole, with each token."""

    def __init__(self, words: _Words, ends: Sequence[int]) -> None:
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
        words = _Words(encoder.tokenizer) if any(isinstance(prompt, str) for prompt in prompts) else None
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
