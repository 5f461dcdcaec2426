"""The workloads of `attnport bench`: sentences, ragged batches of given lengths, and full batches of a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnport.artifacts import IOContract, Manifest
from attnport.cases.inputs import Array, Case, batch_dim, full_case, real_tokens
from attnport.cases.text import reads_text, text_cases
from attnport.decoders import decoder_roles
from attnport.errors import UsageError
from attnport.latency.grid import MOST, parse_grid
from attnport.latency.lengths import Histogram, batch_limit, ragged_case, spread

MANY = 32
"""The number of sentences or lengths in a padded batch."""


@dataclass(frozen=True)
class Workload:
    """One thing to time.

    Attributes:
        items: The number of sentences or batch items.
        tokens: The number of tokens without padding.
    """

    name: str
    feeds: Mapping[str, Array]
    items: int
    tokens: int


def workloads(
    folder: Path,
    manifest: Manifest,
    shapes: Sequence[str] | None,
    sentences: Sequence[str],
    seed: int,
    lengths: Histogram | None = None,
    batch: int = MANY,
) -> list[Workload]:
    """The workloads: `1 sentence` and `32 sentences` if there are sentences, the same for lengths, then the shapes.

    Without shapes and lengths, `batch=8,seq=128` for a model that reads text, otherwise every dim at its opt size: of a
    decoder with a cache that is one step.

    Args:
        shapes: Grids of sizes, see `grid`.
        lengths: The number of sequences of each length.
        batch: The number of sentences or lengths in a padded batch.

    Raises:
        ProfileError: a shape is malformed or exceeds the model's limit.
        UsageError: there are sentences but no tokenizer, lengths but no padding mask, or too many shapes.
    """
    io = manifest.io
    chosen = []
    if sentences:
        if not manifest.tokenizer:
            raise UsageError(f"{folder} has no tokenizer, so it cannot read text.", hint="Leave --text out.")
        tokenizer = folder / manifest.tokenizer
        sentences = [manifest.prompts.usual + sentence for sentence in sentences]
        alone = text_cases(io, sentences, tokenizer, batch=1)
        # The sentence of median length represents them better than the first, or than an average of all.
        middle = sorted(alone, key=lambda case: real_tokens(io, case.feeds))[len(alone) // 2]
        together = text_cases(io, sentences[:batch], tokenizer, batch=batch)[0]
        chosen += [_workload(io, middle, "sentence"), _workload(io, together, "sentence")]
    if lengths:
        least = io.dim(str(batch_dim(io))).min if batch_dim(io) else 1
        together_count = min(batch, batch_limit(io), sum(lengths.values()))
        together_count = io.dim(str(batch_dim(io))).at_least(together_count)
        for count in dict.fromkeys((least, together_count)):
            chosen.append(_workload(io, ragged_case(io, spread(lengths, count), seed)))
    if shapes:
        sizes = [sizes_of_shape for shape in shapes for sizes_of_shape in parse_grid(shape, io.dims)]
        if len(sizes) > MOST:
            raise UsageError(f"got {len(sizes)} shapes; at most {MOST} are measured in one run.")
        chosen += [_workload(io, full_case(io, sizes_of_shape, seed)) for sizes_of_shape in sizes]
    elif not lengths:
        chosen.append(_workload(io, full_case(io, _usual(io), seed)))
    return list({workload.name: workload for workload in chosen}.values())


def _workload(io: IOContract, case: Case, counted: str = "") -> Workload:
    items = _items(io, case.feeds)
    name = f"{items} {counted}{'s' if items > 1 else ''}" if counted else case.name
    return Workload(name, case.feeds, items, real_tokens(io, case.feeds))


def _items(io: IOContract, feeds: Mapping[str, Array]) -> int:
    batch = batch_dim(io)
    for spec in io.inputs:
        if batch in spec.dims:
            return int(np.shape(feeds[spec.name])[spec.dims.index(batch)])
    return 1


def _usual(io: IOContract) -> dict[str, int]:
    """For a model that reads text whole a batch of 8 with length 128, within its limits; otherwise the opt sizes."""
    if not reads_text(io) or decoder_roles(io):
        return {}
    batch = batch_dim(io)
    return {dim.name: dim.at_least(8 if dim.name == batch else 128) for dim in io.dims}
