"""Turns text into the inputs of a model, following its contract."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import package_tokenizer
from .arguments import integer, require, several, shown
from .arguments import path as path_argument
from .contract import IO, Dim
from .errors import BundleError, FeedError
from .feeds import padding_masks
from .wordpiece import Tokens, WordPiece

if TYPE_CHECKING:
    import numpy as np

IDS, TYPES, POOLED = "input_ids", "token_type_ids", "pooled_mask"
"""Inputs of text models. The last says which tokens are pooled: all of them, but not those of a prompt."""


class Tokenizer:
    """Makes every input of a text model: token ids, type ids and padding masks."""

    def __init__(self, path: str | os.PathLike[str], io: IO, *, limit: int | None = None) -> None:
        """Reads a tokenizer file: by the package `tokenizers` where it is installed, else by a reader of BERT's kind.

        Args:
            path: The bundle's `tokenizer.json`.
            io: The contract of the model: `model.io`.
            limit: The most tokens of a text, if that is fewer than the model takes; None = what the model takes.

        Raises:
            BundleError: only the `tokenizers` package reads this kind of file, or the model does not read text.
        """
        if not reads_text(io):
            raise BundleError(f"the model does not read text: it takes {', '.join(map(str, io.inputs))}.")
        self._io, self._masked = io, _masked(io)
        self._tensors = {spec.name: spec for spec in io.inputs if spec.name in (IDS, TYPES)}
        last = self._tensors[IDS].dims[1]
        fixed = last if isinstance(last, int) else 0
        self._length = next((dim for dim in io.dims if dim.name == last), Dim("length", fixed, fixed, fixed))
        longest = self._length.max if limit is None else min(integer("limit", limit, 1), self._length.max)
        self._words, self._rows = _read(path_argument("path", path), longest)
        # Lengths alone cannot say that padding stands before a text.
        self._left = self._words.left and all(mask.carries == "mask" for mask in io.padding_masks())

    def encode(self, texts: Sequence[str], *, prompt: str = "") -> dict[str, np.ndarray[Any, Any]]:
        """A row for each text, padded to the longest on the side that the file says.

        A text that is too long is cut at its end, or at its beginning if the file says so; the tokens around it stay.

        Args:
            prompt: What is put before each text. The model does not pool its tokens if it takes a `pooled_mask`.

        Raises:
            FeedError: there is no text, or something that is none; or the model takes no padding mask and the texts
                have different lengths.
        """
        return self.encode_part(texts, 0, prompt)

    def encode_part(
        self, texts: Sequence[str], first: int, prompt: str, places: int | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """As `encode`, of texts the first of which is called number `first` in messages.

        Args:
            places: The most places of all texts with their padding, beyond which FeedError is raised; None = any.
        """
        import numpy as np

        require(isinstance(prompt, str), "prompt", prompt, "the text to put before each text")
        rows = self._rows([prompt + text for text in _checked(texts, first)])
        lengths = [len(row.ids) for row in rows]
        size = self._length.at_least(max(lengths))
        if places is not None and len(rows) * size > places:
            raise FeedError(
                f"got {len(rows)} texts, padded to {size} tokens each; expected at most {places} tokens with padding. "
                "Send long and short texts apart, or fewer at a time."
            )
        feeds = {name: np.zeros((len(rows), size), dtype=spec.dtype) for name, spec in self._tensors.items()}
        feeds[IDS][:] = self._words.pad_id
        begins = [size - length if self._left else 0 for length in lengths]
        for at, (row, begin) in enumerate(zip(rows, begins, strict=True)):
            feeds[IDS][at, begin : begin + lengths[at]] = row.ids
            if TYPES in feeds:
                feeds[TYPES][at, begin : begin + lengths[at]] = row.type_ids
        if self._masked or min(lengths) < size:
            feeds |= padding_masks(self._io, lengths, size, left=self._left)
        if prompt and POOLED in feeds:
            count = self._tokens_before(prompt)
            for at, begin in enumerate(begins):
                feeds[POOLED][at, begin : begin + count] = 0
        return feeds

    def _tokens_before(self, prompt: str) -> int:
        """The tokens of a prompt, with what stands before every text and without a special one behind it."""
        (row,) = self._rows([prompt])
        return len(row.ids) - bool(row.ids and row.ids[-1] in self._words.special)


def reads_text(io: IO) -> bool:
    """Whether a tokenizer makes every input of a model: token ids, with or without type ids and padding masks."""
    dims = {spec.name: spec.dims for spec in io.inputs}
    tensors = {IDS, TYPES} & dims.keys()
    return IDS in dims and dims.keys() <= _masked(io) | {IDS, TYPES} and all(len(dims[name]) == 2 for name in tensors)


def _masked(io: IO) -> set[str | None]:
    """The inputs that are padding masks."""
    return {mask.input for mask in io.masks if mask.input and "padding" in mask.kinds}


def _read(
    path: Path, longest: int
) -> tuple[WordPiece | package_tokenizer.PackageTokenizer, Callable[[Sequence[str]], list[Tokens]]]:
    """What reads the file, and the rows that it makes of texts."""
    if package_tokenizer.installed():
        made = package_tokenizer.PackageTokenizer(path, longest)
        return made, made.encode_batch
    own = WordPiece(path)
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
