"""Joins the inputs of several requests into those of one call, and cuts the outputs apart again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import batches
from ..errors import FeedError
from ..feeds import check_feeds
from ..format import expressions
from ..format.contract import IO

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Joining:
    """How requests to one model are joined: one behind another, each padded at the end to the widest.

    Padding changes no answer, by the contract of the padding mask. Without one, only equal sizes are joined.
    """

    def __init__(self, io: IO) -> None:
        """Finds the dim of items, and that of places if there is a padding mask.

        Raises:
            FeedError: requests to the model cannot be joined; the message has the tensor in the way.
        """
        self._io = io
        self._masks, spec = batches.padding(io)
        self._items = str(spec.dims[0])
        self._place = str(spec.dims[1]) if self._masks else None
        self._carrier = spec.name
        given = set(io.given())
        for tensor in (*io.inputs, *io.outputs):
            if tensor.dims[:1] != (self._items,):
                raise FeedError(f"{tensor} has no row for each item of {self._items}.")
            for dim in tensor.dims[1:]:
                names = set() if isinstance(dim, int) else {dim} if dim in given else expressions.names(dim)
                if self._items in names or not names <= given or (dim != self._place and self._place in names):
                    raise FeedError(f"{tensor}: {dim} would have another size where requests are joined.")
        self._most = next(dim.max for dim in io.dims if dim.name == self._items)

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Checks a request, which may have any number of items. Raises FeedError as `Model.run`."""
        counts = [len(array) for array in feeds.values() if array.ndim]
        for begin in range(0, max(counts, default=0) or 1, self._most):
            rows = slice(begin, begin + self._most)
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

    def join(self, requests: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """The inputs of all requests, which are alike."""
        import numpy as np

        width = max(map(self._width, requests))
        joined = {}
        for spec in self._io.inputs:
            hidden = any(mask.input == spec.name and mask.polarity == "hide" for mask in self._masks)
            parts = []
            for feeds in requests:
                room = [(0, width - self._width(feeds) if dim == self._place else 0) for dim in spec.dims]
                parts.append(np.pad(feeds[spec.name], room, constant_values=hidden))
            joined[spec.name] = np.concatenate(parts)
        return joined

    def split(self, outputs: Mapping[str, Array], requests: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """The outputs of each request, of those of all."""
        parts, begin = [], 0
        for feeds in requests:
            end = begin + len(feeds[self._carrier])
            part = {}
            for spec in self._io.outputs:
                cut: Any = (
                    slice(0, self._width(feeds)) if dim == self._place else slice(None) for dim in spec.dims[1:]
                )
                part[spec.name] = outputs[spec.name][(slice(begin, end), *cut)]
            parts.append(part)
            begin = end
        return parts

    def _width(self, feeds: Mapping[str, Array]) -> int:
        return feeds[self._carrier].shape[1] if self._place else 0
