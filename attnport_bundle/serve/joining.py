"""Joins the inputs of several requests into those of one call, and cuts the outputs apart again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import batches
from ..errors import FeedError
from ..feeds import check_feeds
from ..format.contract import IO, dims_in

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Joining:
    """How requests to one model are joined: one behind another, each padded at the end to the widest.

    Padding changes no answer, by the contract of the padding mask. Without one, only equal sizes are joined.
    """

    def __init__(self, io: IO) -> None:
        """Finds the dim of items, and that of places if there is a padding mask; raises as `batches.padding`."""
        self._io = io
        self._masks, spec = batches.padding(io)
        dims = {dim.name: dim for dim in io.dims}
        self._items = dims[str(spec.dims[0])]
        self._places = dims[str(spec.dims[1])] if self._masks else None
        self._place = self._places.name if self._places else None
        self._carrier = spec.name

    def require_independence(self) -> None:
        """Raises FeedError if the size of an output's row depends on the other requests; names the output."""
        given = set(self._io.given())
        for tensor in (*self._io.inputs, *self._io.outputs):
            if tensor.dims[:1] != (self._items.name,):
                raise FeedError(f"{tensor} has no row for each item of {self._items.name}.")
            for dim in tensor.dims[1:]:
                names = set() if isinstance(dim, int) else {dim} if dim in given else dims_in(dim)
                if self._items.name in names or not names <= given or (dim != self._place and self._place in names):
                    raise FeedError(f"{tensor}: {dim} would have another size where requests are joined.")

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Checks a request, which may have any number of items. Raises FeedError as `Model.run`."""
        counts = [len(array) for array in feeds.values() if array.ndim]
        for begin in range(0, max(counts, default=0) or 1, self._items.max):
            rows = slice(begin, begin + self._items.max)
            check_feeds(self._io, {name: array[rows] if array.ndim else array for name, array in feeds.items()})

    def tokens(self, feeds: Mapping[str, Array]) -> int:
        """The real tokens of a request, at least one an item; without a padding mask, its items."""
        if not self._masks:
            return len(feeds[self._carrier])
        return sum(max(1, int(count)) for count in batches.real_places(self._masks, feeds).sum(1))

    def alike(self, feeds: Mapping[str, Array]) -> tuple[tuple[int, ...], ...]:
        """The sizes that have to be the same in requests that are joined."""
        return tuple(
            tuple(
                size for size, dim in zip(feeds[spec.name].shape[1:], spec.dims[1:], strict=True) if dim != self._place
            )
            for spec in self._io.inputs
        )

    def width(self, feeds: Mapping[str, Array]) -> int:
        """The places of a request, padding included; 0 in a model without a padding mask.

        Raises:
            FeedError: two inputs differ in them, or the model does not take so many.
        """
        found = {
            spec.name: feeds[spec.name].shape[spec.dims.index(self._place)]
            for spec in self._io.inputs
            if self._place in spec.dims and spec.name in feeds
        }
        first, width = next(iter(found.items()), ("", 0))
        for name, size in found.items():
            if self._places and not 0 < size <= self._places.max:
                raise FeedError(f"{name}: got {self._place}={size}; expected 1 to {self._places.max}.")
            if size != width:
                raise FeedError(f"{name}: got {self._place}={size}; expected {width}, as in {first}.")
        return width

    def join(self, requests: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """The inputs of all requests, which are alike, in a width that the model takes."""
        import numpy as np

        widths = [self.width(feeds) for feeds in requests]
        width = self._places.at_least(max(widths)) if self._places else 0
        joined = {}
        for spec in self._io.inputs:
            hidden = any(mask.input == spec.name and mask.polarity == "hide" for mask in self._masks)
            parts = []
            for feeds, own in zip(requests, widths, strict=True):
                room = [(0, width - own if dim == self._place else 0) for dim in spec.dims]
                parts.append(np.pad(feeds[spec.name], room, constant_values=hidden))
            joined[spec.name] = np.concatenate(parts)
        return joined

    def split(self, outputs: Mapping[str, Array], requests: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """The outputs of each request, of those of all."""
        parts, begin = [], 0
        for feeds in requests:
            end, width = begin + len(feeds[self._carrier]), self.width(feeds)
            part = {}
            for spec in self._io.outputs:
                cut: Any = (slice(0, width) if dim == self._place else slice(None) for dim in spec.dims[1:])
                part[spec.name] = outputs[spec.name][(slice(begin, end), *cut)]
            parts.append(part)
            begin = end
        return parts
