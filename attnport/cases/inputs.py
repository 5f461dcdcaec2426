"""Test inputs derived from a model's contract alone: layouts of masks, sizes and values that often fail."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.cases import sizes as plans
from attnport.cases.extremes import EXTREMES, extreme_feeds
from attnport.cases.mask_cases import NO_PADDING, keep_of, keys_dim, layouts_of, mask_value
from attnport.cases.sizes import batch_dim as batch_dim
from attnport.dims import TensorSpec
from attnport.example_values import continued
from attnport.masks.numpy_builders import numpy_dtype
from attnport_bundle.feeds import check_feeds

Array = np.ndarray[Any, Any]


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
        usual = random_feeds(io, plans.usual(io), layout, rng)
        feeds = extreme_feeds(io, usual, name, batch_dim(io))
        if any((feeds[key] != array).any() for key, array in usual.items()):
            all_cases.append(case(io, name, "extremes", feeds))
    return all_cases


def _plans(io: IOContract) -> Iterator[tuple[str, str, plans.Sizes, str]]:
    """Name, group, sizes and layout of each case with usual values, without duplicates."""
    carried = [mask for mask in io.masks if mask.input]
    usual, shortest = plans.usual(io), plans.shortest(io)
    for layout in dict.fromkeys(layout for mask in carried for layout in layouts_of(mask)):
        yield layout, "masks", usual, layout
    if not carried:
        yield "usual sizes", "sizes", usual, NO_PADDING
    ones = all(size == 1 for name, size in shortest.items() if name != batch_dim(io))
    sized = {
        "sequence 1" if ones else "shortest": (shortest, NO_PADDING),
        "longest": (plans.longest(io), "interior padding"),
        "primes": (plans.primes(io), "right padding"),
    }
    if batch_dim(io):
        sized["one item"] = plans.usual(io, 1), NO_PADDING
    sized |= {f"length {length}": (sizes, NO_PADDING) for length, sizes in plans.around_windows(io).items()}
    yield from ((name, "sizes", sizes, layout) for name, (sizes, layout) in sized.items())
    used = [usual, *(sizes for sizes, _ in sized.values())]
    further = {"all at their least": (plans.least(io), NO_PADDING), "opt sizes": (plans.opt(io), "right padding")}
    if batch_dim(io):
        further["largest batch"] = plans.largest_batch(io), "right padding"
    further |= {f"{dim} at its least": (sizes, "right padding") for dim, sizes in plans.one_least(io).items()}
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

    These are the rows of tokens that the padding masks keep.

    Args:
        io: The contract.
        feeds: An array for each input.
        empty_items: Whether all rows of items for which a mask keeps no key are compared too, or none.
    """
    sizes = check_feeds(io, feeds)
    kept = keeps(io, feeds)
    valid = {}
    for output in io.outputs:
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
    """An array for every input, of the given sizes and with a layout of padding."""
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
        elif spec.dtype.startswith("int"):
            feeds[spec.name] = rng.integers(0, spec.high or 2, shape).astype(dtype)
        else:
            feeds[spec.name] = rng.standard_normal(shape).astype(dtype)
    return feeds
