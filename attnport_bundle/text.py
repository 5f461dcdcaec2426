"""Turns text into the inputs of a model, following its contract."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract import IO, Dim
from .errors import BundleError, FeedError
from .feeds import padding_masks
from .wordpiece import WordPiece

if TYPE_CHECKING:
    import numpy as np

IDS, TYPES = "input_ids", "token_type_ids"


class Tokenizer:
    """Makes every input of a text model: token ids, type ids and padding masks."""

    def __init__(self, path: str | os.PathLike[str], io: IO) -> None:
        """Reads a tokenizer file.

        Args:
            path: The bundle's `tokenizer.json`.
            io: The contract of the model: `model.io`.

        Raises:
            BundleError: only the `tokenizers` package reads this kind of file, or the model does not read text.
        """
        self._words = WordPiece(Path(path))
        self._io = io
        self._tensors = {spec.name: spec for spec in io.inputs if spec.name in (IDS, TYPES)}
        self._masked = {mask.input for mask in io.masks if mask.input and "padding" in mask.kinds}
        others = [spec.name for spec in io.inputs if spec.name not in self._masked | {IDS, TYPES}]
        if IDS not in self._tensors or others or any(len(spec.dims) != 2 for spec in self._tensors.values()):
            raise BundleError(f"the model does not read text: it takes {', '.join(map(str, io.inputs))}.")
        last = self._tensors[IDS].dims[1]
        fixed = last if isinstance(last, int) else 0
        self._length = next((dim for dim in io.dims if dim.name == last), Dim("length", fixed, fixed, fixed))

    def encode(self, texts: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """A row for each text, padded on the right to the longest. A text too long for the model is cut at its end.

        Raises:
            FeedError: there is no text, or the model takes no padding mask and the texts have different lengths.
        """
        import numpy as np

        if isinstance(texts, str) or not texts:
            raise FeedError(f"texts: got {texts!r:.60}; expected a list of one text or more.")
        rows = [self._words.encode(text, self._length.max) for text in texts]
        lengths = [len(row.ids) for row in rows]
        size = self._length.at_least(max(lengths))
        feeds = {name: np.zeros((len(rows), size), dtype=spec.dtype) for name, spec in self._tensors.items()}
        feeds[IDS][:] = self._words.pad_id
        for at, row in enumerate(rows):
            feeds[IDS][at, : lengths[at]] = row.ids
            if TYPES in feeds:
                feeds[TYPES][at, : lengths[at]] = row.type_ids
        if self._masked or min(lengths) < size:
            feeds |= padding_masks(self._io, lengths, size)
        return feeds
