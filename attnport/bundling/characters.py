"""What a BERT tokenizer makes of every character, asked of the package `tokenizers` and written for readers."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnport.optional import require
from attnport_bundle.errors import BundleError
from attnport_bundle.format.strict_json import decode
from attnport_bundle.text import WordPiece

_FIRST, _LAST = "0", "1"
"""What stands around a character while it is tried: they stay as they are, and nothing becomes one."""
_AT_ONCE = 4096
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class _Pieces:
    type: Literal["WordPiece"]
    unk_token: str
    continuing_subword_prefix: str
    max_input_chars_per_word: int


@dataclass(frozen=True)
class _Added:
    """A token that is searched for in the text before it is normalised."""

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
    single: tuple[Mapping[Literal["SpecialToken", "Sequence"], _Place], ...]
    pair: tuple[Mapping[str, _Place], ...]
    special_tokens: Mapping[str, _Special]


def character_table(tokenizer: Path) -> str | None:
    """The content of `tokenizer.chars`; None for a file that is not of BERT's kind, or that no such table describes.

    Raises:
        MissingDependency: the package `tokenizers` is not installed.
    """
    try:
        WordPiece(tokenizer, {})
        value = json.loads(tokenizer.read_bytes())
        _require_bert(value)
    except (BundleError, ValueError, AttributeError):
        return None
    rules = [value.get(key) for key in ("normalizer", "pre_tokenizer")]
    if [rule.get("type") for rule in rules if isinstance(rule, dict)] != ["BertNormalizer", "BertPreTokenizer"]:
        return None
    return _table(json.dumps(rules))


def _require_bert(value: Mapping[str, Any]) -> None:
    """Raises BundleError or ValueError for a tokenizer that readers would not follow: they trust that it is BERT's."""
    pieces = {key: each for key, each in value["model"].items() if key != "vocab"}
    decode(_Pieces, pieces, "model")
    decode(tuple[_Added, ...], value["added_tokens"], "added_tokens")
    template = decode(_Template, value["post_processor"], "post_processor")
    if [place.id for part in template.single for kind, place in part.items() if kind == "Sequence"] != ["A"]:
        raise ValueError("post_processor.single: expected one place for the text")
    for key in ("truncation", "padding"):  # older files do not say where they cut and pad
        if value.get(key) is not None and value[key].get("direction", "Right") != "Right":
            raise ValueError(f"{key}.direction: expected 'Right'")


@functools.cache
def _table(rules: str) -> str | None:
    """The table of a normalizer and a pre-tokenizer."""
    tokenizers = require("tokenizers")
    normalizer, splitter = json.loads(rules)
    empty = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": splitter,
             "post_processor": None, "decoder": None, "truncation": None, "padding": None,
             "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}  # fmt: skip
    made = tokenizers.Tokenizer.from_str(json.dumps(empty))
    becomes = dict(_becomes(made, [code for code in range(0x110000) if code not in _SURROGATES]))
    found: dict[int, str] = {}
    for code, result in becomes.items():
        rule = _rule(code, result, becomes)
        if rule is None:
            return None
        if rule:
            found[code] = rule
    return "".join(f"{first:X} {last:X} {rule}\n" for first, last, rule in _runs(found.items()))


def _becomes(made: Any, codes: Sequence[int]) -> Iterator[tuple[int, str]]:
    """What stands in the place of each character: words with spaces between them, as in " ! " for a word of its own."""
    for begin in range(0, len(codes), _AT_ONCE):
        part = codes[begin : begin + _AT_ONCE]
        text = "".join(map(chr, part))
        # Whole planes stay as they are, or are removed: those are not tried one by one.
        whole = _words(made, [text])[0] if not {_FIRST, _LAST} & set(text) else None
        if whole in ("", text):
            yield from ((code, chr(code) if whole else "") for code in part)
            continue
        letters = [chr(code) for code in part]
        yield from zip(
            part, _words(made, ["" if letter in (_FIRST, _LAST) else letter for letter in letters]), strict=True
        )


def _words(made: Any, texts: Sequence[str]) -> list[str]:
    text = made.normalizer.normalize_str(" ".join(f"{_FIRST}{text}{_LAST}" for text in texts))
    pieces = " ".join(piece for piece, _ in made.pre_tokenizer.pre_tokenize_str(text))
    return pieces[1:-1].split(f"{_LAST} {_FIRST}")


def _rule(code: int, result: str, becomes: Mapping[int, str]) -> str | None:
    """The rule of a character, "" where it stays; None if no rule says it."""
    letter = chr(code)
    if letter in (_FIRST, _LAST) or (result == letter and letter != " "):
        return ""
    if result in ("", " "):
        return "removed" if not result else "space"
    if result == f" {letter} ":
        return "apart"
    changed = result.replace(" ", "")
    looked_up = "".join(becomes[ord(one)] if becomes[ord(one)] in (" ", f" {one} ") else one for one in changed)
    if f"{_FIRST}{looked_up}{_LAST}".split(" ") != f"{_FIRST}{result}{_LAST}".split(" "):
        return None
    if len(changed) == 1 and (step := ord(changed) - code):
        return f"{'+' if step > 0 else '-'} {abs(step):X}"
    return "= " + " ".join(f"{ord(one):X}" for one in changed)


def _runs(rules: Iterable[tuple[int, str]]) -> Iterator[tuple[int, int, str]]:
    """The first and last of neighbours that have one rule."""
    for rule, group in itertools.groupby(enumerate(rules), lambda each: (each[1][0] - each[0], each[1][1])):
        codes = [code for _, (code, _) in group]
        yield codes[0], codes[-1], rule[1]
