"""Ragged batches from a histogram of lengths, to measure real workloads without their texts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnport.artifacts import IOContract
from attnport.cases.inputs import Array, Case, batch_dim, case, full_case
from attnport.cases.mask_cases import keys_dim
from attnport.dims import Dim
from attnport.errors import UsageError
from attnport.masks.encoding import encode_mask, numpy_dtype

Histogram = Mapping[int, int]
"""The number of sequences of each length, the shortest first."""

MAX_FILE_BYTES = 64 << 20
_LINE = re.compile(r"(\d{1,9})(?:\s*:\s*(\d{1,15}))?")
_HINT = "Write one length in each line, or LENGTH:COUNT, for example 128 or 128:40."


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
        raise UsageError(f"{path} cannot be read: {err.strerror}.", hint=_HINT) from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{path} is not a text file: {err.reason} at byte {err.start}.", hint=_HINT) from err
    histogram: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        length, count = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if not length or not count:
            raise UsageError(f"{path}, line {number}: got {line.strip()[:40]!r}, expected a length.", hint=_HINT)
        histogram[length] = histogram.get(length, 0) + count
    if not histogram:
        raise UsageError(f"{path} holds no length.", hint=_HINT)
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


def batch_limit(io: IOContract) -> int:
    """The largest number of sequences in a call. Raises UsageError as `ragged_case`."""
    return _dims(io)[0].max


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
    wide = [mask for mask in masks if mask.carries != "lengths" and _rank(io, str(mask.input)) != 2]
    if wide:
        raise UsageError(f"mask {wide[0]} is more than a padding mask [batch, length]; --lengths cannot make it.")
    return io.dim(batch), [io.dim(str(key)) for key in dict.fromkeys(keys)]


def _rank(io: IOContract, name: str) -> int:
    return len(next(spec for spec in io.inputs if spec.name == name).dims)
