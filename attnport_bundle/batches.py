"""Runs any number of items in batches of like length, and gives results in their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from .arguments import integer, mapping, several
from .errors import FeedError
from .feeds import not_an_array
from .format.contract import IO, Dim, MaskSpec, TensorSpec, dims_in

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Arrays = dict[str, Array]

AnyIO = TypeVar("AnyIO", bound=IO)
TOKENS = 1024
"""Places of a batch, padding included. A call's memory grows with them; MiniLM is as fast with 256 as with 4096."""
FULL = 128
"""A batch of fewer places is slower per place: items join it whatever their length. A fuller one takes only those that
have at least `LIKE` of the length of its longest. With these, 32 sentences of MiniLM took 0.94 of their time, and 0.65
in a form that computes padding."""
LIKE = 0.75
WINDOW = 1024
"""Texts that are tokenised and sorted together. If one has 512 tokens, the inputs are 13 MB; 4096 are no faster."""
_EIGHT = 8


def groups(lengths: Sequence[int], tokens: int, sizes: Dim) -> Iterator[list[int]]:
    """The items of each batch, of like length, the longest first: if one is too large, that is known before others ran.

    Args:
        lengths: The places of each item.
        tokens: The most places of a batch. An item that is longer has a batch of its own.
        sizes: The numbers of items that the model takes. Where fewer are left, a batch has these alone, and is filled
            up.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    begin = 0
    while begin < len(order):
        longest = lengths[order[begin]]
        room = min(tokens // longest, sizes.max) // sizes.step * sizes.step
        end, last = begin + 1, min(begin + max(room, sizes.at_least(1)), len(order))
        while end < last and (
            (end - begin) * longest < FULL or lengths[order[end]] >= LIKE * longest or not sizes.takes(end - begin)
        ):
            end += 1
        yield order[begin:end]
        begin = end


def mapped(
    run: Callable[..., Arrays], io: IO, feeds: Mapping[str, Array], tokens: int = TOKENS, only: str = ""
) -> Arrays:
    """Runs a model on more items than one batch should have: see `Model.map`.

    Args:
        run: As `Model.run`.
        only: The one output to return; "" = all.
    """
    import numpy as np

    tokens = integer("tokens", tokens, 1)
    feeds = mapping("feeds", feeds, "an array for each input")
    masks, spec = padding(io)
    outputs = [each for each in io.outputs if only in ("", each.name)]
    _require_rows(outputs, spec)
    missing = [each.name for each in io.inputs if each.name not in feeds]
    if missing or len(feeds) > len(io.inputs) or any(np.ndim(feeds[one.name]) != len(one.dims) for one in io.inputs):
        return run(**feeds)  # which says what is wrong
    items = _Items(io, feeds, masks, spec)
    whole: Arrays = {}
    for batch in groups(items.lengths, tokens, items.sizes):
        found = run(**items.part(batch))
        for each in outputs:
            items.put(whole, each, batch, found[each.name][: len(batch)])
    return whole


def _require_rows(outputs: Sequence[TensorSpec], spec: TensorSpec) -> None:
    item = str(spec.dims[0])
    for each in outputs:
        if each.dims[:1] != spec.dims[:1]:
            raise FeedError(f"output {each.name!r} has no row for each item of {item}; run one batch at a time.")
        # As scores of every item beside every other one: they would be of the items of one batch alone.
        if any(item in dims_in(dim) for dim in each.dims[1:] if isinstance(dim, str)):
            raise FeedError(f"output {each.name!r} depends on the number of items, {item}; run one batch at a time.")


def in_eights(io: AnyIO) -> AnyIO:
    """A contract of which items have a multiple of 8 places; the same one where no mask hides the places behind them.

    Below SM 90, most kernels of attention on CUDA take no other length, and the rest of them are several kernels.
    """
    try:
        masks, spec = padding(io)
    except FeedError:
        return io
    dims = list(io.dims)
    for at, dim in enumerate(dims):
        step = math.lcm(dim.step, _EIGHT)
        if masks and dim.name == spec.dims[1] and dim.max % step == 0:
            least, usual = (-(-size // step) * step for size in (dim.min, dim.opt))
            dims[at] = replace(dim, min=least, opt=usual, step=step)
    return replace(io, dims=tuple(dims))


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
        sizes: How many items a batch may have.
        lengths: For each item, the places that it needs, in sizes that the model takes; 1 in a model without places.
    """

    def __init__(self, io: IO, feeds: Mapping[str, Array], masks: Sequence[MaskSpec], spec: TensorSpec) -> None:
        """Raises FeedError if inputs have different numbers of items or places, or there is no item."""
        import numpy as np

        self._io = io
        for each in io.inputs:
            if isinstance(feeds[each.name], np.ndarray) and (problem := not_an_array(feeds[each.name], each.dtype)):
                raise FeedError(f"input {each.name!r}: {problem}.")  # a masked one: `asarray` has what its mask hides
        self._feeds = {each.name: np.asarray(feeds[each.name]) for each in io.inputs}
        dims = {dim.name: dim for dim in io.dims}
        item, self._place = str(spec.dims[0]), str(spec.dims[1]) if masks else ""
        widths = {
            each.name: self._feeds[each.name].shape[each.dims.index(self._place)]
            for each in io.inputs
            if self._place in each.dims
        }
        if len(set(widths.values())) > 1:
            raise FeedError(f"{self._place}: got {widths}; expected the same size for every input.")
        self._own = [each.name for each in io.inputs if each.dims[:1] == (item,)]
        counts = {name: len(self._feeds[name]) for name in self._own}
        if len(set(counts.values())) > 1 or not min(counts.values()):
            raise FeedError(f"items: got {counts}; expected the same number for every input, at least one.")
        self.sizes, self._width = dims[item], widths.get(spec.name, 0)
        self.lengths, self._left = [1] * counts[spec.name], False
        if self._width:  # of a model without places it says itself what is wrong
            real = real_places(masks, self._feeds)
            some = real[real.any(1)]
            self._left = bool(some[:, -1].all() and not some[:, 0].all())  # padding stands before the items
            padded = (real if self._left else real[:, ::-1]).argmax(1)
            needed = np.where(real.any(1), self._width - padded, 1)
            self.lengths = [dims[self._place].at_least(int(length)) for length in needed]

    def part(self, batch: list[int]) -> Arrays:
        """The inputs of a batch, whose longest item is the first, cut to its length.

        The last item is there once more for each that is missing to a size that the model takes.
        """
        length, filled = self.lengths[batch[0]], batch + batch[-1:] * (self.sizes.at_least(len(batch)) - len(batch))
        part = {}
        for each in self._io.inputs:
            array = self._feeds[each.name]
            cut: Any = tuple(self._kept(length) if dim == self._place else slice(None) for dim in each.dims)
            part[each.name] = array[cut][filled] if each.name in self._own else array[cut]
        return part

    def put(self, whole: Arrays, output: TensorSpec, batch: list[int], array: Array) -> None:
        """Puts an output of a batch where it belongs in that of all items.

        Raises:
            FeedError: it has no room there, or none that is known: its size follows from the values of inputs, or from
                the places of items that padding stands before.
        """
        import numpy as np

        axes = list(zip(output.dims[1:], array.shape[1:], strict=True))
        if output.name not in whole:
            sizes = (self._width if dim == self._place else got for dim, got in axes)
            whole[output.name] = np.zeros((len(self.lengths), *sizes), array.dtype)
        index: list[Any] = [batch]
        for (dim, got), size in zip(axes, whole[output.name].shape[1:], strict=True):
            index.append(self._kept(got) if dim == self._place else slice(0, got))
            follows = isinstance(dim, str) and self._place in dims_in(dim)
            moved = self._left and follows and dim != self._place
            if got > size or moved or (got < size and not follows):
                raise FeedError(
                    f"output {output.name!r}: its size {dim!r} differs from batch to batch, and says not where items "
                    "stand; run one batch at a time."
                )
        whole[output.name][tuple(index)] = array

    def _kept(self, length: int) -> slice:
        """The places that are not cut off."""
        return slice(max(self._width - length, 0), None) if self._left else slice(0, length)


