"""The cases of a check: those of the contract, inputs that were given, and sentences."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import Manifest
from attnport.cases.inputs import Case, cases
from attnport.cases.inputs import case as given_case
from attnport.cases.text import text_cases
from attnport.errors import UsageError


def cases_of(
    folder: Path, manifest: Manifest, sentences: Sequence[str], inputs: Path | None, seed: int, batch: int
) -> list[Case]:
    """The cases of a check: the contract's, given inputs, sentences. Raises UsageError for text without a tokenizer."""
    found = cases(manifest.io, seed)
    if inputs:
        found.append(given_case(manifest.io, inputs.name, "given", read_feeds(inputs)))
    if sentences:
        if not manifest.tokenizer:
            raise UsageError(
                f"{folder} has no tokenizer, so it cannot read text.",
                hint="Leave --text out, or give tensors with --inputs.",
            )
        found += text_cases(manifest.io, sentences, folder / manifest.tokenizer, batch)
    return found


def read_feeds(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an `.npz` by name; nothing is unpickled.

    Raises:
        UsageError: there is no such file, it is not an `.npz`, it is cut short, or it holds Python objects.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror or err}.", hint="Write it with numpy.savez.") from err
    # One array alone (.npy) is no context manager: AttributeError or TypeError.
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
            f"{path} is no .npz of arrays: {err}.", hint="Write it with numpy.savez, an array for each input, by name."
        ) from err
