"""Sizes at which models are tried: the smallest, usual and largest of each dim, 1, primes, and around a window."""

from __future__ import annotations

import math
from collections.abc import Callable

from attnport.artifacts import IOContract
from attnport.dims import Dim

# Small, so that an evaluator that computes in half precision without hardware for it also finishes.
BATCH, LENGTH = 4, 32
_PRIMES = (37, 41, 43, 47, 31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)

_POSITIONS = 2048
"""The most positions of an item in usual cases: attention may be over all of those of a picture, or of a video."""

LONGEST = 2048
_BATCH_ELEMENTS = 1 << 21
"""The input elements of the largest batch that is tried, about: 14 images of 224 by 224."""

Sizes = dict[str, int]


def largest(io: IOContract, dim: Dim) -> int:
    """The largest size of a dim that is tried: its own, or 2048 (or twice its usual size) where it goes further.

    The scores of a longer sequence, in float64, fill any memory. What counts large items, as the first axis does, is
    tried up to fewer of them: the sixtieth image shows nothing that the tenth does not, and takes minutes.
    """
    size = min(dim.max, dim.at_least(max(LONGEST, 2 * dim.opt)))
    if any(dim.name in spec.dims[1:] for spec in io.inputs):
        return size
    one = {each.name: each.at_least(2) for each in io.dims} | {dim.name: 1}
    item = sum(math.prod(spec.shape(one)) for spec in io.inputs)
    return min(size, dim.at_least(max(BATCH, _BATCH_ELEMENTS // max(item, 1))))


def untried(io: IOContract) -> list[str]:
    """What a report says of the dims that go further than they are tried."""
    tried = {dim: largest(io, dim) for dim in io.dims}
    return [
        f"{dim.name} was tried up to {size}, and goes to {dim.max}" for dim, size in tried.items() if size < dim.max
    ]


def batch_dim(io: IOContract) -> str | None:
    """The dim that counts batch items; None if only lengths are dynamic."""
    names = {dim for spec in io.inputs for dim in spec.dims if isinstance(dim, str)}
    specs = {spec.name: spec for spec in io.inputs}
    firsts = [specs[str(mask.input)].dims[0] for mask in io.padding_masks()]
    firsts += [spec.dims[0] for spec in io.inputs if len(spec.dims) > 1]
    first = next((dim for dim in firsts if isinstance(dim, str)), None)
    # The single dynamic dim of a model (tokens x channels) is a length, so that it is also tried at its largest.
    return first if len(names) > 1 or io.padding_masks() else None


def usual(io: IOContract, batch: int = BATCH) -> Sizes:
    """A small batch of usual lengths, at most `LENGTH`."""
    return _fewer_positions(io, _sizes(io, batch, lambda dim: min(dim.opt, LENGTH)))


def shortest(io: IOContract) -> Sizes:
    """Two items of the smallest lengths."""
    return _sizes(io, 2, lambda dim: dim.min)


def longest(io: IOContract) -> Sizes:
    """One item of the largest lengths that are tried: with a large model it takes longer than all other cases."""
    return _sizes(io, 1, lambda dim: dim.max)


def least(io: IOContract) -> Sizes:
    """Every dim at its smallest size."""
    return {dim.name: dim.min for dim in io.dims}


def opt(io: IOContract) -> Sizes:
    """Lengths at their opt size, in at most as many positions as `longest` has, at most the batch's opt size."""
    counted = batch_dim(io)
    lengths = [dim for dim in io.dims if dim.name != counted]
    share = min((largest(io, dim) // dim.opt for dim in lengths), default=BATCH)
    batch = next((dim.opt for dim in io.dims if dim.name == counted), 1)
    return _sizes(io, max(1, min(batch, share)), lambda dim: dim.opt)


def largest_batch(io: IOContract) -> Sizes:
    """The largest batch, of lengths just above the smallest."""
    return _sizes(io, max(dim.max for dim in io.dims), lambda dim: dim.min + 3 * dim.step)


def one_least(io: IOContract) -> dict[str, Sizes]:
    """By dim, usual sizes with only that length at its smallest; empty if there are fewer than two lengths.

    With a key/value cache these are decoding (one new token and many cached ones) and prefill, and in cross attention a
    memory of one position.
    """
    lengths = [dim for dim in io.dims if dim.name != batch_dim(io)]
    return {dim.name: {**usual(io, 2), dim.name: dim.min} for dim in lengths} if len(lengths) > 1 else {}


def primes(io: IOContract) -> Sizes:
    """A prime for every dim, different for each length; a range without a prime has its smallest size above 0.

    With a step, it is the next multiple of the step.
    """
    left = list(_PRIMES)
    sizes = {}
    for dim in io.dims:
        wanted = [3, *left] if dim.name == batch_dim(io) else left
        prime = next((prime for prime in wanted if dim.min <= prime <= largest(io, dim)), max(dim.min, 1))
        sizes[dim.name] = dim.at_least(prime)
        if dim.name != batch_dim(io) and len(left) > 1:
            # With a step, other primes may be the same size.
            left = [other for other in left if dim.at_least(other) != sizes[dim.name]] or left
    return _fewer_positions(io, sizes)


def _fewer_positions(io: IOContract, sizes: Sizes) -> Sizes:
    """The sizes, the longest lengths two less as often as it takes for no input to have too many positions."""
    masks, counted = {mask.input for mask in io.masks}, batch_dim(io)
    lengths = {dim.name: dim for dim in io.dims if dim.name != counted}

    def positions() -> int:
        own = [{dim for dim in spec.dims if dim in lengths} for spec in io.inputs if spec.name not in masks]
        return max((math.prod(sizes[str(dim)] for dim in dims) for dims in own), default=0)

    sizes = dict(sizes)
    while positions() > _POSITIONS:
        shorter = {name: dim.at_least(max(sizes[name] - 2 * dim.step, 2)) for name, dim in lengths.items()}
        longest = max(lengths, key=lambda name: (shorter[name] < sizes[name], sizes[name]))
        if shorter[longest] >= sizes[longest]:
            break
        sizes[longest] = shorter[longest]
    return sizes


def around_windows(io: IOContract) -> dict[int, Sizes]:
    """By length, the allowed sizes around the widths of windows, which show a window that is off by one."""
    widths = dict.fromkeys(mask.window for mask in io.masks if mask.window)
    wanted = dict.fromkeys(length for w in widths for length in (w - 1, w, w + 1, 2 * w) if length > 0)
    lengths = [dim for dim in io.dims if dim.name != batch_dim(io)]
    allowed = [length for length in wanted if any(dim.takes(length) and length <= largest(io, dim) for dim in lengths)]
    return {length: _sizes(io, 2, _always(length)) for length in allowed}


def _always(length: int) -> Callable[[Dim], int]:
    return lambda dim: length


def _sizes(io: IOContract, batch: int, length: Callable[[Dim], int]) -> Sizes:
    counted = batch_dim(io)
    wanted = {dim.name: batch if dim.name == counted else length(dim) for dim in io.dims}
    return {dim.name: dim.at_least(min(wanted[dim.name], largest(io, dim))) for dim in io.dims}
