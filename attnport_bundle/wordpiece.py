"""BERT's tokenizer in plain Python, so that a bundle of such a model can take text without another package.

It reads a `tokenizer.json` (the format of the `tokenizers` package) of BERT's kind: text is cleaned, lower-cased and
split at spaces and punctuation, and each word is cut into the longest pieces of a vocabulary (WordPiece: Devlin et al.,
2018, https://arxiv.org/abs/1810.04805). A file with anything else is refused.

The file's `max_length` is ignored: it is a setting of the program that wrote the file, and the model's contract has the
real limit. Texts are cut to the contract's limit and padded to the longest of a call.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .decode import decode, parse
from .errors import BundleError, IntegrityError

_WHITE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")
"""What pads where a file does not say it. A model that takes a padding mask does not look at it."""
IDS = 1 << 31
"""Ids are smaller than this, so that every integer dtype of a model can hold them."""


@dataclass(frozen=True)
class _Normalizer:
    type: Literal["BertNormalizer"]
    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool | None
    lowercase: bool


@dataclass(frozen=True)
class _PreTokenizer:
    type: Literal["BertPreTokenizer"]


@dataclass(frozen=True)
class _Pieces:
    type: Literal["WordPiece"]
    unk_token: str
    continuing_subword_prefix: str
    max_input_chars_per_word: int


@dataclass(frozen=True)
class _Added:
    """A token that is searched for in the raw text, before normalization."""

    id: int
    content: str
    special: bool
    single_word: Literal[False]
    lstrip: Literal[False]
    rstrip: Literal[False]
    normalized: Literal[False]


@dataclass(frozen=True)
class _Place:
    id: str
    type_id: int


@dataclass(frozen=True)
class _Special:
    id: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class _Template:
    """The tokens around a text. Each part has one key: `SpecialToken`, a fixed token, or `Sequence`, the text."""

    type: Literal["TemplateProcessing"]
    single: tuple[Mapping[str, _Place], ...]
    pair: tuple[Mapping[str, _Place], ...]
    special_tokens: Mapping[str, _Special]


@dataclass(frozen=True)
class Tokens:
    """The ids of one text, and the type id of each."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]


