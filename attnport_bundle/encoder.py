"""The encoder in front of a decoder: prompts in, the inputs that the decoder takes at every step out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract import IO, Dim, TensorSpec
from .decoding import Run
from .errors import FeedError
from .feeds import padding_masks
from .text import IDS, TYPES

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Encoder:
    """An open encoder.

    Attributes:
        run: Runs it.
        tokenizer: Its `tokenizer.json`, which texts need.
    """

    run: Run
    io: IO
    tokenizer: Path | None

    def context(
        self, prompts: Sequence[Sequence[int]] | Mapping[str, Array], wanted: Sequence[TensorSpec]
    ) -> dict[str, Array]:
        """Runs the encoder on prompts; gives the inputs that a decoder takes from it.

        Each is the encoder's output or input of the same name.

        Args:
            prompts: Token ids, or an array for each input of the encoder.

        Raises:
            FeedError: the encoder does not take these prompts, or does not give what is wanted.
        """
        feeds = dict(prompts) if isinstance(prompts, Mapping) else self._padded(prompts)
        given = {**feeds, **self.run(**feeds)}
        if missing := [spec.name for spec in wanted if spec.name not in given]:
            raise FeedError(
                f"encoder: it does not give {', '.join(missing)}. Of hf:, export it with --part encoder-with-past."
            )
        return {spec.name: given[spec.name] for spec in wanted}

    def _padded(self, prompts: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Token ids as the encoder takes them: a row for each prompt, padded on the right."""
        import numpy as np

        found = {spec.name: spec for spec in self.io.inputs if spec.name in (IDS, TYPES) and len(spec.dims) == 2}
        if IDS not in found:
            taken = ", ".join(map(str, self.io.inputs))
            raise FeedError(f"prompts: the encoder takes {taken}; give an array for each by its name.")
        lengths = [len(prompt) for prompt in prompts]
        if not lengths or min(lengths) < 1:
            raise FeedError("prompts: got none, or one without a token; expected one or more tokens each.")
        length, longest = found[IDS].dims[1], max(lengths)
        fixed = length if isinstance(length, int) else 0
        dim = next((dim for dim in self.io.dims if dim.name == length), Dim("seq", fixed, fixed, fixed))
        if longest > dim.max:
            raise FeedError(f"prompts: got one of {longest} tokens; the encoder reads at most {dim.max}.")
        size = dim.at_least(longest)
        feeds = {name: np.zeros((len(prompts), size), spec.dtype) for name, spec in found.items()}
        for row, prompt in enumerate(prompts):
            feeds[IDS][row, : len(prompt)] = prompt
        if self.io.padding_masks() or min(lengths) < size:
            feeds |= padding_masks(self.io, lengths, size)
        return feeds