def real_places(masks: Sequence[MaskSpec], feeds: Mapping[str, Array]) -> Array:
    """Which places, `[items, places]`, some mask of `padding` says to be no padding."""
    import numpy as np

    kept = [(feeds[str(mask.input)] != 0) == (mask.polarity == "keep") for mask in masks]
    real: Array = np.logical_or.reduce(kept)
    return real


def scoring(io: IO) -> str:
    """The output with the scores of each item, `[batch]` or `[batch, classes]`: `scores`, else `logits`, else ""."""
    found = {spec.name for spec in io.outputs if len(spec.dims) == 1 or _is_vector(spec)}
    return next((name for name in ("scores", "logits") if name in found), "")


def has_one_logit(io: IO) -> bool:
    """Whether `logits` are one number for each item, as of a reranker: `[batch, 1]`."""
    return any(spec.name == "logits" and spec.dims[1:] == (1,) for spec in io.outputs)


def _is_vector(spec: TensorSpec) -> bool:
    return len(spec.dims) == 2 and isinstance(spec.dims[1], int)


SPARSE, OF_TOKENS = "sparse_embedding", "token_embeddings"
"""The outputs of a model whose vectors are mostly zero, and of one with a vector for each token."""
EMBEDDER, SPARSE_ENCODER, MULTI_VECTOR = "embedder", "sparse encoder", "multi-vector encoder"
_SCORES = "cross-encoder or classifier"
_DECODER = "decoder"
_METHODS = {
    _DECODER: "generate",
    EMBEDDER: "embed",
    SPARSE_ENCODER: "encode_sparse",
    MULTI_VECTOR: "encode_query and encode_document",
    _SCORES: "predict or rank",
}


