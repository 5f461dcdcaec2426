"""A batch of texts that grow, with their keys and values and a mask of the real tokens among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import FeedError
from ..feeds import check_arrays, check_feeds
from ..format.contract import IO
from ..format.decoder import Roles

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
Run = Callable[..., "dict[str, Array]"]
"""Runs the model: an array for each input by name in, one for each output out."""
_MORE = 64
"""The least places that a buffer has behind its tokens when it is made."""
MakeSteps = Callable[[Roles], "Steps | None"]
"""Makes `Steps` to which a runtime adds in place; None of a model whose caches it cannot keep."""


def steps_of(session: object) -> MakeSteps:
    """What makes a session's `Steps`."""
    make: MakeSteps = getattr(session, "new_steps", lambda roles: None)
    return ForPrompts(make) if getattr(session, "keeps_caches", False) else make


class ForPrompts:
    """Makes `Steps` that take prompts too, of a session whose caches stay on its device (`keeps_caches`)."""

    def __init__(self, make: MakeSteps) -> None:
        self._make = make

    def __call__(self, roles: Roles) -> Steps | None:
        """As `MakeSteps`."""
        return self._make(roles)


class Steps:
    """The caches of one batch, and what runs the model: what it gives takes their place, or is put behind them.

    Runtimes have `Steps` of their own, with these methods, that add to caches in place, one new token at a time.
    """

    def __init__(self, run: Callable[..., Any], roles: Roles) -> None:
        self._run, self._roles = run, roles
        self._held: dict[str, Array] = {}

    def begin(self, caches: Mapping[str, Array]) -> None:
        """Takes caches, by input."""
        self._held = dict(caches)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs new tokens of every text; gives the outputs that follow no cache."""
        import numpy as np

        outputs = dict(self._run(**feeds, **self._held))
        for spec, output, axis in self._roles.caches:
            # A session may return half precision, where its file has it.
            given = outputs.pop(output).astype(spec.dtype, copy=False)
            whole = axis is None or self._roles.returns_whole_cache
            self._held[spec.name] = given if whole else np.concatenate([self._held[spec.name], given], axis)
        return outputs

    def take(self, rows: Array) -> None:
        """Goes on with these rows of the batch, of which one may be there several times."""
        import numpy as np

        axes = {spec.name: spec.dims.index(self._roles.ids.dims[0]) for spec, _, _ in self._roles.caches}
        self._held = {name: np.take(array, rows, axes[name]) for name, array in self._held.items()}

    def drop(self, count: int) -> None:
        """Lets the first places go, of the caches that hold the last ones alone."""
        for spec, axis in self._roles.growing("window"):
            self._held[spec.name] = dropped(self._held[spec.name], axis, count)

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
        return self._held[name]


class Buffers(Steps):
    """`Steps` of a model that writes to its caches. Each is a buffer with spare room: what lies behind the last token
    has no meaning. States are given and taken at every step."""

    def __init__(
        self, step: Callable[[Mapping[str, Array], Mapping[str, tuple[str, Array]]], dict[str, Array]], roles: Roles
    ) -> None:
        """Takes the function that runs the model.

        Args:
            step: Takes arrays by input, and by a cache's input the name of the output that follows it and a buffer that
                is both; gives the other outputs.
        """
        super().__init__(step, roles)
        self._axes = {spec.name: axis for spec, _, axis in roles.caches if axis is not None}
        self._lengths: dict[str, int] = {}

    def begin(self, caches: Mapping[str, Array]) -> None:
        """Takes caches, by input."""
        super().begin(caches)
        self._lengths = {name: caches[name].shape[axis] for name, axis in self._axes.items()}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one new token of every text."""
        import numpy as np

        states = {spec.name: output for spec, output, axis in self._roles.caches if axis is None}
        for name, axis in self._axes.items():
            held, length = self._held[name], self._lengths[name]
            if held.shape[axis] == length:
                self._held[name] = np.pad(held, [(0, _more(length) * (each == axis)) for each in range(held.ndim)])
        buffers = {spec.name: (output, self._held[spec.name]) for spec, output, axis in self._roles.caches
                   if axis is not None}  # fmt: skip
        given = {**feeds, **{name: self._held[name] for name in states}}
        outputs: dict[str, Array] = self._run(given, buffers)
        self._held |= {name: outputs.pop(output) for name, output in states.items()}
        self._lengths = {name: length + 1 for name, length in self._lengths.items()}
        return outputs

    def drop(self, count: int) -> None:
        """Lets the first places go, of the caches that hold the last ones alone; the others move to the front."""
        for spec, axis in self._roles.growing("window"):
            held, length = self._held[spec.name], self._lengths[spec.name]
            held[_places(axis, 0, length - count)] = held[_places(axis, count, length)]
            self._lengths[spec.name] = length - count

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
        import numpy as np

        held, axis = self._held[name], self._axes.get(name)
        return held if axis is None else np.ascontiguousarray(held[_places(axis, 0, self._lengths[name])])


