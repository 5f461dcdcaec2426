"""Test inputs derived from a model's contract alone: every padding layout and every size that breaks things."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.compare.mask_cases import NO_PADDING, keep_of, keys_dim, layouts_of, mask_value
from attnport.dims import Dim, TensorSpec, check_feeds
from attnport.masks.encoding import compared_rows, numpy_dtype

Array = np.ndarray[Any, Any]

# Small sizes: an evaluator that computes in half precision without hardware for it has to finish too.
_BATCH, _LENGTH = 4, 32
_PRIMES = (37, 41, 43, 47, 31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)


@dataclass(frozen=True)
class Case:
    """One set of inputs, and which elements of each output are compared.

    Attributes:
        feeds: An array for every input.
        valid: For every output a bool array over its leading dims; True where the result is compared. Elements that
            are False are padded query rows: unspecified, but finite.
        group: `masks`, `sizes`, `text` or `given`.
    """

    name: str
    feeds: Mapping[str, Array]
    valid: Mapping[str, Array]
    group: str


def batch_dim(io: IOContract) -> str | None:
    """The dim that counts batch items; None when the only dynamic dims are lengths."""
    names = {dim for spec in io.inputs for dim in spec.dims if isinstance(dim, str)}
    firsts = [_spec(io, str(mask.input)).dims[0] for mask in io.padding_masks()]
    firsts += [spec.dims[0] for spec in io.inputs if len(spec.dims) > 1]
    first = next((dim for dim in firsts if isinstance(dim, str)), None)
    # A model of one dynamic dim (tokens x channels) would otherwise never see that dim at its largest.
    return first if len(names) > 1 or io.padding_masks() else None


def cases(io: IOContract, seed: int = 0) -> list[Case]:
    """The cases of a contract: layouts of its mask inputs, then sizes, those around a window's width among them.

    Token ids are random below `TensorSpec.high`, float inputs standard normal; padded places hold random values too,
    because a mask that leaks shows only there. The same contract and seed give the same arrays.
    """
    usual = _sizes(io, _BATCH, lambda dim: min(dim.opt, _LENGTH))
    shortest = _sizes(io, 2, lambda dim: dim.min)
    batch = batch_dim(io)
    plans: list[tuple[str, str, dict[str, int], str]] = []
    carried = [mask for mask in io.masks if mask.input]
    for layout in dict.fromkeys(layout for mask in carried for layout in layouts_of(mask)):
        plans.append((layout, "masks", usual, layout))
    if not carried:
        plans.append(("usual sizes", "sizes", usual, NO_PADDING))
    ones = all(size == 1 for name, size in shortest.items() if name != batch)
    plans.append(("sequence 1" if ones else "shortest", "sizes", shortest, NO_PADDING))
    plans.append(("longest", "sizes", _sizes(io, 2, lambda dim: dim.max), "right padding"))
    plans.append(("primes", "sizes", _prime_sizes(io), "right padding"))
    if batch:
        plans.append(("one item", "sizes", _sizes(io, 1, lambda dim: min(dim.opt, _LENGTH)), NO_PADDING))
    plans += [(name, "sizes", sizes, NO_PADDING) for name, sizes in _window_sizes(io).items()]
    made = []
    for name, group, sizes, layout in plans:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        made.append(case(io, name, group, _feeds(io, sizes, layout, rng)))
    return made


def full_case(io: IOContract, sizes: Mapping[str, int], seed: int = 0) -> Case:
    """A case of the given sizes without any padding, named `batch=8,seq=128`; dims left out take their opt."""
    every = {dim.name: sizes.get(dim.name, dim.opt) for dim in io.dims}
    name = ",".join(f"{dim}={size}" for dim, size in every.items())
    return case(io, name, "sizes", _feeds(io, every, "no padding", np.random.default_rng(seed)))


def case(io: IOContract, name: str, group: str, feeds: Mapping[str, Array]) -> Case:
    """A case of given feeds, with the validity that its masks imply.

    Raises:
        FeedError: the feeds do not fit the contract.
    """
    return Case(name, feeds, validity(io, feeds), group)


def keeps(io: IOContract, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """For each padding mask input, which keys each batch item has: bool [B, T] (or [T])."""
    sizes = check_feeds(io.inputs, io.dims, feeds)
    return {str(mask.input): keep_of(io, mask, feeds[str(mask.input)], sizes) for mask in io.padding_masks()}


def validity(io: IOContract, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Where each output is compared: bool over its leading dims.

    Rows of tokens that the padding mask keeps are; so are the rows of a batch item with no key at all, since the mask
    contract says what attention gives there. An output without the key dim is compared everywhere.
    """
    sizes = check_feeds(io.inputs, io.dims, feeds)
    kept = keeps(io, feeds)
    valid = {}
    for output in io.outputs:
        shape = output.shape(sizes)
        compared = np.ones(shape[:1], dtype=bool)
        for mask in io.padding_masks():
            spec = _spec(io, str(mask.input))
            batch = spec.dims[0] if len(spec.dims) > 1 or mask.carries == "lengths" else None
            keys = keys_dim(io, mask)
            if not isinstance(keys, str) or keys not in output.dims or (batch and batch not in output.dims):
                continue
            keep = kept[spec.name]
            rows = compared_rows(keep)
            axes = ([output.dims.index(batch)] if batch else []) + [output.dims.index(keys)]
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
    """Tokens that are no padding; without a padding mask, positions over all named dims of the first input."""
    kept = keeps(io, feeds)
    if kept:
        return max(int(keep.sum()) for keep in kept.values())
    first = io.inputs[0]
    named = [size for size, dim in zip(feeds[first.name].shape, first.dims, strict=True) if isinstance(dim, str)]
    return int(np.prod(named, dtype=np.int64)) if named else 1


