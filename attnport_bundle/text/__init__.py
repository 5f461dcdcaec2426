"""From texts to a model's inputs, by its contract and a tokenizer file of any kind: ids, masks and padding.

Where the package `tokenizers` is not installed, `WordPiece` reads a `tokenizer.json` of BERT's kind: text is cleaned,
lower-cased and split at spaces and punctuation, and each word is cut into the longest pieces of a vocabulary (Devlin et
al., 2018, https://arxiv.org/abs/1810.04805). What each character becomes before that is in `tokenizer.chars`: the
writer of the bundle made it, for a file of this kind alone. So readers need no tables of Unicode, and agree.

The file's `max_length` is ignored: it is a setting of the program that wrote the file, and the model's contract has the
real limit. Texts are cut to the contract's limit and padded to the longest of a call.
"""

from __future__ import annotations

import bisect
import functools
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import LARGEST, integer, require, several, shown
from ..arguments import path as path_argument
from ..errors import BundleError, FeedError, IntegrityError, escaped
from ..feeds import padding_masks
from ..format.contract import IO, Dim
from ..format.search import Expansion
from ..format.strict_json import parse

if TYPE_CHECKING:
    import numpy as np

IDS, TYPES, POOLED, ATTENDED = "input_ids", "token_type_ids", "pooled_mask", "attended_mask"
"""Inputs of text models. `POOLED` says which tokens are pooled: all of them, but not those of a prompt. `ATTENDED` says
which others attend to: all of them, but not those that make a query longer."""
Text = str | tuple[str, str]
"""A text, or a pair of texts such as a query and a document, which become one row."""


