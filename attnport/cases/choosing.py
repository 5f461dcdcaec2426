"""Collects the cases of a check: those of the contract, given inputs, and sentences."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import Manifest
from attnport.cases.decoding import GROUP as DECODING
from attnport.cases.decoding import decoding_cases
from attnport.cases.inputs import Case, cases
from attnport.cases.inputs import case as given_case
from attnport.cases.text import text_cases
from attnport.errors import UsageError


def cases_of(
    folder: Path, manifest: Manifest, sentences: Sequence[str], inputs: Path | None, seed: int, batch: int
) -> list[Case]:
    """The cases of a check. Raises UsageError if there are sentences and the folder has no tokenizer."""
    chosen = [*cases(manifest.io, seed), *decoding_cases(manifest.io, seed)]
    if inputs:
        chosen.append(given_case(manifest.io, inputs.name, "given", read_feeds(inputs)))
    if sentences:
        if not manifest.tokenizer:
            raise UsageError(
                f"{folder} has no tokenizer, so it cannot read text.",
                hint="Leave --text out, or give tensors with --inputs.",
            )
        texts = [manifest.prompts.usual + sentence for sentence in sentences]
        chosen += text_cases(manifest.io, texts, folder / manifest.tokenizer, batch)
    return chosen


def few_batches(tried: Sequence[Case], count: int) -> list[Case]:
    """All cases, but of the batches of sentences only so many, from the shortest to the longest, evenly spread.

    Of the cases that are run token by token, the shorter one is kept.
    """
    decoding = [case for case in tried if case.group == DECODING]
    tried = [case for case in tried if case not in decoding[1:]]
    text = sorted((case for case in tried if case.group == "text"), key=_size)
    if len(text) <= count:
        return list(tried)
    kept = {text[index * (len(text) - 1) // max(count - 1, 1)].name for index in range(count)}
    return [case for case in tried if case.group != "text" or case.name in kept]


def _size(case: Case) -> int:
    return max(array.size for array in case.feeds.values())


def read_feeds(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an `.npz` by name; nothing is unpickled.

    Raises:
        UsageError: the file does not exist, is not an `.npz`, is cut short or holds Python objects.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror or err}.", hint="Write it with numpy.savez.") from err
    # A single array (.npy) is not a context manager: AttributeError or TypeError.
    except (
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        TypeError,
        AttributeError,
        NotImplementedError,
    ) as err:
        raise UsageError(
            f"{path} is not an .npz of arrays: {err}.",
            hint="Write it with numpy.savez, an array by name for each input.",
        ) from err
