"""Padding invariance: the same sequence alone, in a padded batch, and with more padding must give the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from attnport.artifacts import UNKNOWN_SIZE, IOContract
from attnport.cases.inputs import Array, Case, batch_dim, keeps, validity
from attnport.cases.mask_cases import keys_dim
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec
from attnport.masks.numpy_builders import encode_mask, numpy_dtype
from attnport.parity.metrics import without_fills
from attnport_bundle.feeds import check_feeds
from attnport_bundle.format.contract import dims_in, evaluate

MORE = 17
"""Padding added beside a sequence; a prime, so that no tile size divides it."""
_TRIED = 1024
"""So many lengths are tried, to see whether a size ever gets less."""
IN_A_BATCH = "alone against in a padded batch"
ON_THE_RIGHT, ON_THE_LEFT = (f"alone against up to {MORE} more padding on the {side}" for side in ("right", "left"))
"""Comparisons; the one on the left holds only where positions do not matter."""


@dataclass(frozen=True)
class Variant:
    """One batch item on its own.

    Attributes:
        row: Its index in the batch.
        length: Its tokens, along the dim `keys`.
        keys: The dim that its mask is about.
        alone: Feeds of batch 1 without padding.
        valid: Which elements of each output of `alone` are compared: another mask may leave padded query rows.
        padded: By comparison (`alone against up to 17 more padding on the right`), where the first token stands and
            the feeds.
        sizes: The size of each named dim of `alone`.
        about: `, of MASK` where the model has several masks, to tell comparisons apart; else "".
    """

    row: int
    length: int
    keys: str
    alone: Mapping[str, Array]
    valid: Mapping[str, Array]
    padded: Mapping[str, tuple[int, Mapping[str, Array]]]
    sizes: Mapping[str, int]
    about: str = ""

    def part(self, io: IOContract, output: TensorSpec, result: Array, row: int, start: int) -> Array:
        """The valid elements of a result that belong to this item: see `rows_of`."""
        rows, valid = rows_of(io, self.keys, output, result, row, start, self.sizes), self.valid[output.name]
        return np.asarray(rows[valid]) if rows.shape[: valid.ndim] == valid.shape else rows


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
        one, other = without_fills(one, other)
        difference = one.astype(np.float64) - other.astype(np.float64)
        if not np.isfinite(difference).all():
            self.problem = self.problem or "NaN or Inf"
            return
        self.squares += float((difference * difference).sum())
        self.elements += difference.size
        self.largest = max(self.largest, float(np.abs(difference).max()))

    def __str__(self) -> str:
        return f"by up to {self.largest:.2e}" + (f", with {self.problem}" if self.problem else "")

    @property
    def rms(self) -> float | None:
        """Root of the mean square; None where nothing was comparable."""
        return math.sqrt(self.squares / self.elements) if self.elements and not self.problem else None


Spreads = Mapping[tuple[str, str], Spread]
"""By comparison and output."""


def item_masks(io: IOContract) -> list[MaskSpec]:
    """The masks that invariance is tested on: those that hide padding of single items of a batch.

    That is a padding mask `[B,T]`, `[B,1|H,1|S,T]` or `[B,T,T]`, on its own or with what the module or the mask adds
    (causal, window, bias), and lengths `[B]`. Other masks of the model go along.
    """
    return [mask for mask in io.padding_masks() if _tells_items(io, mask)]


def _tells_items(io: IOContract, mask: MaskSpec) -> bool:
    dims = next(spec.dims for spec in io.inputs if spec.name == mask.input)
    if not dims or dims[0] != batch_dim(io) or (keys := keys_dim(io, mask)) not in io.given() or keys == dims[0]:
        return False
    if not all(tells_items(io, str(keys), spec) for spec in io.inputs):
        return False
    # Of [B,C,T] nobody can tell whether C counts queries; an item is right-padded only if all its rows are.
    return len(dims) != 3 or dims[1] in (1, keys)


def variants(io: IOContract, case: Case) -> Iterator[Variant]:
    """Each item of a right-padded case alone, and with more padding on every side where positions do not move.

    With absolute positions that is the right side; a model without declared ones is tested on both. Several masks are
    taken one after another. Empty for models without such a mask, and for items that are not padded on the right.
    """
    masks = item_masks(io)
    kept = keeps(io, case.feeds) if masks else {}
    for mask in masks:
        yield from _variants(io, case, mask, kept[str(mask.input)], f", of {mask.input}" if len(masks) > 1 else "")


def _variants(io: IOContract, case: Case, mask: MaskSpec, keep_BT: Array, about: str) -> Iterator[Variant]:
    batch, keys = str(batch_dim(io)), str(keys_dim(io, mask))
    limit = io.dim(keys)
    if io.dim(batch).min > 1:
        return
    sides = {ON_THE_RIGHT: "right"}
    if io.positions == "none" and mask.carries != "lengths":
        sides[ON_THE_LEFT] = "left"
    for row in range(keep_BT.shape[0]):
        length = int(keep_BT[row].sum())
        if not length or not limit.takes(length) or not keep_BT[row, :length].all():
            continue
        alone = {item.name: _cut(item, case.feeds[item.name], batch, keys, row, length) for item in io.inputs}
        more = min(MORE, limit.max - length) // limit.step * limit.step
        padded = {}
        for name, side in sides.items() if more > 0 else ():
            feeds = {item.name: _pad(io, item, alone[item.name], keys, more, side) for item in io.inputs}
            padded[name] = (more if side == "left" else 0, feeds)
        yield Variant(row, length, keys, alone, validity(io, alone), padded, check_feeds(io, alone), about)


def tells_items(io: IOContract, keys: str, tensor: TensorSpec) -> bool:
    """Whether the rows of an item can be told in a tensor: not where the batch or `keys` are part of an expression, and
    not where a size is unknown."""
    return not any(names & {keys, str(batch_dim(io)), UNKNOWN_SIZE} for names in _computed(io, tensor))


def follows(io: IOContract, keys: str, output: TensorSpec) -> bool:
    """Whether an output has rows that follow from those of `keys` alone, as many as its size gives.

    A convolution with a stride makes `(frames-1)//4+1` rows of `frames`: the first ones are an item's, as many as its
    length gives, if no length gives fewer than a shorter one. Of `past+seq` or `batch*seq` nobody can tell.
    """
    limit, computed = io.dim(keys), _computed(io, output)
    if not any(computed) or any(names != {keys} for names in computed if names & {keys, str(batch_dim(io))}):
        return False
    lengths = range(max(limit.min, 1), min(limit.max, limit.min + _TRIED) + 1)
    for dim in {str(dim) for dim, names in zip(output.dims, computed, strict=True) if keys in names}:
        try:
            sizes = [evaluate(dim, {keys: length}) for length in lengths if limit.takes(length)]
        except ValueError:
            return False
        if sizes != sorted(sizes):
            return False
    return any(keys in names for names in computed)


def untold(io: IOContract) -> list[TensorSpec]:
    """The outputs of which a size says not which rows are an item's: they are not compared for padding."""
    keys = {str(keys_dim(io, mask)) for mask in item_masks(io)}
    return [
        output
        for output in io.outputs
        if not all(tells_items(io, each, output) or follows(io, each, output) for each in keys)
    ]