class Tokenizer:
    """Makes every input of a text model: token ids, type ids and padding masks."""

    def __init__(
        self, path: str | os.PathLike[str], io: IO, *, limit: int | None = None, expansion: Expansion | None = None
    ) -> None:
        """Reads a tokenizer file, with the package `tokenizers` if it is installed, else with our reader of BERT's.

        Args:
            path: The bundle's `tokenizer.json`; without the package, `tokenizer.chars` is read beside it.
            io: The contract of the model: `model.io`.
            limit: The most tokens of a text, if that is fewer than the model takes; None = what the model takes.
            expansion: What makes every text longer, as a query of ColBERT's kind; None = nothing.

        Raises:
            BundleError: the file cannot be read, or only by the package `tokenizers`, or the model does not read text.
        """
        if not reads_text(io):
            raise BundleError(f"the model does not read text: it takes {', '.join(map(str, io.inputs))}.")
        self._io, self._length, self._expansion = io, text_length(io), expansion
        longest = self._length.max if limit is None else min(integer("limit", limit, 1), self._length.max)
        self._longest = longest
        self._words, self._rows = _read(path_argument("path", path), longest)
        if self._words.around > longest:
            around = self._words.around
            raise BundleError(f"got {longest} positions; expected {around} or more for the tokens around a text.")
        # Lengths alone cannot say that padding stands before a text.
        self._left = self._words.left and all(mask.carries == "mask" for mask in io.padding_masks())

    def encode(
        self, texts: Sequence[Text], first: int = 0, *, prompt: str = "", places: int | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """A row for each text or pair of texts, padded to the longest on the side that the file says.

        A text that is too long is cut at its end, or at its beginning if the file says so, and of a pair the longer
        text first; the tokens around it stay.

        Args:
            first: The number of the first text in messages.
            prompt: What is put before each text. The model does not pool its tokens if it takes a `pooled_mask`.
            places: The most places of all texts with their padding; None = any number.

        Raises:
            FeedError: there is no text, or something that is none; or there are too many places; or the model takes no
                padding mask and the texts have different lengths.
        """
        require(isinstance(prompt, str), "prompt", prompt, "the text to put before each text")
        rows = self._rows([_begun(prompt, text) for text in _checked(texts, first)])
        lengths = [len(row.ids) for row in rows]
        if self._expansion is not None:
            rows = [_expanded(row, self._expansion) for row in rows]
        feeds = self._padded(rows, places)
        if prompt and POOLED in feeds:
            # With what stands before every text, and without a special token behind it.
            (before,) = self._rows([prompt])
            count = len(before.ids) - bool(before.ids and before.ids[-1] in self._words.special)
            for at, row in enumerate(rows):
                begin = feeds[POOLED].shape[1] - len(row.ids) if self._left else 0
                feeds[POOLED][at, begin : begin + count] = 0
        if self._expansion is not None and not self._expansion.attended and ATTENDED in feeds:
            for at, length in enumerate(lengths):
                feeds[ATTENDED][at, length:] = 0
        return feeds

    def padded(self, rows: Sequence[Sequence[int]], *, places: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """As `encode`, of texts that are token ids already, with the special tokens around them; none is cut.

        Raises:
            FeedError: a text has no token, too many, or one that the model does not have; else as `encode`.
        """
        high = next(spec.high for spec in self._io.inputs if spec.name == IDS)
        for at, row in enumerate(rows):
            if not 0 < len(row) <= self._longest:
                raise FeedError(f"texts[{at}]: got {len(row)} token ids; expected 1 to {self._longest}.")
            for token in (min(row), max(row)):
                integer(f"texts[{at}]", token, 0, LARGEST if high is None else high - 1, "token ids of")
        return self._padded([Tokens(tuple(row), (0,) * len(row)) for row in rows], places)

    def _padded(self, rows: Sequence[Tokens], places: int | None) -> dict[str, np.ndarray[Any, Any]]:
        size = self._length.at_least(max(len(row.ids) for row in rows))
        if places is not None and len(rows) * size > places:
            raise FeedError(
                f"got {len(rows)} texts, padded to {size} tokens each; expected at most {places} tokens with padding. "
                "Send long and short texts apart, or fewer at a time."
            )
        return text_feeds(self._io, rows, self._words.pad_id, left=self._left)

    def token(self, index: int) -> str:
        """The token of an id. Raises FeedError where there is none."""
        found = self._words.token(index)
        require(found is not None, "token id", index, "one of the tokenizer")
        return str(found)


def reads_text(io: IO) -> bool:
    """Whether a tokenizer makes every input of a model: token ids, with or without type ids and padding masks."""
    dims = {spec.name: spec.dims for spec in io.inputs}
    tensors = {IDS, TYPES, ATTENDED} & dims.keys()
    masks = {mask.input for mask in io.padding_masks()}
    own = {IDS, TYPES, ATTENDED}
    return IDS in dims and dims.keys() <= masks | own and all(len(dims[name]) == 2 for name in tensors)


def text_length(io: IO) -> Dim:
    """How many tokens a text may have; a Dim of one size for a model that takes no other."""
    last = next(spec for spec in io.inputs if spec.name == IDS).dims[1]
    fixed = last if isinstance(last, int) else 0
    return next((dim for dim in io.dims if dim.name == last), Dim("length", fixed, fixed, fixed))


def text_feeds(
    io: IO, rows: Sequence[Tokens], pad_id: int = 0, *, left: bool = False
) -> dict[str, np.ndarray[Any, Any]]:
    """Tokenizes texts: ids and type ids, padded to the longest text, and the masks of padding.

    Args:
        rows: One text or more.
        left: Padding stands before a text, and not behind it.

    Raises:
        FeedError: the model takes no padding mask and the texts have different lengths.
    """
    import numpy as np

    lengths = [len(row.ids) for row in rows]
    size = text_length(io).at_least(max(lengths))
    own = (IDS, TYPES, ATTENDED)
    feeds = {spec.name: np.zeros((len(rows), size), spec.dtype) for spec in io.inputs if spec.name in own}
    feeds[IDS][:] = pad_id
    if ATTENDED in feeds:
        feeds[ATTENDED][:] = 1
    for at, row in enumerate(rows):
        begin = size - lengths[at] if left else 0
        feeds[IDS][at, begin : begin + lengths[at]] = row.ids
        if TYPES in feeds:
            feeds[TYPES][at, begin : begin + lengths[at]] = row.type_ids
    if io.padding_masks() or min(lengths) < size:
        feeds |= padding_masks(io, lengths, size, left=left)
    return feeds


def _read(path: Path, longest: int) -> tuple[WordPiece | PackageTokenizer, Callable[[Sequence[Text]], list[Tokens]]]:
    """What reads the file, and the rows that it makes of texts."""
    table = path.with_suffix(".chars")
    if importlib.util.find_spec("tokenizers") is not None or not table.is_file():
        made = PackageTokenizer(path, longest)
        return made, made.encode_batch
    try:
        characters = Characters(table.read_bytes())
    except (OSError, ValueError) as err:
        raise BundleError(f"{table} cannot be read: {err}.") from err
    own = WordPiece(path, characters)
    return own, lambda texts: [own.encode(text, longest) for text in texts]


def _checked(texts: Sequence[Text], first: int) -> Sequence[Text]:
    """The texts and pairs. Raises FeedError for what is none, by its number."""
    wanted = "a list of one text or more"
    found = [tuple(each) if isinstance(each, list) else each for each in several("texts", texts, wanted)]
    if not found:
        raise FeedError(f"texts: got []; expected {wanted}.")
    for number, each in enumerate(found, first):
        parts = each if isinstance(each, tuple) and len(each) == 2 else (each,)
        for text in parts:
            if not isinstance(text, str):
                raise FeedError(f"texts[{number}]: got {shown(each)}; expected text, or a pair of texts.")
            try:
                text.encode()
            except UnicodeEncodeError as err:
                raise FeedError(f"texts[{number}]: got half of a surrogate pair; expected text.") from err
    return found


def _expanded(row: Tokens, expansion: Expansion) -> Tokens:
    more = max(expansion.length - len(row.ids), 0)
    return Tokens(row.ids + (expansion.token,) * more, row.type_ids + (0,) * more)


def _begun(prompt: str, text: Text) -> Text:
    return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])


