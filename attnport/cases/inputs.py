"""Inputs derived from a model's contract alone: layouts of masks, sizes and values that often fail.

Sizes are the smallest, usual and largest of each dim, 1, primes, and those around a window. Values are usual ones, and
extreme ones at which softmax saturates, gets equal scores, or gets only zeros.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.artifacts import UNKNOWN_SIZE, Dim, IOContract, TensorSpec
from attnport.cases.mask_cases import NO_PADDING, keep_of, keys_dim, layouts_of, mask_value
from attnport.example_values import continued
from attnport.masks.numpy_builders import numpy_dtype
from attnport.parities import LARGE_VALUES
from attnport_bundle.feeds import check_feeds

# Small, so that an evaluator that computes in half precision without hardware for it also finishes.
BATCH, LENGTH = 4, 32
_PRIMES = (37, 41, 43, 47, 31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)

_POSITIONS = 2048
"""The most positions of an item in usual cases: attention may be over all of those of a picture, or of a video."""

LONGEST = 2048
_BATCH_ELEMENTS = 1 << 21
"""The input elements of the largest batch that is tried, about: 14 images of 224 by 224."""

Sizes = dict[str, int]


def largest_size(io: IOContract, dim: Dim) -> int:
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
    tried = {dim: largest_size(io, dim) for dim in io.dims}
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


def usual_sizes(io: IOContract, batch: int = BATCH) -> Sizes:
    """A small batch of usual lengths, at most `LENGTH`."""
    return _fewer_positions(io, _sizes(io, batch, lambda dim: min(dim.opt, LENGTH)))


def opt_sizes(io: IOContract) -> Sizes:
    """Lengths at their opt size, in at most as many positions as `longest` has, at most the batch's opt size."""
    counted = batch_dim(io)
    lengths = [dim for dim in io.dims if dim.name != counted]
    share = min((largest_size(io, dim) // dim.opt for dim in lengths), default=BATCH)
    batch = next((dim.opt for dim in io.dims if dim.name == counted), 1)
    return _sizes(io, max(1, min(batch, share)), lambda dim: dim.opt)


def one_least(io: IOContract) -> dict[str, Sizes]:
    """By dim, usual sizes with only that length at its smallest; empty if there are fewer than two lengths.

    With a key/value cache these are decoding (one new token and many cached ones) and prefill, and in cross attention a
    memory of one position.
    """
    lengths = [dim for dim in io.dims if dim.name != batch_dim(io)]
    return {dim.name: {**usual_sizes(io, 2), dim.name: dim.min} for dim in lengths} if len(lengths) > 1 else {}


def prime_sizes(io: IOContract) -> Sizes:
    """A prime for every dim, different for each length; a range without a prime has its smallest size above 0.

    With a step, it is the next multiple of the step.
    """
    left = list(_PRIMES)
    sizes = {}
    for dim in io.dims:
        wanted = [3, *left] if dim.name == batch_dim(io) else left
        prime = next((prime for prime in wanted if dim.min <= prime <= largest_size(io, dim)), max(dim.min, 1))
        sizes[dim.name] = dim.at_least(prime)
        if dim.name != batch_dim(io) and len(left) > 1:
            # A step may round two primes to the same size.
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
    allowed = [
        length for length in wanted if any(dim.takes(length) and length <= largest_size(io, dim) for dim in lengths)
    ]
    return {length: _sizes(io, 2, length) for length in allowed}


def _sizes(io: IOContract, batch: int, length: int | Callable[[Dim], int]) -> Sizes:
    counted = batch_dim(io)
    of = (lambda _: length) if isinstance(length, int) else length
    wanted = {dim.name: batch if dim.name == counted else of(dim) for dim in io.dims}
    return {dim.name: dim.at_least(min(wanted[dim.name], largest_size(io, dim))) for dim in io.dims}


Array = np.ndarray[Any, Any]

ZEROS, EQUAL_ROWS = "zeros", "equal rows"
EXTREMES = {LARGE_VALUES: "right padding", ZEROS: "no padding", EQUAL_ROWS: "no padding"}
"""The layout of padding for each: large values are also tried in padding."""

LARGE = 32.0
"""The factor of large values. With usual weights, scores then reach thousands, so that softmax is all or nothing, but
stay within the range of half precision."""


def extreme_feeds(io: IOContract, feeds: Mapping[str, Array], kind: str, batch: str | None) -> dict[str, Array]:
    """The feeds with extreme values in inputs that are not masks or examples, and in the finite part of biases.

    Args:
        feeds: An array for every input; integers below `TensorSpec.high`.
        kind: One of `EXTREMES`. `large values` are floats 32 times as large, and integers that are the smallest or the
            largest allowed; with `equal rows`, each position of an item occurs at least twice, so that scores tie.
        batch: The dim that counts items; with `equal rows`, items still differ.
    """
    masks = {mask.input: mask for mask in io.masks if mask.input}
    extreme = {}
    for spec in io.inputs:
        array = feeds[spec.name]
        if spec.name in masks:
            extreme[spec.name] = _larger(array) if kind == LARGE_VALUES and "bias" in masks[spec.name].kinds else array
        elif spec.name in io.examples:
            extreme[spec.name] = array
        elif kind == ZEROS:
            extreme[spec.name] = array if _chooses(spec) else np.zeros_like(array)
        elif kind == EQUAL_ROWS:
            extreme[spec.name] = _repeating(array, spec, batch)
        elif spec.dtype.startswith("int"):
            extreme[spec.name] = np.where(array % 2 == 1, (spec.high or 2) - 1, 0).astype(array.dtype)
        else:
            extreme[spec.name] = _larger(array)
    return extreme


def _repeating(array: Array, spec: TensorSpec, batch: str | None) -> Array:
    """Repeats positions: in the first item, the first half twice, in the second, a quarter four times, and so on.

    Positions are never all equal: their rounding errors would be equal too, so that the RMS error would not be a mean,
    and a layer that subtracts the mean would leave only rounding errors. (The case `zeros` has equal rows if the model
    does not use positions.)
    """
    axis = spec.dims.index(batch) if batch in spec.dims else None
    items = [array] if axis is None else np.split(array, array.shape[axis], axis)
    for item, part in enumerate(items):
        for along, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim != batch:
                size = part.shape[along]
                part = part.take(np.arange(size) % max(2, size >> (item + 1)), along)
        items[item] = part
    return items[0] if axis is None else np.concatenate(items, axis)


def _larger(array: Array) -> Array:
    """Floats times `LARGE`: -inf, which hides a key, is still -inf. Integers and booleans are unchanged."""
    # Without axes, a product of NumPy is no array.
    return array if array.dtype.kind in "bi" else np.asarray(array.astype(np.float64) * LARGE).astype(array.dtype)


@dataclass(frozen=True)
class Case:
    """One set of inputs, and which elements of each output are compared.

    Attributes:
        feeds: An array for every input.
        valid: For every output a bool array over its leading dims; True where the result is compared. Elements that
            are False are rows of padding: unspecified, but finite.
        group: `masks`, `sizes`, `extremes`, `text`, `given`, or `decode`, which a session runs token by token.
    """

    name: str
    feeds: Mapping[str, Array]
    valid: Mapping[str, Array]
    group: str


def cases(io: IOContract, seed: int = 0) -> list[Case]:
    """The cases of a contract: layouts of its mask inputs, sizes (also around a window's width), and extremes.

    Token ids are random below `TensorSpec.high`, float inputs standard normal; the inputs in `IOContract.examples` have
    the values there. Padding holds random values too, as only these show that a mask leaks. The same contract and seed
    give the same arrays, and the arrays of a case do not depend on the other cases.
    """
    all_cases = []
    for name, group, sizes, layout in _plans(io):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        all_cases.append(case(io, name, group, random_feeds(io, sizes, layout, rng)))
    for name, layout in EXTREMES.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        usual = random_feeds(io, usual_sizes(io), layout, rng)
        feeds = extreme_feeds(io, usual, name, batch_dim(io))
        if any((feeds[key] != array).any() for key, array in usual.items()):
            all_cases.append(case(io, name, "extremes", feeds))
    return all_cases


def _plans(io: IOContract) -> Iterator[tuple[str, str, Sizes, str]]:
    """Name, group, sizes and layout of each case with usual values, without duplicates.

    The shortest comes first, as a runtime may compile a kernel for it that is wrong for more tokens.
    """
    carried = [mask for mask in io.masks if mask.input]
    usual, shortest = usual_sizes(io), _sizes(io, 2, lambda dim: dim.min)
    ones = all(size == 1 for name, size in shortest.items() if name != batch_dim(io))
    yield "sequence 1" if ones else "shortest", "sizes", shortest, NO_PADDING
    for layout in dict.fromkeys(layout for mask in carried for layout in layouts_of(mask)):
        yield layout, "masks", usual, layout
    if not carried:
        yield "usual sizes", "sizes", usual, NO_PADDING
    sized = {
        # One item: with a large model it takes longer than all other cases.
        "longest": (_sizes(io, 1, lambda dim: dim.max), "interior padding"),
        "primes": (prime_sizes(io), "right padding"),
    }
    if batch_dim(io):
        sized["one item"] = usual_sizes(io, 1), NO_PADDING
    sized |= {f"length {length}": (sizes, NO_PADDING) for length, sizes in around_windows(io).items()}
    yield from ((name, "sizes", sizes, layout) for name, (sizes, layout) in sized.items())
    used = [shortest, usual, *(sizes for sizes, _ in sized.values())]
    further = {
        "all at their least": ({dim.name: dim.min for dim in io.dims}, NO_PADDING),
        "opt sizes": (opt_sizes(io), "right padding"),
    }
    if batch_dim(io):
        most = max(dim.max for dim in io.dims)
        further["largest batch"] = _sizes(io, most, lambda dim: dim.min + 3 * dim.step), "right padding"
    further |= {f"{dim} at its least": (sizes, "right padding") for dim, sizes in one_least(io).items()}
    for name, (sizes, layout) in further.items():
        if sizes not in used:
            used.append(sizes)
            yield name, "sizes", sizes, layout


def full_case(io: IOContract, sizes: Mapping[str, int], seed: int = 0) -> Case:
    """A case of the given sizes without padding, named like `batch=8,seq=128`; other dims have their opt size."""
    all_sizes = {dim.name: sizes.get(dim.name, dim.opt) for dim in io.dims}
    name = ",".join(f"{dim}={size}" for dim, size in all_sizes.items())
    return case(io, name, "sizes", random_feeds(io, all_sizes, "no padding", np.random.default_rng(seed)))


def case(io: IOContract, name: str, group: str, feeds: Mapping[str, Array]) -> Case:
    """A case of given feeds, with the validity that its masks imply.

    Raises:
        FeedError: the feeds do not fit the contract.
    """
    return Case(name, feeds, validity(io, feeds), group)


def keeps(io: IOContract, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """For each padding mask input, the keys that are not padding: bool [B, T] (or [T])."""
    sizes = check_feeds(io, feeds)
    return {str(mask.input): keep_of(io, mask, feeds[str(mask.input)], sizes) for mask in io.padding_masks()}


def validity(io: IOContract, feeds: Mapping[str, Array], *, empty_items: bool = True) -> dict[str, Array]:
    """The elements of each output that are compared: bool over its leading dims.

    These are the rows of tokens that the padding masks keep. Of an output with an unknown size they are all of them.

    Args:
        empty_items: Whether all rows of items for which a mask keeps no key are compared too, or none.
    """
    sizes = check_feeds(io, feeds)
    kept = keeps(io, feeds)
    valid = {}
    for output in io.outputs:
        if UNKNOWN_SIZE in output.dims:
            valid[output.name] = np.asarray(True)
            continue
        shape = output.shape(sizes)
        compared = np.ones(shape[:1], dtype=bool)
        for mask in io.padding_masks():
            spec = _spec(io, str(mask.input))
            batch = spec.dims[0] if len(spec.dims) > 1 or mask.carries != "mask" else None
            keys = keys_dim(io, mask)
            keep, along = kept[spec.name], [dim for dim in (batch, keys) if dim]
            full = np.asarray(keep.any(axis=-1))
            rows = keep | ~full[..., None] if empty_items else keep
            if not isinstance(keys, str) or keys not in output.dims:
                rows, along = full | empty_items, along[:-1]
            if not along or not all(dim in output.dims for dim in along):
                continue
            axes = [output.dims.index(dim) for dim in along]
            lead = max(axes) + 1
            if axes != sorted(axes):
                rows, axes = rows.T, axes[::-1]
            rows = rows.reshape([size if axis in axes else 1 for axis, size in enumerate(shape[:lead])])
            if compared.ndim < lead:
                compared = compared.reshape(compared.shape + (1,) * (lead - compared.ndim))
            rows = rows.reshape(rows.shape + (1,) * (compared.ndim - rows.ndim))
            compared = np.array(np.broadcast_to(compared & rows, shape[: compared.ndim]))
        valid[output.name] = compared
    return valid


def real_tokens(io: IOContract, feeds: Mapping[str, Array]) -> int:
    """The number of tokens that are not padding; without a padding mask, of positions in the first input."""
    kept = keeps(io, feeds)
    if kept:
        return max(int(keep.sum()) for keep in kept.values())
    first = io.inputs[0]
    named = [size for size, dim in zip(feeds[first.name].shape, first.dims, strict=True) if isinstance(dim, str)]
    return int(np.prod(named, dtype=np.int64)) if named else 1


def _spec(io: IOContract, name: str) -> TensorSpec:
    return next(spec for spec in io.inputs if spec.name == name)


def random_feeds(io: IOContract, sizes: Mapping[str, int], layout: str, rng: np.random.Generator) -> dict[str, Array]:
    """An array for every input, of the given sizes and with a layout of padding; what may choose chooses the first of
    each item.
    """
    masks = {mask.input: mask for mask in io.masks if mask.input}
    feeds = {}
    for spec in io.inputs:
        shape, dtype = spec.shape(sizes), numpy_dtype(spec.dtype)
        if spec.name in masks:
            feeds[spec.name] = mask_value(io, spec, masks[spec.name], sizes, layout, rng)
        elif spec.name in io.examples:
            feeds[spec.name] = continued(io.examples[spec.name], shape).astype(dtype)
        elif spec.dtype == "bool":
            feeds[spec.name] = np.asarray(rng.random(shape) < 0.5)  # without axes, it is no array
        elif len(shape) == 1 and spec.high and spec.high >= shape[0]:
            # Distinct: if two rows are written to the same place of a cache, torch does not define which one remains.
            feeds[spec.name] = rng.permutation(spec.high)[: shape[0]].astype(dtype)
        elif spec.dtype.startswith("int"):
            feeds[spec.name] = rng.integers(0, spec.high or 2, shape).astype(dtype)
        else:
            feeds[spec.name] = rng.standard_normal(shape).astype(dtype)
        if spec.name not in masks and spec.name not in io.examples and _chooses(spec):
            feeds[spec.name][..., :1] = 1
    return feeds


def _chooses(spec: TensorSpec) -> bool:
    """Whether an input may hold lengths, counts or a selection. Some runtimes refuse to run with nothing selected."""
    return spec.dtype == "bool" or (spec.dtype.startswith("int") and not spec.high)
