"""BERT's tokenizer in plain Python, so that a bundle of such a model can take text without another package.

It reads a `tokenizer.json` (the format of the `tokenizers` package) of BERT's kind: text is cleaned, lower-cased and
split at spaces and punctuation, and each word is cut into the longest pieces of a vocabulary (WordPiece: Devlin et al.,
2018, https://arxiv.org/abs/1810.04805). A file with anything else is refused. What each character becomes before that
is in `tokenizer.chars`, which the writer of the bundle made: readers need no tables of Unicode, and agree.

The file's `max_length` is ignored: it is a setting of the program that wrote the file, and the model's contract has the
real limit. Texts are cut to the contract's limit and padded to the longest of a call.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import BundleError, IntegrityError
from ..format.strict_json import decode, parse

PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")
"""What pads where a file does not say it. A model that takes a padding mask does not look at it."""
_LAST = 0x10FFFF
IDS = 1 << 31
"""Ids are smaller than this, so that every integer dtype of a model can hold them."""


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

    def __init__(self, path: Path, characters: Mapping[int, str]) -> None:
        """Reads the file.

        Args:
            characters: What each character becomes.

        Raises:
            BundleError: the file does not exist, or is not a BERT tokenizer; `tokenizers` reads every kind.
        """
        self._characters = characters
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
                yield [index for word in part.translate(self._characters).split(" ") for index in self._cut(word)]

    def _cut(self, word: str) -> list[int]:
        """Cuts off the longest piece in the vocabulary repeatedly; the unknown token if there is none at any place."""
        if not word:
            return []
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


class Characters(dict[int, str]):
    """What `str.translate` puts in the place of each character: spaces around words of their own, and between words."""

    def __init__(self, data: bytes) -> None:
        """Reads the content of `tokenizer.chars`.

        Raises:
            ValueError: it is malformed; says where.
        """
        super().__init__()
        self._rules = [_rule(line) for line in data.decode("ascii").splitlines()]
        self._firsts = [rule.first for rule in self._rules]
        for rule, first in zip(self._rules, self._firsts[1:], strict=False):
            if first <= rule.last:
                raise ValueError(f"the line of {first:X} does not begin behind {rule.last:X}")

    def __missing__(self, code: int) -> str:
        found = self._looked_up(code)
        changed = found.codes if found.what == "=" else [code + step for step in found.codes] or [code]
        self[code] = "".join(map(self._set_apart, changed))
        return self[code]

    def _looked_up(self, code: int) -> _Rule:
        at = bisect.bisect_right(self._firsts, code) - 1
        return self._rules[at] if at >= 0 and code <= self._rules[at].last else _Rule(code, code, "", [])

    def _set_apart(self, code: int) -> str:
        return {"space": " ", "removed": "", "apart": f" {chr(code)} "}.get(self._looked_up(code).what, chr(code))


class _Rule(NamedTuple):
    """What is done with the characters `first` to `last`. `codes` take the place of each, or one is added to it."""

    first: int
    last: int
    what: str
    codes: Sequence[int]


_LINE = re.compile(
    "([0-9A-F]{1,6}) ([0-9A-F]{1,6}) (?:(space|removed|apart)|([+-]) ([0-9A-F]{1,6})|(=)((?: [0-9A-F]{1,6})+))"
)


def _rule(line: str) -> _Rule:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"{line!r:.60}: expected the first and last character, in upper-case digits, and a rule")
    begin, end, alone, sign, step, equals, given = found.groups()
    codes = [int(f"{sign}{step}", 16)] if sign else [int(code, 16) for code in (given or "").split()]
    first, last = int(begin, 16), int(end, 16)
    limits = [first, last, *((first + codes[0], last + codes[0]) if sign else codes)]
    if first > last or min(limits) < 0 or max(limits) > _LAST:
        raise ValueError(f"{line!r:.60}: the first is behind the last, or there is no such character")
    return _Rule(first, last, alone or sign or equals, codes)
