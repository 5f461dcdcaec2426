"""A batch of texts that grow, with their keys and values and a mask of the real tokens among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import FeedError
from ..feeds import check_arrays
from ..format.contract import IO, TensorSpec
from ..format.decoder import Roles

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
Run = Callable[..., "dict[str, Array]"]
"""Runs the model: an array for each input by name in, one for each output out."""
_MORE = 64
"""The least places that a buffer has behind its tokens when it is made."""


class Steps(Protocol):
    """Caches that a runtime keeps and adds to, so that they are not copied at every token."""

    def begin(self, caches: Mapping[str, Array]) -> None:
        """Takes caches, by input."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one new token of every text; gives the outputs that follow no cache."""

    def take(self, rows: Array) -> None:
        """Goes on with these rows of the batch."""

    def drop(self, count: int) -> None:
        """Lets the first places go, of the caches that hold the last ones alone."""

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""


MakeSteps = Callable[[Roles], "Steps | None"]
"""Makes the caches of one batch; None of a model whose caches the runtime cannot keep."""


def steps_of(session: object) -> MakeSteps:
    """What makes a session's `Steps`."""
    make: MakeSteps = getattr(session, "new_steps", lambda roles: None)
    return make


class Buffers:
    """`Steps` of a model that writes to its caches: each is a buffer with more places than tokens, which have a meaning
    up to the last token. States are given and taken at every step."""

    def __init__(
        self, step: Callable[[Mapping[str, Array], Mapping[str, tuple[str, Array]]], dict[str, Array]], roles: Roles
    ) -> None:
        """Takes the function that runs the model.

        Args:
            step: Takes arrays by input, and by a cache's input the name of the output that follows it and a buffer that
                is both; gives the other outputs.
        """
        self._step, self._roles = step, roles
        self._held: dict[str, Array] = {}
        self._lengths: dict[str, int] = {}

    def begin(self, caches: Mapping[str, Array]) -> None:
        """Takes caches, by input."""
        self._held = dict(caches)
        self._lengths = {
            spec.name: caches[spec.name].shape[axis] for spec, _, axis in self._roles.caches if axis is not None
        }

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one new token of every text; gives the outputs that follow no cache."""
        given = dict(feeds)
        buffers: dict[str, tuple[str, Array]] = {}
        for spec, output, axis in self._roles.caches:
            if axis is None:
                given[spec.name] = self._held[spec.name]
                continue
            if self._held[spec.name].shape[axis] == self._lengths[spec.name]:
                self._held[spec.name] = _larger(self._held[spec.name], axis)
            buffers[spec.name] = output, self._held[spec.name]
        outputs = self._step(given, buffers)
        self._held |= {spec.name: outputs.pop(output) for spec, output, axis in self._roles.caches if axis is None}
        self._lengths = {name: length + 1 for name, length in self._lengths.items()}
        return outputs

    def take(self, rows: Array) -> None:
        """Goes on with these rows of the batch."""
        self._held = taken(self._roles, self._held, rows)

    def drop(self, count: int) -> None:
        """Lets the first places go, of the caches that hold the last ones alone; the others move to the front."""
        for spec, axis in kept_axes(self._roles):
            held, length = self._held[spec.name], self._lengths[spec.name]
            held[_places(axis, 0, length - count)] = held[_places(axis, count, length)]
            self._lengths[spec.name] = length - count

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
        import numpy as np

        axis = next(axis for spec, _, axis in self._roles.caches if spec.name == name)
        held = self._held[name]
        return held if axis is None else np.ascontiguousarray(held[_places(axis, 0, self._lengths[name])])


def _larger(held: Array, axis: int) -> Array:
    """A copy with more places behind those that are filled."""
    import numpy as np

    shape, length = list(held.shape), held.shape[axis]
    shape[axis] += _more(length)
    grown = np.zeros(shape, held.dtype)
    grown[_places(axis, 0, length)] = held
    return grown


def _more(length: int) -> int:
    """How many places are added at once behind so many, so that they are copied once in as many steps."""
    return max(_MORE, length // 4)


def _places(axis: int, begin: int, end: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(begin, end),)


def kept_axes(roles: Roles) -> list[tuple[TensorSpec, int]]:
    """The caches that hold the last places alone, each with the axis of its length."""
    names = roles.window.names if roles.window else ()
    return [(spec, axis) for spec, _, axis in roles.caches if axis is not None and spec.name in names]


def dropped(array: Array, axis: int, count: int) -> Array:
    """A copy without the first places."""
    import numpy as np

    return np.ascontiguousarray(array[_places(axis, count, array.shape[axis])])


def taken(roles: Roles, caches: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    """Rows of caches, of which one may be there several times."""
    import numpy as np

    axes = {spec.name: spec.dims.index(roles.ids.dims[0]) for spec, _, _ in roles.caches}
    return {name: np.take(array, rows, axes[name]) for name, array in caches.items()}


class Decoding:
    """A batch of texts that grow, the caches of their tokens, and a mask of the tokens that are not padding.

    Attributes:
        roles: What the model's inputs and outputs are for.
        outputs: Of the last tokens, those that follow no cache.
    """

    def __init__(
        self,
        run: Run,
        io: IO,
        roles: Roles,
        make_steps: MakeSteps | None = None,
        context: Mapping[str, Array] | None = None,
    ) -> None:
        """Starts without a text; the first `push` gives the number of them.

        Args:
            make_steps: Of a runtime that may keep the caches; where it does not, they are copied at every step.
            context: The inputs that are the same at every step.

        Raises:
            FeedError: an input of the context is missing, or one is not of it.
        """
        expected, got = [spec.name for spec in roles.context], sorted(context or {})
        if sorted(expected) != got:
            taken = f"{', '.join(expected)}, the same at every step: what an encoder gives" if expected else "nothing"
            raise FeedError(f"context: got {', '.join(got) or 'nothing'}; expected {taken}.")
        self._run, self._make_steps, self._io, self.roles = run, make_steps, io, roles
        self._steps: Steps | None = None
        self._context = dict(context or {})
        self.outputs: dict[str, Array] = {}
        self._caches: dict[str, Array] | None = {}  # None while `steps` has them
        self._keep_BT: Array | None = None
        self._kept = roles.start  # the places of the caches that hold the last ones alone

    def push(self, ids_BS: Array, keep_BS: Array) -> Array:
        """Runs new tokens, and adds their keys and values to the cache.

        Args:
            keep_BS: Where they are real, and not padding at the left.

        Returns:
            float32 `[batch, vocabulary]`: the scores of what follows the last one.
        """
        import numpy as np

        roles, batch = self.roles, len(ids_BS)
        if self._keep_BT is None:
            self._keep_BT = np.zeros((batch, roles.start), dtype=bool)
            sizes = {dim.name: dim.min for dim in self._io.dims} | {str(roles.ids.dims[0]): batch}
            self._caches = {spec.name: np.zeros(spec.shape(sizes), spec.dtype) for spec, _, _ in roles.caches}
        whole_BT = np.concatenate([self._keep_BT, keep_BS], axis=1)
        self._drop(self.surplus)
        feeds = {**self._context, roles.ids.name: ids_BS.astype(roles.ids.dtype)}
        if roles.mask:
            mask = {"all": whole_BT, "past": self._keep_BT, "new": keep_BS}[str(roles.mask_covers)]
            feeds[roles.mask.name] = mask.astype(roles.mask.dtype)
        new = ids_BS.shape[1]
        if roles.window:
            feeds[roles.window.mask.name] = whole_BT[:, -(self._kept + new) :].astype(roles.window.mask.dtype)
        if roles.positions:
            feeds[roles.positions.name] = positions(whole_BT)[:, -new:].astype(roles.positions.dtype)
        is_step = new == 1 and self._keep_BT.shape[1] > 0
        if is_step and self._make_steps:
            self._steps, self._make_steps = self._make_steps(roles), None
        if is_step and self._steps:
            check_arrays(self._io, {spec.name: feeds.get(spec.name) for spec in self._io.inputs})  # as `run` does
            if self._caches is not None:
                self._steps.begin(self._caches)
                self._caches = None
            self.outputs = self._steps.run(feeds)
        else:
            self._caches = {spec.name: self.cache(spec.name) for spec, _, _ in roles.caches}
            self.outputs = dict(self._run(**feeds, **self._caches))
            for spec, output, axis in roles.caches:
                # A session may return half precision, where its file has it.
                made = self.outputs.pop(output).astype(spec.dtype, copy=False)
                whole = axis is None or roles.returns_whole_cache
                self._caches[spec.name] = made if whole else np.concatenate([self._caches[spec.name], made], axis)
        self._keep_BT = whole_BT
        self._kept += new
        logits = self.outputs[roles.logits.name]
        return np.asarray(logits[:, -1] if roles.scores_every_token else logits, np.float32)

    @property
    def surplus(self) -> int:
        """How many places the next push lets go first, of the caches that hold the last ones alone."""
        kept = self.roles.window
        if kept is None:
            return 0
        # Where nothing else copies a cache, its places are moved once in many steps.
        spare = min(_more(kept.places), kept.most - kept.places) if self._steps else 1
        found = self._kept - kept.places
        return found if found >= max(1, spare) else 0

    def _drop(self, count: int) -> None:
        if not count:
            return
        self._kept -= count
        if self._caches is not None:
            self._caches |= {spec.name: dropped(self._caches[spec.name], axis, count)
                             for spec, axis in kept_axes(self.roles)}  # fmt: skip
        elif self._steps is not None:
            self._steps.drop(count)

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
        if self._caches is not None:
            return self._caches[name]
        assert self._steps is not None
        return self._steps.cache(name)

    def take(self, rows: Array) -> None:
        """Goes on with these rows of the batch, of which one may be there several times.

        Where as many rows as before are taken, each has to have the context of the row that it replaces.
        """
        import numpy as np

        assert self._keep_BT is not None
        batch = self.roles.ids.dims[0]
        if len(rows) != len(self._keep_BT):
            for spec in self.roles.context:
                if batch in spec.dims:
                    self._context[spec.name] = np.take(self._context[spec.name], rows, spec.dims.index(batch))
        self._keep_BT = self._keep_BT[rows]
        if self._caches is not None:
            self._caches = taken(self.roles, self._caches, rows)
        elif self._steps is not None:
            self._steps.take(rows)


def positions(keep_BT: Array) -> Array:
    """The position of every token among the real ones of its text, int64 `[batch, tokens]`; that of padding is 0."""
    import numpy as np

    return np.maximum(np.cumsum(keep_BT, axis=1, dtype=np.int64) - 1, 0)