def not_tried(io: IOContract) -> str:
    """Why no item of any case was run with other padding."""
    masks = io.padding_masks()
    if not masks:
        return "no input says which keys of an item are padding"
    if not item_masks(io):
        names = " and ".join(dict.fromkeys(str(mask.input) for mask in masks))
        return f"the sizes of inputs do not tell which part of {names} is that of one item"
    batch = io.dim(str(batch_dim(io)))
    if batch.min > 1:
        return f"an item has to run alone for it, and the model takes {batch.min} or more at a time ({batch.name})"
    if len(untold(io)) == len(io.outputs):
        return "the sizes of outputs do not tell which rows are those of one item"
    return "no case has an item with padding on the right"


def _computed(io: IOContract, tensor: TensorSpec) -> list[frozenset[str]]:
    """For each axis of a tensor, the dims of which its size is an expression; none for a dim or a number."""
    known = {dim.name for dim in io.dims}
    return [dims_in(dim) if isinstance(dim, str) and dim not in known else frozenset() for dim in tensor.dims]


def rows_of(
    io: IOContract, keys: str, output: TensorSpec, result: Array, row: int, start: int, sizes: Mapping[str, int]
) -> Array:
    """The part of a result that belongs to batch item `row`: its tokens where the output has rows of the dim `keys`.

    Args:
        sizes: The size of each dim where the item is alone.
    """
    if result.ndim != len(output.dims):
        return result[:0]
    index: list[int | slice] = [slice(None)] * result.ndim
    for axis, (dim, names) in enumerate(zip(output.dims, _computed(io, output), strict=True)):
        if dim == batch_dim(io):
            index[axis] = slice(row, row + 1)
        elif dim == keys:
            index[axis] = slice(start, start + sizes[keys])
        elif keys in names:
            index[axis] = slice(0, evaluate(str(dim), sizes))
    return np.asarray(result[tuple(index)])


def _cut(spec: TensorSpec, array: Array, batch: str, keys: str, row: int, length: int) -> Array:
    index = tuple(
        slice(row, row + 1) if dim == batch else slice(0, length) if dim == keys else slice(None) for dim in spec.dims
    )
    return np.ascontiguousarray(array[index])


def _pad(io: IOContract, spec: TensorSpec, array: Array, keys: str, more: int, side: str) -> Array:
    """Adds hidden places to masks, and places of other contents than padding's usual to everything else."""
    mask = next((mask for mask in io.masks if mask.input == spec.name), None)
    for axis, dim in enumerate(spec.dims):
        if dim != keys:
            continue
        shape = (*array.shape[:axis], more, *array.shape[axis + 1 :])
        if mask is not None and mask.carries == "mask":
            extra = encode_mask(mask, spec.dtype, np.zeros(shape, dtype=bool))
        elif mask is not None:
            extra = np.zeros(shape, dtype=numpy_dtype(spec.dtype))
        else:
            # The last element repeated, not zeros: what stands in padding must not matter.
            extra = np.repeat(array.take([-1], axis=axis), more, axis=axis)
        array = np.concatenate([array, extra] if side == "right" else [extra, array], axis=axis)
    return array
