"""Collects the cases of a check: those of the contract, given inputs, and sentences."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from attnport.artifacts import Manifest
from attnport.cases.decoding import GROUP as DECODING
from attnport.cases.decoding import decoding_cases, of_all_tokens
from attnport.cases.inputs import Case, cases, full_case
from attnport.cases.inputs import case as given_case
from attnport.cases.text import SENTENCES, text_cases
from attnport.errors import UsageError

T = TypeVar("T")


def cases_of(
    folder: Path,
    manifest: Manifest,
    sentences: Sequence[str],
    inputs: Path | None,
    seed: int,
    batch: int,
    sizes: Sequence[Mapping[str, int]] = (),
) -> list[Case]:
    """The cases of a check, each name once.

    Args:
        sizes: Sizes of dims, of which full batches are further cases.

    Raises:
        UsageError: there are sentences and the folder has no tokenizer.
    """
    chosen = [*cases(manifest.io, seed), *decoding_cases(manifest.io, seed)]
    if inputs:
        chosen.append(given_case(manifest.io, inputs.name, "given", read_feeds(inputs)))
    if sentences:
        tokenizer = needed_tokenizer(str(folder), manifest.tokenizer)
        texts = [manifest.prompts.usual + sentence for sentence in sentences]
        whole = of_all_tokens(manifest.io)
        group = "text" if whole is manifest.io else DECODING
        read = text_cases(whole, texts, folder / tokenizer, batch)
        chosen += [dataclasses.replace(one, group=group) for one in read]
    chosen += [full_case(manifest.io, each, seed) for each in sizes]
    return list({case.name: case for case in chosen}.values())


def needed_tokenizer(what: str, tokenizer: T | None) -> T:
    """The tokenizer of a model that is given text. Raises UsageError if it has none, which calls the model `what`."""
    if tokenizer is None:
        raise UsageError(
            f"{what} has no tokenizer, so it cannot read text.", hint="Leave --text out, or give tensors with --inputs."
        )
    return tokenizer


def few_batches(tried: Sequence[Case], count: int) -> list[Case]:
    """All cases, but of the batches of sentences only so many, from the shortest to the longest, evenly spread.

    Of the cases that are run token by token, the shorter one is kept.
    """
    decoding = [case for case in tried if case.group == DECODING and not _is_text(case)]
    tried = [case for case in tried if case not in decoding[1:]]
    text = sorted((case for case in tried if _is_text(case)), key=_size)
    if len(text) <= count:
        return list(tried)
    kept = {text[index * (len(text) - 1) // max(count - 1, 1)].name for index in range(count)}
    return [case for case in tried if not _is_text(case) or case.name in kept]


def _is_text(case: Case) -> bool:
    """Whether it is a batch of sentences, also of a model that runs them token by token."""
    return case.name.startswith(SENTENCES)


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
