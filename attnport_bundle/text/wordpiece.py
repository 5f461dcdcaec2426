"""BERT's tokenizer in plain Python, so that a bundle of such a model can take text without another package.

It reads a `tokenizer.json` (the format of the `tokenizers` package) of BERT's kind: text is cleaned, lower-cased and
split at spaces and punctuation, and each word is cut into the longest pieces of a vocabulary (WordPiece: Devlin et al.,
2018, https://arxiv.org/abs/1810.04805). What each character becomes before that is in `tokenizer.chars`: the writer of
the bundle made it, for a file of this kind alone. So readers need no tables of Unicode, and agree.

The file's `max_length` is ignored: it is a setting of the program that wrote the file, and the model's contract has the
real limit. Texts are cut to the contract's limit and padded to the longest of a call.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..arguments import shown
from ..errors import BundleError, IntegrityError
from ..format.strict_json import parse

PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")
"""What pads where a file does not say it. A model that takes a padding mask does not look at it."""
_LAST = 0x10FFFF
_IDS = 1 << 31
"""Ids are smaller than this, so that every integer dtype of a model can hold them."""


class Tokens(NamedTuple):
    """The ids of one text, and the type id of each."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]


class WordPiece:
    """The tokenizer of one `tokenizer.json`; the attributes are those of `tokenizer.PackageTokenizer`."""

    left = False  # a file that pads texts at their beginning has no `tokenizer.chars`

    def __init__(self, path: Path, characters: Mapping[int, str]) -> None:
        """Reads the file.

        Args:
            characters: What each character becomes.

        Raises:
            BundleError: the file does not exist, or is not a BERT tokenizer; `tokenizers` reads every kind.
        """
        self._characters = characters
        try:
            self._read(parse(path.read_bytes(), str(path)))
        except (IntegrityError, OSError, LookupError, TypeError, ValueError, AttributeError) as err:
            problem = f"{err} is missing" if isinstance(err, KeyError) else str(err)
            raise BundleError(
                f"{path} is not read here: {problem.rstrip('.')}. Without the package tokenizers, the reader knows "
                "BERT's tokenizers only: pip install tokenizers."
            ) from err

    def _read(self, value: Any) -> None:
        model, after, padding = value["model"], value["post_processor"], value.get("padding")
        self._vocab: Mapping[str, int] = model["vocab"]
        if not all(type(index) is int and 0 <= index < _IDS for index in self._vocab.values()):
            raise ValueError("model.vocab: expected an id for each piece")
        self._longest_piece = max(map(len, self._vocab), default=0)
        self._unknown = self._vocab[model["unk_token"]]
        self._prefix, self._longest_word = str(model["continuing_subword_prefix"]), model["max_input_chars_per_word"]
        if type(self._longest_word) is not int:
            raise ValueError(f"model.max_input_chars_per_word: got {shown(self._longest_word)}; expected a number")
        added = [token for token in value["added_tokens"] if token["content"]]
        self._added = {str(token["content"]): _id(token["id"]) for token in added}
        self.special = frozenset(token["id"] for token in value["added_tokens"] if token["special"])
        # Of two tokens that begin at the same place the longer one counts.
        longest_first = sorted(self._added, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self._added else None
        known = [self._added[token] for token in PAD_TOKENS if token in self._added]
        self.pad_id = _id(next(iter(known), 0) if padding is None else padding["pad_id"])
        self._parts: list[tuple[tuple[int, ...] | None, int]] = []  # ids, None for those of the text, and the type id
        for part in after["single"]:
            ((kind, place),) = part.items()
            ids = None if kind == "Sequence" else tuple(map(_id, after["special_tokens"][place["id"]]["ids"]))
            self._parts.append((ids, _id(place["type_id"])))
        self.around = sum(len(ids) for ids, _ in self._parts if ids is not None)

    def encode(self, text: str, longest: int) -> Tokens:
        """The ids of `text` with the tokens around it, the text cut at its end so that there are at most `longest`."""
        text_ids = [index for part in self._split_added(text) for index in part][: max(longest - self.around, 0)]
        ids: list[int] = []
        types: list[int] = []
        for fixed, type_id in self._parts:
            here = text_ids if fixed is None else fixed
            ids += here
            types += [type_id] * len(here)
        return Tokens(tuple(ids), tuple(types))

    def _split_added(self, text: str) -> Iterator[list[int]]:
        for part in self._split.split(text) if self._split else [text]:
            if part in self._added:
                yield [self._added[part]]
            else:
                yield [index for word in part.translate(self._characters).split(" ") for index in self._cut(word)]

    def _cut(self, word: str) -> list[int]:
        """Cuts off the longest piece in the vocabulary repeatedly; the unknown token if there is none at any place."""
        if word and len(word) > self._longest_word:
            return [self._unknown]
        ids, start, vocab = list[int](), 0, self._vocab
        while start < len(word):
            prefix = self._prefix if start else ""
            # Limited by the longest piece, as a file may allow words of any length.
            last = min(len(word), start + self._longest_piece)
            end = next((end for end in range(last, start, -1) if prefix + word[start:end] in vocab), None)
            if end is None:
                return [self._unknown]
            ids.append(vocab[prefix + word[start:end]])
            start = end
        return ids


def _id(value: object) -> int:
    """An id of the file. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value < _IDS:
        raise ValueError(f"got id {shown(value)}; expected 0 or more, and less than 2**31")
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
