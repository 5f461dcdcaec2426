"""The workloads of `attnport bench`: sentences, ragged batches of given lengths, and full batches of a size.

Lengths come from a histogram, so that real workloads can be measured without their texts. Sizes come from a grid:
`batch=1/8,seq=64/128` is four shapes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnport.artifacts import IOContract, Manifest
from attnport.cases.choosing import GRAPH, reads_text, text_cases
from attnport.cases.inputs import Array, Case, batch_dim, case, full_case, real_tokens
from attnport.cases.mask_cases import keys_dim
from attnport.decoders import decoder_roles
from attnport.dims import Dim, parse_sizes
from attnport.errors import ProfileError, UsageError
from attnport.masks.numpy_builders import encode_mask, numpy_dtype

MANY = 32
"""The number of sentences or lengths in a padded batch."""
MOST = 64
"""The largest number of shapes in a grid; each is measured on every runtime."""

_PART = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\d{1,18}(?:\s*/\s*\d{1,18})*)")
_SHAPE_HINT = "Write a size for each dim, or several between slashes: batch=8,seq=128 or batch=1/8,seq=64/128."
Histogram = Mapping[int, int]
"""The number of sequences of each length, the shortest first."""

MAX_FILE_BYTES = 64 << 20
_LINE = re.compile(r"(\d{1,9})(?:\s*:\s*(\d{1,15}))?")
_LENGTH_HINT = "Write one length in each line, or LENGTH:COUNT, for example 128 or 128:40."


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
        together = text_cases(io, sentences[:batch], tokenizer, batch, folder / GRAPH)[0]
        chosen += [_workload(io, middle, "sentence"), _workload(io, together, "sentence")]
    if lengths:
        least = io.dim(str(batch_dim(io))).min if batch_dim(io) else 1
        together_count = min(batch, _dims(io)[0].max, sum(lengths.values()))
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


def parse_grid(text: str, dims: Sequence[Dim]) -> list[dict[str, int]]:
    """The sizes of a grid, the last dim varying fastest; a dim that is left out has its opt size.

    Raises:
        UsageError: the text is empty, a range or malformed, or there are too many shapes.
        ProfileError: a dim is unknown or repeated, or a size exceeds the model's limit.
    """
    known = {dim.name: dim for dim in dims}
    parts = read_grid(text)
    for name, size in ((name, size) for name, sizes in parts for size in sizes):
        if name in known and not known[name].takes(size):
            raise ProfileError(f"--shape {text}: got {name}={size}; the model takes {name} from {known[name].span}.")
    each = itertools.product(*([f"{name}={size}" for size in sizes] for name, sizes in parts))
    shapes = [parse_sizes(",".join(shape), dims) for shape in each]
    return [sizes for place, sizes in enumerate(shapes) if sizes not in shapes[:place]]


def read_grid(text: str) -> list[tuple[str, list[int]]]:
    """The dims of a grid with their sizes, of whatever model.

    Raises:
        UsageError: the text is empty, a range or malformed, or there are too many shapes.
    """
    if not text.strip():
        raise UsageError("--shape is empty.", hint=_SHAPE_HINT)
    parts = []
    for part in (piece.strip() for piece in text.split(",")):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(f"--shape {text}: cannot read {part!r}.", hint=_SHAPE_HINT)
        parts.append((match[1], [int(size) for size in re.split(r"\s*/\s*", match[2])]))
    if (count := math.prod(len(sizes) for _, sizes in parts)) > MOST:
        raise UsageError(f"--shape {text}: got {count} shapes; at most {MOST} are measured in one run.")
    return parts


def read_lengths(path: Path) -> Histogram:
    """The lengths in a text file: each line is a length or `length:count`; empty lines are skipped.

    Raises:
        UsageError: the file cannot be read, holds no length, or has a malformed line; names the line.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_FILE_BYTES} bytes.", hint="Write LENGTH:COUNT lines.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror}.", hint=_LENGTH_HINT) from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{path} is not a text file: {err.reason} at byte {err.start}.", hint=_LENGTH_HINT) from err
    histogram: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        length, count = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if not length or not count:
            raise UsageError(f"{path}, line {number}: got {line.strip()[:40]!r}, expected a length.", hint=_LENGTH_HINT)
        histogram[length] = histogram.get(length, 0) + count
    if not histogram:
        raise UsageError(f"{path} holds no length.", hint=_LENGTH_HINT)
    return dict(sorted(histogram.items()))


