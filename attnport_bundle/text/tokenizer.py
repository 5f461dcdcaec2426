"""Turns text into the inputs of a model, following its contract, by a tokenizer file of any kind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import integer, require, several, shown
from ..arguments import path as path_argument
from ..errors import BundleError, FeedError, escaped
from ..feeds import padding_masks
from ..format.contract import IO, Dim
from .wordpiece import PAD_TOKENS, Characters, Tokens, WordPiece

if TYPE_CHECKING:
    import numpy as np

IDS, TYPES, POOLED = "input_ids", "token_type_ids", "pooled_mask"
"""Inputs of text models. The last says which tokens are pooled: all of them, but not those of a prompt."""


class Tokenizer:
    """Makes every input of a text model: token ids, type ids and padding masks."""

    def __init__(self, path: str | os.PathLike[str], io: IO, *, limit: int | None = None) -> None:
        """Reads a tokenizer file: by the package `tokenizers` where it is installed, else by a reader of BERT's kind.

        Args:
            path: The bundle's `tokenizer.json`; without the package, `tokenizer.chars` is read beside it.
            io: The contract of the model: `model.io`.
            limit: The most tokens of a text, if that is fewer than the model takes; None = what the model takes.

        Raises:
            BundleError: the file cannot be read, or only by the package `tokenizers`, or the model does not read text.
        """
        if not reads_text(io):
            raise BundleError(f"the model does not read text: it takes {', '.join(map(str, io.inputs))}.")
        self._io, self._length = io, text_length(io)
        longest = self._length.max if limit is None else min(integer("limit", limit, 1), self._length.max)
        self._words, self._rows = _read(path_argument("path", path), longest)
        if self._words.around > longest:
            around = self._words.around
            raise BundleError(f"got {longest} positions; expected {around} or more for the tokens around a text.")
        # Lengths alone cannot say that padding stands before a text.
        self._left = self._words.left and all(mask.carries == "mask" for mask in io.padding_masks())

    def encode(
        self, texts: Sequence[str], first: int = 0, *, prompt: str = "", places: int | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """A row for each text, padded to the longest on the side that the file says.

        A text that is too long is cut at its end, or at its beginning if the file says so; the tokens around it stay.

        Args:
            first: The number of the first text in messages.
            prompt: What is put before each text. The model does not pool its tokens if it takes a `pooled_mask`.
            places: The most places of all texts with their padding; None = any number.

        Raises:
            FeedError: there is no text, or something that is none; or there are too many places; or the model takes no
                padding mask and the texts have different lengths.
        """
        require(isinstance(prompt, str), "prompt", prompt, "the text to put before each text")
        rows = self._rows([prompt + text for text in _checked(texts, first)])
        size = self._length.at_least(max(len(row.ids) for row in rows))
        if places is not None and len(rows) * size > places:
            raise FeedError(
                f"got {len(rows)} texts, padded to {size} tokens each; expected at most {places} tokens with padding. "
                "Send long and short texts apart, or fewer at a time."
            )
        feeds = text_feeds(self._io, rows, self._words.pad_id, left=self._left)
        if prompt and POOLED in feeds:
            # With what stands before every text, and without a special token behind it.
            (before,) = self._rows([prompt])
            count = len(before.ids) - bool(before.ids and before.ids[-1] in self._words.special)
            for at, row in enumerate(rows):
                begin = size - len(row.ids) if self._left else 0
                feeds[POOLED][at, begin : begin + count] = 0
        return feeds


def reads_text(io: IO) -> bool:
    """Whether a tokenizer makes every input of a model: token ids, with or without type ids and padding masks."""
    dims = {spec.name: spec.dims for spec in io.inputs}
    tensors = {IDS, TYPES} & dims.keys()
    masks = {mask.input for mask in io.padding_masks()}
    return IDS in dims and dims.keys() <= masks | {IDS, TYPES} and all(len(dims[name]) == 2 for name in tensors)


def text_length(io: IO) -> Dim:
    """How many tokens a text may have; a Dim of one size for a model that takes no other."""
    last = next(spec for spec in io.inputs if spec.name == IDS).dims[1]
    fixed = last if isinstance(last, int) else 0
    return next((dim for dim in io.dims if dim.name == last), Dim("length", fixed, fixed, fixed))


def text_feeds(
    io: IO, rows: Sequence[Tokens], pad_id: int = 0, *, left: bool = False
) -> dict[str, np.ndarray[Any, Any]]:
    """The ids and type ids of texts, padded to the longest, and the masks that say what is padding.

    Args:
        rows: One text or more.
        left: Padding stands before a text, and not behind it.

    Raises:
        FeedError: the model takes no padding mask and the texts have different lengths.
    """
    import numpy as np

    lengths = [len(row.ids) for row in rows]
    size = text_length(io).at_least(max(lengths))
    feeds = {spec.name: np.zeros((len(rows), size), spec.dtype) for spec in io.inputs if spec.name in (IDS, TYPES)}
    feeds[IDS][:] = pad_id
    for at, row in enumerate(rows):
        begin = size - lengths[at] if left else 0
        feeds[IDS][at, begin : begin + lengths[at]] = row.ids
        if TYPES in feeds:
            feeds[TYPES][at, begin : begin + lengths[at]] = row.type_ids
    if io.padding_masks() or min(lengths) < size:
        feeds |= padding_masks(io, lengths, size, left=left)
    return feeds


def _read(path: Path, longest: int) -> tuple[WordPiece | PackageTokenizer, Callable[[Sequence[str]], list[Tokens]]]:
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


def _checked(texts: Sequence[str], first: int) -> Sequence[str]:
    """The texts. Raises FeedError for what is none, by its number."""
    texts = list(several("texts", texts, "a list of one text or more"))
    if not texts:
        raise FeedError("texts: got []; expected a list of one text or more.")
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise FeedError(f"texts[{number}]: got {shown(text)}; expected text.")
        try:
            text.encode()
        except UnicodeEncodeError as err:
            raise FeedError(f"texts[{number}]: got half of a surrogate pair; expected text.") from err
    return texts


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
        raise BundleError(f"{path} needs the package tokenizers: pip install tokenizers.") from err
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
        """Reads the file.

        Args:
            longest: The most tokens of a text, those around it included.

        Raises:
            BundleError: as `open_file`.
        """
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

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids of each text with the tokens around it, which stay if the text is cut.

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
