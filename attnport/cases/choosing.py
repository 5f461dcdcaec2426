"""The cases of a check: those of the contract, inputs that were given, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnport.artifacts import Manifest
from attnport.cases.feeds import read_feeds
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
