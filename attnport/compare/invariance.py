"""Padding invariance: the same sequence alone, in a padded batch, and with more padding must give the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from attnport.artifacts import IOContract
from attnport.compare.inputs import Array, Case, batch_dim, keeps
from attnport.dims import TensorSpec
from attnport.masks.encoding import encode_mask
from attnport.masks.spec import MaskSpec

MORE = 17
"""Padding added beside a sequence; a prime, so that no tile size divides it."""
ON_THE_RIGHT, ON_THE_LEFT = (f"alone against up to {MORE} more padding on the {side}" for side in ("right", "left"))
"""Comparisons; the one on the left holds only where positions do not matter."""


@dataclass(frozen=True)
class Variant:
    """One batch item on its own.

    Attributes:
        row: Its index in the batch.
        length: Its tokens.
        alone: Feeds of batch 1 without padding.
        padded: By comparison (`alone against up to 17 more padding on the right`), where the first token stands and
            the feeds.
    """

    row: int
    length: int
    alone: Mapping[str, Array]
    padded: Mapping[str, tuple[int, Mapping[str, Array]]]


@dataclass
class Spread:
    """Differences between pairs of results of one output, gathered over many pairs."""

    squares: float = 0.0
    elements: int = 0
    largest: float = 0.0
    problem: str = ""

    def add(self, one: Array, other: Array) -> None:
        """Adds a pair; arrays that cannot be compared are a problem, never nothing."""
        if one.shape != other.shape or one.size == 0:
            self.problem = self.problem or f"shapes {list(one.shape)} and {list(other.shape)}"
            return
        difference = one.astype(np.float64) - other.astype(np.float64)
        if not np.isfinite(difference).all():
            self.problem = self.problem or "NaN or Inf"
            return
        self.squares += float((difference * difference).sum())
        self.elements += difference.size
        self.largest = max(self.largest, float(np.abs(difference).max()))

    @property
    def rms(self) -> float | None:
        """Root of the mean square; None where nothing was comparable."""
        return math.sqrt(self.squares / self.elements) if self.elements and not self.problem else None


@dataclass
class Spreads:
    """Spreads by comparison and output."""

    found: dict[tuple[str, str], Spread] = field(default_factory=dict)

    def add(self, comparison: str, output: str, one: Array, other: Array) -> None:
        """Adds a pair of results of `output`."""
        self.found.setdefault((comparison, output), Spread()).add(one, other)


def tested_mask(io: IOContract) -> MaskSpec | None:
    """The mask that invariance is tested on: the only mask input, a [B, T] padding mask; else None."""
    carried = [mask for mask in io.masks if mask.input]
    if len(carried) != 1 or carried[0].kinds != ("padding",):
        return None
    dims = next(spec.dims for spec in io.inputs if spec.name == carried[0].input)
    named = len(dims) == 2 and all(isinstance(dim, str) for dim in dims) and dims[0] == batch_dim(io)
    return carried[0] if named else None


def variants(io: IOContract, case: Case) -> Iterator[Variant]:
    """Each item of a right-padded case alone, and with more padding on every side where positions do not move.

    With absolute positions that is the right side; a model without declared ones is tested on both. Empty for models
    without a [B, T] padding mask, and for items that are not padded on the right.
    """
    mask = tested_mask(io)
    if mask is None or not mask.input:
        return
    spec = next(spec for spec in io.inputs if spec.name == mask.input)
    batch, keys = str(spec.dims[0]), str(spec.dims[1])
    keep_BT = keeps(io, case.feeds)[mask.input]
    limit, least = io.dim(keys), io.dim(batch).min
    if least > 1:
        return
    for row in range(keep_BT.shape[0]):
        length = int(keep_BT[row].sum())
        if length < max(1, limit.min) or not keep_BT[row, :length].all():
            continue
        alone = {item.name: _cut(item, case.feeds[item.name], batch, keys, row, length) for item in io.inputs}
        more = min(MORE, limit.max - length)
        padded = {}
        for name in (ON_THE_RIGHT, ON_THE_LEFT) if io.positions == "none" else (ON_THE_RIGHT,):
            if more > 0:
                side = "left" if name == ON_THE_LEFT else "right"
                feeds = {item.name: _pad(item, mask, alone[item.name], keys, more, side) for item in io.inputs}
                padded[name] = (more if side == "left" else 0, feeds)
        yield Variant(row, length, alone, padded)


def rows_of(io: IOContract, output: TensorSpec, result: Array, row: int, start: int, length: int) -> Array:
    """The part of a result that belongs to batch item `row`: its tokens where the output has the key dim."""
    mask = tested_mask(io)
    assert mask is not None
    batch, keys = next(spec.dims for spec in io.inputs if spec.name == mask.input)
    if result.ndim != len(output.dims):
        return result[:0]
    index: list[int | slice] = [slice(None)] * result.ndim
    for axis, dim in enumerate(output.dims):
        if dim == batch:
            index[axis] = slice(row, row + 1)
        elif dim == keys:
            index[axis] = slice(start, start + length)
    return np.asarray(result[tuple(index)])


def _cut(spec: TensorSpec, array: Array, batch: str, keys: str, row: int, length: int) -> Array:
    index = tuple(
        slice(row, row + 1) if dim == batch else slice(0, length) if dim == keys else slice(None) for dim in spec.dims
    )
    return np.ascontiguousarray(array[index])


def _pad(spec: TensorSpec, mask: MaskSpec, array: Array, keys: str, more: int, side: str) -> Array:
    """Adds hidden places to a mask, and places of other contents than padding's usual to everything else."""
    for axis, dim in enumerate(spec.dims):
        if dim != keys:
            continue
        shape = [*array.shape[:axis], more, *array.shape[axis + 1 :]]
        if spec.name == mask.input:
            extra = encode_mask(mask, spec.dtype, np.zeros(shape, dtype=bool))
        else:
            # The last element repeated, not zeros: what stands in padding must not matter.
            extra = np.repeat(array.take([-1], axis=axis), more, axis=axis)
        array = np.concatenate([array, extra] if side == "right" else [extra, array], axis=axis)
    return array