class WordPiece:
    """The tokenizer of one `tokenizer.json`.

    Attributes:
        pad_id: The id of padding.
        left: Whether padding stands before a text: never, as such a file is refused.
        special: The ids of special tokens.
    """

    left = False

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            BundleError: the file does not exist, or is not a BERT tokenizer; `tokenizers` reads every kind.
        """
        try:
            value = parse(path.read_bytes(), str(path))
            if not isinstance(value, dict):
                raise IntegrityError("it is not a JSON object")
            self._read(value)
        except (IntegrityError, OSError, KeyError, ValueError) as err:
            problem = f"{err} is missing" if isinstance(err, KeyError) else str(err)
            raise BundleError(
                f"{path} is not read here: {problem.rstrip('.')}. Without the package tokenizers, the reader knows "
                "BERT's tokenizers only: pip install tokenizers."
            ) from err

    def _read(self, value: Mapping[str, Any]) -> None:
        self._rules = decode(_Normalizer, value["normalizer"], "normalizer")
        decode(_PreTokenizer, value["pre_tokenizer"], "pre_tokenizer")
        model = dict(_object(value, "model"))
        self._vocab = _vocabulary(model.pop("vocab"))
        self._longest_piece = max(map(len, self._vocab), default=0)
        self._pieces = decode(_Pieces, model, "model")
        added: tuple[_Added, ...] = decode(tuple[_Added, ...], value["added_tokens"], "added_tokens")
        self._added = {token.content: token.id for token in added if token.content}
        self.special = frozenset(token.id for token in added if token.special)
        self._template = decode(_Template, value["post_processor"], "post_processor")
        self._around = [next(iter(part.items())) for part in self._template.single if len(part) == 1]
        if [place.id for kind, place in self._around if kind == "Sequence"] != ["A"]:
            raise ValueError("post_processor.single: expected one place for the text")
        self._constant = sum(len(self._always(place)) for kind, place in self._around if kind != "Sequence")
        self._unknown = self._vocab[self._pieces.unk_token]
        # Of two tokens that begin at the same place the longer one counts.
        longest_first = sorted(self._added, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self._added else None
        for key in ("truncation", "padding"):
            _check_right(value, key)
        self.pad_id = next((self._added[token] for token in PAD_TOKENS if token in self._added), 0)
        if value.get("padding") is not None:
            self.pad_id = decode(int, _object(value, "padding")["pad_id"], "padding.pad_id")
        fixed_ids = (index for special in self._template.special_tokens.values() for index in special.ids)
        types = (place.type_id for _, place in self._around)
        wrong = next((i for i in (self.pad_id, *self._added.values(), *fixed_ids, *types) if not 0 <= i < IDS), None)
        if wrong is not None:
            raise ValueError(f"got id {wrong}; expected 0 or more, and less than 2**31")

    def _always(self, place: _Place) -> tuple[int, ...]:
        return self._template.special_tokens[place.id].ids

    def encode(self, text: str, longest: int) -> Tokens:
        """The ids of `text` with the tokens around it, the text cut at its end so that there are at most `longest`.

        Raises:
            BundleError: the tokens around a text are more than `longest`.
        """
        if self._constant > longest:
            raise too_few_positions(longest, self._constant)
        text_ids = [index for part in self._split_added(text) for index in part][: longest - self._constant]
        ids: list[int] = []
        types: list[int] = []
        for kind, place in self._around:
            here = text_ids if kind == "Sequence" else self._always(place)
            ids += here
            types += [place.type_id] * len(here)
        return Tokens(tuple(ids), tuple(types))

    def _split_added(self, text: str) -> Iterator[list[int]]:
        for part in self._split.split(text) if self._split else [text]:
            if part in self._added:
                yield [self._added[part]]
            else:
                yield [index for word in _words(_normalised(part, self._rules)) for index in self._cut(word)]

    def _cut(self, word: str) -> list[int]:
        """Cuts off the longest piece in the vocabulary repeatedly; the unknown token if there is none at any place."""
        if len(word) > self._pieces.max_input_chars_per_word:
            return [self._unknown]
        ids, start, vocab = list[int](), 0, self._vocab
        while start < len(word):
            prefix = self._pieces.continuing_subword_prefix if start else ""
            # Limited by the longest piece, as a file may allow words of any length.
            last = min(len(word), start + self._longest_piece)
            end = next((end for end in range(last, start, -1) if prefix + word[start:end] in vocab), None)
            if end is None:
                return [self._unknown]
            ids.append(vocab[prefix + word[start:end]])
            start = end
        return ids


def too_few_positions(longest: int, around: int) -> BundleError:
    """The error about tokens around a text that have no room."""
    return BundleError(f"got {longest} positions; expected {around} or more for the tokens around a text.")


def _check_right(value: Mapping[str, Any], key: str) -> None:
    """Raises ValueError if the file cuts or pads texts at their beginning; older files do not say where."""
    if value.get(key) is None:
        return
    direction = _object(value, key).get("direction", "Right")
    if direction != "Right":
        raise ValueError(f"{key}.direction: got {direction!r:.60}; expected 'Right'")


def _object(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    entry = value[key]
    if not isinstance(entry, dict):
        raise ValueError(f"{key}: got {entry!r:.60}; expected an object")
    return entry


def _vocabulary(value: Any) -> dict[str, int]:
    """The id of each piece. A piece may be any text, with control characters too, so `decode` is not used."""
    if not isinstance(value, dict):
        raise ValueError("model.vocab: expected the id of each piece")
    wrong = next((piece for piece, index in value.items() if type(index) is not int or not 0 <= index < IDS), None)
    if wrong is not None:
        raise ValueError(f"model.vocab: got {value[wrong]!r:.60} for {wrong!r:.60}; expected an id")
    return value


def _normalised(text: str, rules: _Normalizer) -> str:
    if rules.clean_text:
        text = "".join(" " if char in _WHITE else char for char in text if not _is_removed(char))
    if rules.handle_chinese_chars:
        text = "".join(f" {char} " if _is_ideograph(char) else char for char in text)
    if rules.lowercase if rules.strip_accents is None else rules.strip_accents:
        text = "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")
    if rules.lowercase:
        # One by one: str.lower() of a whole word changes a sigma at its end.
        text = "".join(char.lower() for char in text)
    return text


def _is_removed(char: str) -> bool:
    return char not in "\t\n\r" and (char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co"))


def _is_ideograph(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _IDEOGRAPHS)


def _words(text: str) -> Iterator[str]:
    """The words between spaces; every punctuation mark is a word of its own."""
    start = 0
    for at, char in enumerate(text):
        mark = char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")
        if mark or char in _WHITE:
            if start < at:
                yield text[start:at]
            if mark:
                yield char
            start = at + 1
    if start < len(text):
        yield text[start:]
