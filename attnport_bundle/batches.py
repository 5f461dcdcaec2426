"""Runs any number of items in batches of like length, within a limit of memory, and gives results in their order.

A runtime keeps the memory of earlier batches: ONNX Runtime's arena and OpenVINO's pool never shrink by themselves. A
batch of another shape may fit into it, or take all that it needs once more: batches are planned for the latter, and
refused only if there is no room for the former. Where room is short, OpenVINO is told to give back what it keeps.

ONNX Runtime's arena is left as it is. Shrunk after each call (`memory.enable_memory_arena_shrinkage`), it had a higher
peak with MiniLM and was slower. With `kSameAsRequested` the peak was higher; without an arena it was about the same,
and the speed lower.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .arguments import LARGEST, integer, mapping, several, shown
from .errors import FeedError
from .format import expressions
from .format.contract import IO, Dim, MaskSpec, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Arrays = dict[str, Array]
    Outputs = Mapping[str, np.ndarray[Any, Any]]

TOKENS = 1024
"""Places of a batch, padding included. A call's memory grows with them; MiniLM is as fast with 256 as with 4096."""
FULL = 128
"""A batch of fewer places is slower per place: items join it whatever their length. A fuller one takes only those that
have at least `LIKE` of the length of its longest. With these, 32 sentences of MiniLM took 0.94 of their time, and 0.65
in a form that computes padding."""
LIKE = 0.75
WINDOW = 1024
"""Texts that are tokenised and sorted together. If one has 512 tokens, the inputs are 13 MB; 4096 are no faster."""