def kind_of(io: IO) -> str:
    """What a model makes of texts, in the words of sentence-transformers, or a decoder; "" of any other."""
    names = {spec.name for spec in io.outputs}
    if getattr(io, "decoder", None):
        return _DECODER
    if scoring(io):
        return _SCORES
    kinds = {SPARSE: SPARSE_ENCODER, OF_TOKENS: MULTI_VECTOR}
    found = next((kind for name, kind in kinds.items() if name in names), "")
    return found or (EMBEDDER if sum(map(_is_vector, io.outputs)) == 1 else "")


def wrong_kind(io: IO, method: str, expected: str) -> FeedError:
    """Says what a model is, for whom a method is not, and the methods that are."""
    got, kind = ", ".join(map(str, io.outputs)), kind_of(io)
    instead = _METHODS.get(kind, "run")
    what = f", of this {kind}" if kind else ""
    return FeedError(f"{method}: got the outputs {got}{what}; expected {expected}. Call {instead}.")


def embedding(io: IO) -> str:
    """The output that is a vector for each item.

    Raises:
        FeedError: there is none or there are several, or they are for another method, as scores.
    """
    if kind_of(io) != EMBEDDER:
        raise wrong_kind(io, "embed", "one [batch, number], and neither scores nor logits")
    return next(spec.name for spec in io.outputs if _is_vector(spec))


def embedded(
    run: Callable[..., Arrays],
    io: IO,
    output: str,
    encode: Callable[[Sequence[Any], int], Mapping[str, Array]],
    texts: Iterable[Any],
    tokens: int,
) -> Array:
    """An output of any number of texts, a row each, `WINDOW` of them at a time.

    Args:
        encode: Makes the inputs of texts, the first of which has the given number among all.

    Raises:
        FeedError: there is no text, or as `mapped`.
    """
    rest = several("texts", texts, "several texts")
    vectors: Array | None = None
    while window := list(itertools.islice(rest, WINDOW)):
        count = 0 if vectors is None else len(vectors)
        found = mapped(run, io, encode(window, count), tokens, output)[output]
        if vectors is None:
            vectors = found
            continue
        # It grows in place: at the end, parts and whole would be in memory together.
        vectors.resize((count + len(found), *found.shape[1:]), refcheck=False)
        vectors[count:] = found
    if vectors is None:
        raise FeedError("texts: got none; expected one or more.")
    return vectors
