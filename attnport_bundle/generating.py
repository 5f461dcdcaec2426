"""`generate` of an open model: prompts as ids or texts, new tokens as the prompts were."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .contract import IO
from .errors import BundleError, FeedError
from .generation import Options, Run, Step, generated, searched

Prompts = str | Sequence[str] | Sequence[Sequence[int]]
OnToken = Callable[[int, Any], None]


def generate(
    run: Run,
    io: IO,
    tokenizer: Path | None,
    prompts: Prompts,
    *,
    step: Step | None = None,
    stop: Sequence[int | str] | None = None,
    on_token: OnToken | None = None,
    **options: Any,
) -> Any:
    """Continues prompts; see `Model.generate`.

    Args:
        tokenizer: The model's `tokenizer.json`, which texts need.
        step: Where the model writes to its cache in place.
        stop: None = where the model itself ends a text.
        options: Those of `generation.Options`.
    """
    single = isinstance(prompts, str)
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    texts = any(isinstance(prompt, str) for prompt in given)
    stops = io.stop if stop is None else stop
    words = _Words(tokenizer) if texts or any(isinstance(each, str) for each in stops) else None
    ids = [words.ids(prompt) if words and isinstance(prompt, str) else _ids(prompt) for prompt in given]
    if texts and not all(isinstance(prompt, str) for prompt in given):
        raise FeedError("prompts: got texts and token ids; expected one kind.")
    ends = [words.id(each) if words and isinstance(each, str) else int(each) for each in stops]
    chosen = Options(stop=tuple(ends), **options)
    found: list[list[int]] = [[] for _ in ids]
    streams = [_Stream(words, ends) for _ in ids] if words and texts else None

    def tell(row: int, token: int) -> None:
        found[row].append(token)
        if on_token:
            whole = token in ends or len(found[row]) == chosen.max_tokens
            on_token(row, streams[row].more(token, whole=whole) if streams else token)

    if chosen.beams > 1:
        for row, tokens in enumerate(searched(run, io, ids, chosen, step)):
            for token in tokens:
                tell(row, token)
    else:
        for tokens_of_all in generated(run, io, ids, chosen, step):
            for row, new in enumerate(tokens_of_all):
                if new is not None:
                    tell(row, new)
    result = [words.text(tokens, ends) for tokens in found] if words and texts else found
    return result[0] if single else result


def _ids(prompt: Any) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as err:
        raise FeedError(f"prompts: got {prompt!r:.60}; expected texts alone, or lists of token ids alone.") from err


class _Words:
    """A model's tokenizer, by the package `tokenizers`."""

    def __init__(self, file: Path | None) -> None:
        if file is None:
            raise BundleError("the model has no tokenizer; give prompts and stop as token ids.")
        try:
            from tokenizers import Tokenizer
        except ImportError as err:
            raise BundleError("texts need the package tokenizers: pip install tokenizers.") from err
        self._made = Tokenizer.from_file(str(file))
        self._made.no_padding()
        self._made.no_truncation()

    def ids(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return list(self._made.encode(text).ids)

    def id(self, token: str) -> int:
        """The id of one token."""
        found = self._made.token_to_id(token)
        if found is None:
            raise FeedError(f"stop: got {token!r}, which is no token of the model's tokenizer.")
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