def spread(histogram: Histogram, count: int) -> list[int]:
    """`count` lengths that represent a histogram: those at evenly spaced quantiles, the shortest first.

    They are not random, as otherwise the longest one, and with it the amount of padding, would be so too.
    """
    reached = np.cumsum(list(histogram.values()), dtype=np.float64)
    wanted = (np.arange(count) + 0.5) / count * reached[-1]
    values = np.array(list(histogram))
    return [int(length) for length in values[np.searchsorted(reached, wanted, side="left")]]


def ragged_case(io: IOContract, lengths: Sequence[int], seed: int = 0) -> Case:
    """A batch of sequences of these lengths in a shuffled order, padded on the right to the longest.

    Every padding mask gets the same lengths.

    Raises:
        UsageError: the model has no padding mask over a dynamic length, or does not take these lengths or this many.
    """
    batch, dims = _dims(io)
    longest, shortest = max(lengths), min(lengths)
    for dim in dims:
        if not dim.min <= longest <= dim.max:
            raise UsageError(
                f"--lengths: the longest is {longest}; the model takes {dim.name} from {dim.span}.",
                hint="Leave lengths beyond that out of the file.",
            )
    if not batch.takes(len(lengths)):
        raise UsageError(f"got {len(lengths)} lengths; the model takes {batch.name} from {batch.span}.")
    shuffled = np.random.default_rng(seed).permutation(np.array(lengths))
    wide = math.lcm(*(dim.step for dim in dims))
    wide *= -(-longest // wide)  # all of them, padded to what every one takes
    sizes = {batch.name: len(lengths)} | {dim.name: wide for dim in dims}
    full = full_case(io, sizes, seed)
    feeds: dict[str, Array] = dict(full.feeds)
    keep_BT = np.arange(wide) < shuffled[:, None]
    for mask in io.padding_masks():
        spec = next(spec for spec in io.inputs if spec.name == mask.input)
        if mask.carries == "lengths":
            feeds[spec.name] = shuffled.astype(numpy_dtype(spec.dtype))
        elif mask.carries == "ids":
            feeds[spec.name] = keep_BT.astype(numpy_dtype(spec.dtype))
        else:
            feeds[spec.name] = encode_mask(mask, spec.dtype, keep_BT)
    span = f"length {longest}" if shortest == longest else f"lengths {shortest}-{longest}"
    return case(io, f"{len(lengths)} of {span}", "sizes", feeds)


def _dims(io: IOContract) -> tuple[Dim, list[Dim]]:
    """The batch dim and the dims of lengths."""
    batch = batch_dim(io)
    masks = io.padding_masks()
    keys = [keys_dim(io, mask) for mask in masks]
    if batch is None or not masks or not all(isinstance(key, str) and key != batch for key in keys):
        raise UsageError(
            "the model has no padding mask over a dynamic length, so its batches cannot be ragged.",
            hint="Leave --lengths out, and give --shape.",
        )
    pairs = {spec.name for spec in io.inputs if len(spec.dims) == 2}
    wide = [mask for mask in masks if mask.carries != "lengths" and mask.input not in pairs]
    if wide:
        raise UsageError(f"mask {wide[0]} is more than a padding mask [batch, length]; --lengths cannot make it.")
    return io.dim(batch), [io.dim(str(key)) for key in dict.fromkeys(keys)]