class Carried(Steps):
    """`Steps` of a runtime that keeps caches on its device: what it gives for a cache is held there, and is given to
    it again, prompts' too. Nothing of a cache passes through the host, unless rows change or places are let go."""

    def __init__(
        self,
        step: Callable[[Mapping[str, Array], Mapping[str, tuple[str, Any]]], tuple[dict[str, Array], dict[str, Any]]],
        read: Callable[[Any], Array],
        roles: Roles,
    ) -> None:
        """Takes the function that runs the model, whose outputs for caches are whole caches.

        Args:
            step: Takes arrays by input, and by a cache's input the name of the output that follows it and what is
                held: an array, or a value of the runtime. Gives the other outputs, and what is held next, by input.
            read: A value of the runtime as an array.
        """
        super().__init__(step, roles)
        self._read = read

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs new tokens of every text; gives the outputs that follow no cache."""
        held = {spec.name: (output, self._held[spec.name]) for spec, output, _ in self._roles.caches}
        outputs: dict[str, Array]
        outputs, self._held = self._run(feeds, held)
        return outputs

    def take(self, rows: Array) -> None:
        """Goes on with these rows of the batch, of which one may be there several times."""
        self._to_host()
        super().take(rows)

    def drop(self, count: int) -> None:
        """Lets the first places go, of the caches that hold the last ones alone."""
        self._to_host()
        super().drop(count)

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
        return self._as_array(name)

    def _to_host(self) -> None:
        self._held = {name: self._as_array(name) for name in self._held}

    def _as_array(self, name: str) -> Array:
        import numpy as np

        held: Any = self._held[name]
        dtype = next(spec.dtype for spec, _, _ in self._roles.caches if spec.name == name)
        return held if isinstance(held, np.ndarray) else self._read(held).astype(dtype, copy=False)


def _more(length: int) -> int:
    """How many places are added at once behind so many, so that they are copied once in as many steps."""
    return max(_MORE, length // 4)


def _places(axis: int, begin: int, end: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(begin, end),)


def dropped(array: Array, axis: int, count: int) -> Array:
    """A copy without the first places."""
    import numpy as np

    return np.ascontiguousarray(array[_places(axis, count, array.shape[axis])])


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
            make_steps: Of a runtime that may add to caches in place; where it does not, they are copied at every step.
            context: The inputs that are the same at every step.

        Raises:
            FeedError: an input of the context is missing, or one is not of it.
        """
        expected, got = [spec.name for spec in roles.context], sorted(context or {})
        if sorted(expected) != got:
            taken = f"{', '.join(expected)}, the same at every step: what an encoder gives" if expected else "nothing"
            raise FeedError(f"context: got {', '.join(got) or 'nothing'}; expected {taken}.")
        self._make_steps, self._io, self.roles = make_steps, io, roles
        self._copies = Steps(run, roles)
        self._in_place: Steps | None = None
        self._steps = self._copies  # the one that holds the caches now
        self._context = dict(context or {})
        self.outputs: dict[str, Array] = {}
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
            self._copies.begin({spec.name: np.zeros(spec.shape(sizes), spec.dtype) for spec, _, _ in roles.caches})
        whole_BT = np.concatenate([self._keep_BT, keep_BS], axis=1)
        if count := self.surplus:
            self._kept -= count
            self._steps.drop(count)
        feeds = {**self._context, roles.ids.name: ids_BS.astype(roles.ids.dtype)}
        if roles.mask:
            mask = {"all": whole_BT, "past": self._keep_BT, "new": keep_BS}[str(roles.mask_covers)]
            feeds[roles.mask.name] = mask.astype(roles.mask.dtype)
        new = ids_BS.shape[1]
        if roles.window_mask:
            feeds[roles.window_mask.name] = whole_BT[:, -(self._kept + new) :].astype(roles.window_mask.dtype)
        if roles.positions:
            feeds[roles.positions.name] = positions(whole_BT)[:, -new:].astype(roles.positions.dtype)
        is_step = new == 1 and self._keep_BT.shape[1] > 0
        if self._make_steps and (is_step or isinstance(self._make_steps, ForPrompts)):
            self._in_place, self._make_steps = self._make_steps(roles), None
        steps = (self._in_place if is_step or isinstance(self._in_place, Carried) else None) or self._copies
        if steps is not self._copies:  # which check what `run` does; batch and context are the same at later steps
            if self._keep_BT.size:
                check_arrays(self._io, {spec.name: feeds.get(spec.name) for spec in self._io.inputs})
            else:
                check_feeds(self._io, feeds | {spec.name: self._copies.cache(spec.name) for spec, _, _ in roles.caches})
        if steps is not self._steps:
            steps.begin({spec.name: self._steps.cache(spec.name) for spec, _, _ in roles.caches})
            self._steps = steps
        self.outputs = steps.run(feeds)
        self._keep_BT = whole_BT
        self._kept += new
        logits = self.outputs[roles.logits.name]
        return np.asarray(logits[:, -1] if roles.scores_every_token else logits, np.float32)

    @property
    def surplus(self) -> int:
        """How many places the next push lets go first, of the caches that hold the last ones alone."""
        window = self.roles.window
        if window is None:
            return 0
        # Where nothing else copies a cache, its places are moved once in many steps.
        room = self.roles.window_most - window.places
        spare = min(_more(window.places), room) if self._steps is not self._copies else 1
        found = self._kept - window.places
        return found if found >= max(1, spare) else 0

    def cache(self, name: str) -> Array:
        """What the cache of an input holds."""
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
        self._steps.take(rows)


def positions(keep_BT: Array) -> Array:
    """The position of every token among the real ones of its text, int64 `[batch, tokens]`; that of padding is 0."""
    import numpy as np

    return np.maximum(np.cumsum(keep_BT, axis=1, dtype=np.int64) - 1, 0)