def _spec(io: IOContract, name: str) -> TensorSpec:
    return next(spec for spec in io.inputs if spec.name == name)


def _clamp(dim: Dim, size: int) -> int:
    return max(dim.min, min(size, dim.max))


def _sizes(io: IOContract, batch: int, length: Any) -> dict[str, int]:
    counted = batch_dim(io)
    return {dim.name: _clamp(dim, batch if dim.name == counted else length(dim)) for dim in io.dims}


def _prime_sizes(io: IOContract) -> dict[str, int]:
    """Primes for every dim, different ones for different lengths; a range without a prime takes its smallest."""
    left = list(_PRIMES)
    sizes = {}
    for dim in io.dims:
        wanted = [3, *left] if dim.name == batch_dim(io) else left
        sizes[dim.name] = next((prime for prime in wanted if dim.min <= prime <= dim.max), dim.min)
        if dim.name != batch_dim(io) and len(left) > 1 and sizes[dim.name] in left:
            left.remove(sizes[dim.name])
    return sizes


def _window_sizes(io: IOContract) -> dict[str, dict[str, int]]:
    """Lengths around the widths of windows, where a bound that is off by one shows; those that the dims allow."""
    widths = dict.fromkeys(mask.window for mask in io.masks if mask.window)
    lengths = dict.fromkeys(length for w in widths for length in (w - 1, w, w + 1, 2 * w) if length > 0)
    found = {f"length {length}": _sizes(io, 2, lambda dim, length=length: length) for length in lengths}
    return {name: sizes for name, sizes in found.items() if int(name.split()[1]) in sizes.values()}


def _feeds(io: IOContract, sizes: Mapping[str, int], layout: str, rng: np.random.Generator) -> dict[str, Array]:
    masks = {mask.input: mask for mask in io.masks if mask.input}
    feeds = {}
    for spec in io.inputs:
        shape, dtype = spec.shape(sizes), numpy_dtype(spec.dtype)
        if spec.name in masks:
            feeds[spec.name] = mask_value(io, spec, masks[spec.name], sizes, layout, rng)
        elif spec.dtype == "bool":
            feeds[spec.name] = rng.random(shape) < 0.5
        elif spec.dtype.startswith("int"):
            feeds[spec.name] = rng.integers(0, spec.high or 2, shape).astype(dtype)
        else:
            feeds[spec.name] = rng.standard_normal(shape).astype(dtype)
    return feeds