def groups(lengths: Sequence[int], places: Callable[[int], int], sizes: Dim) -> Iterator[list[int]]:
    """The items of each batch, of like length, the longest first: if one is too large, that is known before others ran.

    Args:
        lengths: The places of each item.
        places: The most places of a batch whose longest item has the given length; asked before each batch. An item
            that is longer has a batch of its own.
        sizes: The numbers of items that the model takes. Where fewer are left, a batch has these alone, and is filled
            up.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    begin = 0
    while begin < len(order):
        longest = lengths[order[begin]]
        room = min(places(longest) // longest, sizes.max) // sizes.step * sizes.step
        end, last = begin + 1, min(begin + max(room, sizes.at_least(1)), len(order))
        while end < last and (
            (end - begin) * longest < FULL or lengths[order[end]] >= LIKE * longest or not sizes.takes(end - begin)
        ):
            end += 1
        yield order[begin:end]
        begin = end


def mapped(
    run: Callable[..., Arrays],
    io: IO,
    feeds: Mapping[str, Array],
    tokens: int = TOKENS,
    only: str = "",
    memory: Memory | None = None,
) -> Arrays:
    """Runs a model on more items than one batch should have.

    Places that are padding for every item of a batch are not run; in outputs they are zero.

    Args:
        run: As `Model.run`.
        io: The contract; its padding masks are inputs `[batch, seq]`, or there is none.
        feeds: An array for each input, with any number of items.
        tokens: The most places of a batch.
        only: The one output to return; "" = all.
        memory: The limit that batches keep to; None = none.

    Raises:
        FeedError: the contract does not fit, inputs have different numbers of items, there is too little memory, or
            what `run` raises.
    """
    import numpy as np

    tokens = integer("tokens", tokens, 1)
    feeds = mapping("feeds", feeds, "an array for each input")
    memory = memory or Memory()
    masks, spec = padding(io)
    _require_rows(io, spec, only)
    missing = [each.name for each in io.inputs if each.name not in feeds]
    if missing or len(feeds) > len(io.inputs) or any(np.ndim(feeds[one.name]) != len(one.dims) for one in io.inputs):
        return run(**feeds)  # which says what is wrong
    items = _Items(io, feeds, masks, spec)
    longest = max(range(items.count), key=lambda at: items.lengths[at])
    for step in memory.steps(items.lengths[longest]):
        size = items.at_least(step)
        if size < items.lengths[longest]:
            alone = items.filled([longest])
            memory.run(len(alone) * size, size, partial(run, **items.part(alone, size)))
    whole: Arrays = {}
    for batch in groups(items.lengths, lambda length: memory.places(length, tokens), items.sizes):
        length, filled = items.lengths[batch[0]], items.filled(batch)
        found = memory.run(len(filled) * length, length, partial(run, **items.part(filled, length)))
        kept = {name: array[: len(batch)] for name, array in found.items() if only in ("", name)}
        whole = whole or items.whole(kept, memory)
        for name, array in kept.items():
            items.put(whole[name], name, batch, array)
    return whole


def _require_rows(io: IO, spec: TensorSpec, only: str) -> None:
    item, asked = str(spec.dims[0]), [each for each in io.outputs if only in ("", each.name)]
    for each in asked:
        if each.dims[:1] != spec.dims[:1]:
            raise FeedError(f"output {each.name!r} has no row for each item of {item}; run one batch at a time.")
        # As scores of every item beside every other one: they would be of the items of one batch alone.
        if any(item in expressions.names(dim) for dim in each.dims[1:] if isinstance(dim, str)):
            raise FeedError(f"output {each.name!r} depends on the number of items, {item}; run one batch at a time.")


def padding(io: IO) -> tuple[list[MaskSpec], TensorSpec]:
    """The padding masks and the input that carries the first; without one, the first input."""
    named = {dim.name for dim in io.dims}
    masks = list(io.padding_masks())
    if not masks:
        if io.inputs[0].dims[:1] and io.inputs[0].dims[0] in named:
            return [], io.inputs[0]
        raise FeedError(f"{io.inputs[0]}: its first dim is no number of items; run one batch at a time.")
    specs = {each.name: each for each in io.inputs}
    dims = {specs[str(mask.input)].dims for mask in masks}
    simple = all(mask.carries == "mask" and mask.polarity in ("keep", "hide") for mask in masks)
    first = specs[str(masks[0].input)]
    if not simple or len(dims) > 1 or len(first.dims) != 2 or not all(dim in named for dim in first.dims):
        raise FeedError("the model's padding masks are not [batch, seq]; run one batch at a time.")
    return masks, first


class _Items:
    """What is to be run, an array for each input.

    Attributes:
        count: How many there are.
        sizes: How many a batch may have.
        lengths: For each, the places that it needs, in sizes that the model takes; 1 in a model without places.
        left: Whether padding stands before the items.
    """

    def __init__(self, io: IO, feeds: Mapping[str, Array], masks: Sequence[MaskSpec], spec: TensorSpec) -> None:
        """Raises FeedError if inputs have different numbers of items or places, or there is no item."""
        import numpy as np

        self._io = io
        self._feeds = {each.name: np.asarray(feeds[each.name]) for each in io.inputs}
        dims = {dim.name: dim for dim in io.dims}
        item, self._place = str(spec.dims[0]), dims[str(spec.dims[1])] if masks else None
        if self._place is not None:
            place = self._place.name
            widths = {
                each.name: self._feeds[each.name].shape[each.dims.index(place)]
                for each in io.inputs
                if place in each.dims
            }
            if len(set(widths.values())) > 1:
                raise FeedError(f"{place}: got {widths}; expected the same size for every input.")
        self._own = [each.name for each in io.inputs if each.dims[:1] == (item,)]
        counts = {name: len(self._feeds[name]) for name in self._own}
        if len(set(counts.values())) > 1 or not min(counts.values()):
            raise FeedError(f"items: got {counts}; expected the same number for every input, at least one.")
        self.count, self.sizes = counts[spec.name], dims[item]
        self._width = self._feeds[spec.name].shape[-1] if masks else 0
        self.lengths, self.left = [1] * self.count, False
        if masks and self._width:  # of a model without places it says itself what is wrong
            real = real_places(masks, self._feeds)
            some = real[real.any(1)]
            self.left = bool(some[:, -1].all() and not some[:, 0].all())
            self.lengths = [self.at_least(length) for length in _lengths(real[:, ::-1] if self.left else real)]

    def at_least(self, length: int) -> int:
        """The least size of the model that has room for the length."""
        return length if self._place is None else self._place.at_least(length)

    def filled(self, batch: list[int]) -> list[int]:
        """The items of a batch, and its last one once more for each that is missing to a size that the model takes."""
        return batch + batch[-1:] * (self.sizes.at_least(len(batch)) - len(batch))

    def part(self, batch: list[int], length: int) -> Arrays:
        """The inputs of a batch, cut to the length."""
        part = {}
        for each in self._io.inputs:
            array = self._feeds[each.name]
            cut: Any = tuple(self._kept(length) if self._is_place(dim) else slice(None) for dim in each.dims)
            part[each.name] = array[cut][batch] if each.name in self._own else array[cut]
        return part

    def put(self, whole: Array, output: str, batch: list[int], array: Array) -> None:
        """Puts an output of a batch where it belongs in that of all items.

        Raises:
            FeedError: it has no room there, or none that is known: its size follows from the values of inputs, or from
                the places of items that padding stands before.
        """
        dims = next(each.dims for each in self._io.outputs if each.name == output)
        index: list[Any] = [batch]
        for axis, (dim, got) in enumerate(zip(dims[1:], array.shape[1:], strict=True), 1):
            index.append(self._kept(got) if self._is_place(dim) else slice(0, got))
            follows = self._place is not None and isinstance(dim, str) and self._place.name in expressions.names(dim)
            moved = self.left and follows and not self._is_place(dim)
            if got > whole.shape[axis] or moved or (got < whole.shape[axis] and not follows):
                raise FeedError(
                    f"output {output!r}: its size {dim!r} differs from batch to batch, and says not where items stand; "
                    "run one batch at a time."
                )
        whole[tuple(index)] = array

    def whole(self, outputs: Mapping[str, Array], memory: Memory) -> Arrays:
        """Zeros for the outputs of all items, from those of a batch.

        Raises:
            FeedError: there is too little memory.
        """
        import numpy as np

        shapes = {
            each.name: (
                self.count,
                *(
                    self._width if self._is_place(dim) else got
                    for dim, got in zip(each.dims[1:], outputs[each.name].shape[1:], strict=True)
                ),
            )
            for each in self._io.outputs
            if each.name in outputs
        }
        needed = sum(int(np.prod(shapes[name])) * array.itemsize for name, array in outputs.items())
        memory.require(needed, "what all items give")
        whole = {name: np.zeros(shapes[name], array.dtype) for name, array in outputs.items()}
        if memory.limit is not None:
            for array in whole.values():
                array.fill(0)  # so that it is resident, and counted, from the beginning
        return whole

    def _kept(self, length: int) -> slice:
        """The places that are not cut off."""
        return slice(max(self._width - length, 0), None) if self.left else slice(0, length)

    def _is_place(self, dim: object) -> bool:
        return self._place is not None and dim == self._place.name


def real_places(masks: Sequence[MaskSpec], feeds: Mapping[str, Array]) -> Array:
    """Which places, `[items, places]`, some mask of `padding` says to be no padding."""
    import numpy as np

    kept = [(feeds[str(mask.input)] != 0) == (mask.polarity == "keep") for mask in masks]
    real: Array = np.logical_or.reduce(kept)
    return real


def _lengths(real: Array) -> list[int]:
    """For each item, the places up to its last real token, at least one."""
    last: Array = real.shape[1] - real[:, ::-1].argmax(1)
    some: Any = real.any(1)
    return [int(length) if any_real else 1 for length, any_real in zip(last, some, strict=True)]


def embedding(io: IO) -> str:
    """The output that is a vector for each item.

    Raises:
        FeedError: there is none, or there are several.
    """
    found = [spec.name for spec in io.outputs if len(spec.dims) == 2 and isinstance(spec.dims[1], int)]
    if len(found) != 1:
        raise FeedError(f"embed: got the outputs {', '.join(map(str, io.outputs))}; expected one [batch, number].")
    return found[0]


def embedded(
    run: Callable[..., Arrays],
    io: IO,
    encode: Callable[[Sequence[str], int], Mapping[str, Array]],
    texts: Iterable[str],
    tokens: int,
    memory: Memory,
) -> Array:
    """The vectors of any number of texts, `[texts, width]`, `WINDOW` of them at a time.

    Args:
        encode: Makes the inputs of texts, the first of which has the given number among all.

    Raises:
        FeedError: there is no text, or as `embedding` and `mapped`.
    """
    output, rest = embedding(io), several("texts", texts, "several texts")
    vectors: Array | None = None
    while window := list(itertools.islice(rest, WINDOW)):
        count = 0 if vectors is None else len(vectors)
        found = mapped(run, io, encode(window, count), tokens, output, memory)[output]
        if vectors is None:
            vectors = found
            continue
        # It grows in place: at the end, parts and whole would be in memory together.
        vectors.resize((count + len(found), *found.shape[1:]), refcheck=False)
        vectors[count:] = found
    if vectors is None:
        raise FeedError("texts: got none; expected one or more.")
    return vectors


STATUS = Path("/proc/self/status")
START = 64
"""Places of the first call of a model under a limit, of which nothing is known."""
RESERVE = 16
"""The part of the limit that batches are not planned to fill: a batch of longer items takes more a place."""
_TEXT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?(?:([KMGT])(i?))?B")
_POWERS = {None: 0, "K": 1, "M": 2, "G": 3, "T": 4}


def limit_bytes(limit: int | str | None) -> int | None:
    """A limit in bytes, from a number or text such as `512MB` or `1.5GiB`; None stays None.

    Raises:
        FeedError: it is neither, or less than a byte, or 2**63 bytes or more.
    """
    if limit is None:
        return None
    found: int | str = limit
    if isinstance(limit, str) and (text := _TEXT.fullmatch(limit)):
        found = int(Fraction(text[1]) * (1024 if text[3] else 1000) ** _POWERS[text[2]])
    if isinstance(found, str | bool) or not hasattr(found, "__index__"):
        raise FeedError(f"max_memory: got {shown(limit)}; expected bytes, or text such as '512MB' or '1.5GiB'.")
    if not 1 <= found <= LARGEST:
        expected = "1 byte or more" if found < 1 else "less than 2**63 bytes"
        raise FeedError(f"max_memory: got {shown(limit)}; expected {expected}.")
    return int(found)


class Used(NamedTuple):
    """Resident memory of this process, in bytes: now, and at most so far."""

    now: int
    peak: int


def used() -> Used:
    """Reads it.

    Raises:
        FeedError: the system does not tell it; Linux does.
    """
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    if "VmRSS" not in found or "VmHWM" not in found:
        raise FeedError(
            "max_memory: this system has no VmRSS and VmHWM in /proc/self/status; choose the size of batches by tokens."
        )
    return Used(int(found["VmRSS"][0]) * 1024, int(found["VmHWM"][0]) * 1024)


@dataclass
class Learned:
    """What is known of an open model.

    Attributes:
        length: The longest item that ran.
        places: The places of the largest batch since an item of that length ran.
        rate: The bytes that one more place took, without outputs.
        output_rate: The bytes of the outputs of a place.
    """

    length: int = 0
    places: int = 0
    rate: float = 0.0
    output_rate: float = 0.0


class Memory:
    """A limit, and what batches may have within it.

    Args:
        limit: Bytes; None = no limit, and nothing is measured.
        learned: Of the model that runs; is brought up to date.
        give_back: Makes the runtime give the system what it keeps between calls. Returns whether it can.
    """

    def __init__(
        self,
        limit: int | None = None,
        learned: Learned | None = None,
        give_back: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limit = limit
        self._give_back = give_back
        self._learned = learned or Learned()

    def places(self, length: int, tokens: int) -> int:
        """The most places of a batch whose longest item has `length`; 0 = that item alone.

        At most twice as many as ran before, so that what they take is measured before there are many. No fewer than
        the longest item that ran: shorter ones take no more than that did.
        """
        known = self._learned
        if self.limit is None:
            return tokens
        if length > known.length:
            return 0
        aim = self.limit - self.limit // RESERVE
        room = aim - self._held(aim)
        rate = known.rate + known.output_rate
        most = min(tokens, 2 * known.places)
        if rate > 0:
            most = min(most, int(room / rate))
        return max(most, min(tokens, known.length))

    def steps(self, length: int) -> Iterator[int]:
        """The lengths at which an item of `length` is tried first, cut: each twice the one before."""
        step = max(START, 2 * self._learned.length)
        while self.limit is not None and step < length:
            yield step
            step *= 2

    def run(self, places: int, length: int, call: Callable[[], Outputs]) -> Outputs:
        """Runs a batch and learns from it.

        Raises:
            FeedError: the limit is exceeded, or would be as far as is known.
        """
        if self.limit is None:
            return call()
        known = self._learned
        extra = places - (known.places if length <= known.length else min(known.places, known.length))
        self._held(self.limit - int(places * (known.rate + known.output_rate)))
        self.require(int(max(0, extra) * known.rate + places * known.output_rate), f"a batch of {places} places")
        before = used()
        outputs = call()
        given = sum(array.nbytes for array in outputs.values())
        after = used()
        held = after.peak if after.peak > before.peak else after.now
        known.output_rate = given / places
        grown = held - before.now - given
        if grown > 0 and 4 * extra >= places:
            # No less than half of before: a batch that found memory of earlier ones says little.
            known.rate = max(grown / extra, known.rate / 2)
        known.places = places if length > known.length else max(known.places, places)
        known.length = max(known.length, length)
        if held > self.limit:
            raise FeedError(
                f"max_memory: with a batch of {places} places the process held {_mb(held)}, "
                f"{_mb(before.now)} before it; the limit is {_mb(self.limit)}."
            )
        return outputs

    def require(self, needed: int, what: str) -> None:
        """Raises FeedError if there is no room for so many bytes more."""
        if self.limit is None:
            return
        held = used().now
        if held > self.limit:
            raise FeedError(f"max_memory: the process holds {_mb(held)}; the limit is {_mb(self.limit)}.")
        if held + needed > self.limit:
            raise FeedError(
                f"max_memory: {what} needs {_mb(needed)} more; the process holds {_mb(held)}, "
                f"the limit is {_mb(self.limit)}."
            )

    def _held(self, aim: int) -> int:
        """What the process holds; if that is more than `aim`, behind what the runtime gives back."""
        held = used().now
        if held > aim and self._give_back():
            held = used().now
        return held


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
