"""What `attnport bench` times: sentences as they come, and full batches of a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnport.artifacts import IOContract, Manifest
from attnport.compare.inputs import Array, Case, batch_dim, full_case, real_tokens
from attnport.compare.text import reads_text, text_cases
from attnport.dims import parse_sizes
from attnport.errors import UsageError

_MANY = 32


@dataclass(frozen=True)
class Workload:
    """One thing to time.

    Attributes:
        items: Sentences, or batch items.
        tokens: Real tokens, padding left out.
    """

    name: str
    feeds: Mapping[str, Array]
    items: int
    tokens: int


def workloads(
    folder: Path, manifest: Manifest, shapes: Sequence[str] | None, sentences: Sequence[str], seed: int
) -> list[Workload]:
    """The workloads: `1 sentence` and `32 sentences` where there are sentences, then the shapes.

    Without shapes, `batch=8,seq=128` for a model that reads text, else every dim at its opt.

    Raises:
        ProfileError: a shape is malformed or beyond the model's limit.
        UsageError: sentences for a model without a tokenizer.
    """
    io = manifest.io
    made = []
    if sentences:
        if not manifest.tokenizer:
            raise UsageError(f"{folder} has no tokenizer, so it cannot read text.", hint="Leave --text out.")
        tokenizer = folder / manifest.tokenizer
        alone = text_cases(io, sentences, tokenizer, batch=1)
        # The sentence of median length: neither the luck of the first line nor an average that no call has.
        middle = sorted(alone, key=lambda case: real_tokens(io, case.feeds))[len(alone) // 2]
        together = text_cases(io, sentences[:_MANY], tokenizer, batch=_MANY)[0]
        made += [_workload(io, middle, "sentence"), _workload(io, together, "sentence")]
    if shapes:
        made += [_workload(io, full_case(io, parse_sizes(shape, io.dims), seed)) for shape in shapes]
    else:
        made.append(_workload(io, full_case(io, _usual(io) if reads_text(io) else {}, seed)))
    return list({workload.name: workload for workload in made}.values())


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
    """8 x 128, within what the model takes."""
    batch = batch_dim(io)
    return {dim.name: max(dim.min, min(8 if dim.name == batch else 128, dim.max)) for dim in io.dims}
