"""Runs any number of items in batches of like length, and puts the results back in the order of the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .contract import IO, MaskSpec, TensorSpec
from .errors import FeedError

if TYPE_CHECKING:
    import numpy as np

TOKENS = 1024
"""Places of a batch, padding included. A call's memory grows with them; MiniLM is as fast with 256 as with 4096."""
WINDOW = 4096
"""Texts that are tokenised and sorted together."""


def groups(lengths: Sequence[int], tokens: int, most: int) -> Iterator[list[int]]:
    """The items of each batch, by length, so that a batch has at most `tokens` places and `most` items.

    An item that is longer than `tokens` has a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    batch: list[int] = []
    for at in order:
        if batch and (len(batch) == most or (len(batch) + 1) * lengths[at] > tokens):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def mapped(
    run: Callable[..., dict[str, np.ndarray[Any, Any]]],
    io: IO,
    feeds: Mapping[str, np.ndarray[Any, Any]],
    tokens: int = TOKENS,
    only: str = "",
) -> dict[str, np.ndarray[Any, Any]]:
    """Runs a model on more items than one batch should have.

    Columns that are padding for every item of a batch are cut off its end. In outputs they are zero.

    Args:
        run: As `Model.run`.
        io: The contract; its padding mask is an input `[batch, seq]`, or there is none.
        feeds: An array for each input, with any number of items.
        tokens: The most places of a batch.
        only: The one output to return; "" = all.

    Raises:
        FeedError: the contract does not fit, inputs have different numbers of items, or what `run` raises.
    """
    import numpy as np

    mask, spec = _padding(io)
    item, place = str(spec.dims[0]), spec.dims[1] if mask is not None else None
    outside = [each.name for each in io.outputs if each.dims[:1] != (item,) and only in ("", each.name)]
    if outside:
        raise FeedError(f"output {outside[0]!r} has no row for each item of {item}; run one batch at a time.")
    missing = [each.name for each in io.inputs if each.name not in feeds]
    if missing or len(feeds) > len(io.inputs) or any(np.ndim(feeds[one.name]) != len(one.dims) for one in io.inputs):
        return run(**feeds)  # which says what is wrong
    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    widths = {one.name: feeds[one.name].shape[one.dims.index(place)] for one in io.inputs if place in one.dims}
    if len(set(widths.values())) > 1:
        raise FeedError(f"{place}: got {widths}; expected the same size for every input.")
    own = {each.name for each in io.inputs if each.dims[:1] == (item,)}
    counts = {name: len(feeds[name]) for name in own}
    if len(set(counts.values())) > 1 or not min(counts.values()):
        raise FeedError(f"items: got {counts}; expected the same number for every input, at least one.")
    count = counts[spec.name]
    lengths = _lengths(mask, np.asarray(feeds[spec.name])) if mask is not None else [1] * count
    limits = {dim.name: dim for dim in io.dims}
    if isinstance(place, str):
        lengths = [limits[place].at_least(length) for length in lengths]
    whole: dict[str, np.ndarray[Any, Any]] = {}
    for batch in groups(lengths, tokens, limits[item].max):
        size = lengths[batch[-1]] if isinstance(place, str) else None
        part = {
            each.name: _cut(feeds[each.name][batch] if each.name in own else feeds[each.name], each, place, size)
            for each in io.inputs
        }
        for each, array in zip(io.outputs, run(**part).values(), strict=True):
            if only not in ("", each.name):
                continue
            if each.name not in whole:
                full = feeds[spec.name].shape[-1]
                rest = [full if dim == place else got for dim, got in zip(each.dims[1:], array.shape[1:], strict=True)]
                whole[each.name] = np.zeros((count, *rest), array.dtype)
            into: Any = (batch, *(slice(0, got) for got in array.shape[1:]))
            whole[each.name][into] = array
    return whole


def _padding(io: IO) -> tuple[MaskSpec | None, TensorSpec]:
    """The padding mask and the input that carries it; without one, the first input."""
    tensors = {spec.name: spec for spec in io.inputs}
    masks = io.padding_masks()
    if not masks:
        return None, io.inputs[0]
    spec = tensors[str(masks[0].input)]
    simple = masks[0].carries == "mask" and masks[0].polarity in ("keep", "hide") and len(spec.dims) == 2
    if len(masks) > 1 or not simple or not all(isinstance(dim, str) for dim in spec.dims):
        raise FeedError("the model has no single padding mask [batch, seq]; run one batch at a time.")
    return masks[0], spec


def _lengths(mask: MaskSpec, values: np.ndarray[Any, Any]) -> list[int]:
    """For each item, the places up to its last real token, at least one."""
    real = (values != 0) if mask.polarity == "keep" else (values == 0)
    last = real.shape[1] - real[:, ::-1].argmax(1)
    return [int(length) if any_real else 1 for length, any_real in zip(last, real.any(1), strict=True)]


def _cut(array: np.ndarray[Any, Any], spec: TensorSpec, place: object, size: int | None) -> np.ndarray[Any, Any]:
    if size is None or place not in spec.dims:
        return array
    return array[tuple(slice(0, size) if dim == place else slice(None) for dim in spec.dims)]


def embedding(io: IO) -> str:
    """The output that is a vector for each item.

    Raises:
        FeedError: there is none, or there are several.
    """
    found = [spec.name for spec in io.outputs if len(spec.dims) == 2 and isinstance(spec.dims[1], int)]
    if len(found) != 1:
        raise FeedError(f"embed: got the outputs {', '.join(map(str, io.outputs))}; expected one [batch, number].")
    return found[0]