_AT_ONCE = 64
"""Texts that are given to the package together. What it makes of one takes a hundred bytes a token."""


def open_file(path: Path) -> Any:
    """The package's tokenizer of a file.

    Raises:
        BundleError: the package is not installed, or does not read the file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as err:
        cause = None if isinstance(err, ModuleNotFoundError) and err.name == "tokenizers" else err
        raise BundleError(f"{path} needs the package tokenizers: pip install tokenizers.") from cause
    with told(path, "is no tokenizer that the package tokenizers reads"):
        return Tokenizer.from_file(str(path))


class PackageTokenizer:
    """The tokenizer of one `tokenizer.json`, read by the package.

    Attributes:
        pad_id: The id of padding.
        left: Whether padding stands before a text.
        special: The ids of special tokens.
        around: The number of tokens around a text.
    """

    def __init__(self, path: Path, longest: int) -> None:
        """Reads the file, for rows of at most `longest` tokens. Raises BundleError, as `open_file`."""
        self._path = path
        self._made = open_file(path)
        padding, truncation = self._made.padding or {}, self._made.truncation or {}
        known = [self._made.token_to_id(token) for token in PAD_TOKENS]
        self.pad_id = int(padding.get("pad_id", next((token for token in known if token is not None), 0)))
        self.left = padding.get("direction") == "left"
        added = self._made.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)
        self.around = int(self._made.num_special_tokens_to_add(is_pair=False))
        self._made.no_padding()
        self._made.enable_truncation(max(longest, self.around), direction=truncation.get("direction", "right"))

    def token(self, index: int) -> str | None:
        """The token of an id; None where there is none."""
        found: str | None = self._made.id_to_token(index)
        return found

    def encode_batch(self, texts: Sequence[Text]) -> list[Tokens]:
        """The ids of each text or pair with the tokens around it, which stay if the text is cut.

        Raises:
            BundleError: the rules of the file cannot be applied to these texts.
        """
        rows: list[Tokens] = []
        for begin in range(0, len(texts), _AT_ONCE):
            with told(self._path, "cannot be applied to these texts"):
                found = self._made.encode_batch(list(texts[begin : begin + _AT_ONCE]))
            rows += [Tokens(tuple(row.ids), tuple(row.type_ids)) for row in found]
        return rows


@contextmanager
def told(path: Path, what: str) -> Iterator[None]:
    """Names the file in what the package raises in the block.

    Raises:
        BundleError: the package raised, because of the rules in the file.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, BundleError):
        raise
    # The package raises Exception for a malformed file. If it cannot apply a rule, such as a regular expression that
    # takes too many steps, it raises a panic, which does not derive from Exception.
    except BaseException as err:
        raise BundleError(f"{path} {what}: {escaped(str(err)).rstrip('.')}.") from err


PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")
"""What pads where a file does not say it. A model that takes a padding mask does not look at it."""
_LAST = 0x10FFFF
_MOST_IDS = 1 << 31
"""Ids are smaller than this, so that every integer dtype of a model can hold them."""


class Tokens(NamedTuple):
    """The ids of one text, and the type id of each."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]


class WordPiece:
    """The tokenizer of one `tokenizer.json`; the attributes are those of `PackageTokenizer`."""

    left = False  # a file that pads texts at their beginning has no `tokenizer.chars`

    def __init__(self, path: Path, characters: Mapping[int, str]) -> None:
        """Reads the file. Raises BundleError: it is missing or no BERT tokenizer; `tokenizers` reads every kind."""
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
        if not all(type(index) is int and 0 <= index < _MOST_IDS for index in self._vocab.values()):
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
        # Of one text and of two: the ids of special tokens or the number of a text, and the type id.
        self._parts: list[list[tuple[tuple[int, ...] | int, int]]] = [[], []]
        for parts, which, names in zip(self._parts, ("single", "pair"), ("A", "AB"), strict=True):
            for part in after[which]:
                ((kind, place),) = part.items()
                ids = names.index(place["id"]) if kind == "Sequence" else None
                special = after["special_tokens"][place["id"]]["ids"] if ids is None else ()
                parts.append((tuple(map(_id, special)) if ids is None else ids, _id(place["type_id"])))
        self.around = self._around(1)

    def _around(self, texts: int) -> int:
        return sum(len(ids) for ids, _ in self._parts[texts - 1] if isinstance(ids, tuple))

    def encode(self, text: Text, longest: int) -> Tokens:
        """The ids of a text or pair with the tokens around it, cut at its end so that there are at most `longest`."""
        texts = (text,) if isinstance(text, str) else text
        found = [tuple(index for part in self._split_added(each) for index in part) for each in texts]
        room = max(longest - self._around(len(texts)), 0)
        short = min(range(len(found)), key=lambda at: len(found[at]))
        if sum(map(len, found)) > room:  # of two, as the package: the shorter one is cut to no less than half
            kept = min(len(found[short]), room // 2 if len(found) == 2 else room)
            found = [ids[: kept if at == short else room - kept] for at, ids in enumerate(found)]
        ids: list[int] = []
        types: list[int] = []
        for part, type_id in self._parts[len(texts) - 1]:
            here = part if isinstance(part, tuple) else found[part]
            ids += here
            types += [type_id] * len(here)
        return Tokens(tuple(ids), tuple(types))

    def _split_added(self, text: str) -> Iterator[list[int]]:
        for part in self._split.split(text) if self._split else [text]:
            if part in self._added:
                yield [self._added[part]]
            else:
                yield [index for word in part.translate(self._characters).split(" ") for index in self._cut(word)]

    def token(self, index: int) -> str | None:
        """The token of an id; None where there is none."""
        return self._tokens.get(index)

    @functools.cached_property
    def _tokens(self) -> dict[int, str]:
        return {index: text for text, index in self._vocab.items()}

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
    if type(value) is not int or not 0 <= value < _MOST_IDS:
        raise ValueError(f"got id {shown(value)}; expected 0 or more, and less than 2**31")
    return value


class Characters(dict[int, str]):
    """What `str.translate` puts in the place of each character: spaces around words of their own, and between words."""

    def __init__(self, data: bytes) -> None:
        """Reads the content of `tokenizer.chars`. Raises ValueError, which says where it is malformed."""
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
