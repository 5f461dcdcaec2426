"""What each input and output of a decoder with a cache is for, read from its contract."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from .contract import IO, TensorSpec
from .errors import FeedError
from .expressions import names

HINT = "Of hf:, export it with --with-past."
_UNLIMITED = (1 << 31) - 1
"""The places of a cache that no dim counts."""
Cached = tuple[TensorSpec, str, int | None]
"""An input, the output that follows it, and the axis of its length."""


@dataclass(frozen=True)
class Roles:
    """The inputs and outputs of a decoder.

    Attributes:
        ids: The new tokens, `[batch, seq]`, or `[batch, 1]` of a model that takes one at a time.
        mask: What says which tokens are real, `[batch, past+seq]`, or of the cache alone, `[batch, past]`. Without a
            cache of every token it is of the new ones, `[batch, seq]`.
        whole: Whether the mask is not of the cache alone.
        caches: Inputs with a length of `past`, each with the output that follows it and the axis of its length; and
            states, of which one size follows another, so that they have no such axis.
        grown: Whether the outputs of caches are the whole cache, and not what is to be put behind it.
        context: The other inputs, which are the same at every step: those of cross-attention.
        logits: The output that scores the next token.
        each: Whether it does so for every new token, `[batch, seq, vocabulary]`, and not for the last, `[batch, ...]`.
        past, start: The dim of the cache's length, "" without one, and how many empty places it begins with.
        longest_seq, longest_past: The most new tokens of a pass, and the most places of the cache.
    """

    ids: TensorSpec
    mask: TensorSpec | None
    whole: bool
    caches: tuple[Cached, ...]
    grown: bool
    context: tuple[TensorSpec, ...]
    logits: TensorSpec
    each: bool
    past: str
    start: int
    longest_seq: int
    longest_past: int


def roles_of(io: IO) -> Roles:
    """The roles in a contract.

    Raises:
        FeedError: the model does not generate, with the reason.
    """
    masks = {mask.input for mask in io.masks if mask.input}
    floats = [spec for spec in io.inputs if spec.dtype.startswith(("float", "bfloat"))]
    if not floats:
        raise _refused("it has no cache: no input is of floats")
    ids = _ids(io, masks)
    batch, seq = (str(dim) for dim in ids.dims)
    named = {dim.name: dim for dim in io.dims}
    logits = [spec for spec in io.outputs if spec.dims[:1] == (batch,) and spec.dims[-1] == ids.high
              and spec.dims[1:-1] in ((), ids.dims[1:])]  # fmt: skip
    past, caches, grown = _caches(io, floats, batch, seq)
    mask, whole = _mask(io, masks, ids, past)
    taken = {ids.name, *(spec.name for spec, _, _ in caches), *([mask.name] if mask else [])}
    states = _states(io, taken, {output for _, output, _ in caches} | {spec.name for spec in logits[:1]}, batch)
    if not caches and not states:
        raise _refused("it has no cache: no input of floats with a length of its own, or with an output of its size")
    if not logits:
        raise _refused(f"no output scores the {ids.high} ids")
    start = named[past].min if past else 0
    if start and mask is None:
        raise _refused(f"its cache cannot be empty: {past} is from {named[past].span}, and no mask hides a place")
    taken |= {spec.name for spec, _, _ in states}
    context = tuple(spec for spec in io.inputs if spec.name not in taken)
    if others := [spec.name for spec in context if _grows(spec, past, seq)]:
        raise _refused(f"it also takes {', '.join(others)}")
    longest = named[seq].max if seq in named else 1
    return Roles(ids, mask, whole, (*caches, *states), grown, context, logits[0], len(logits[0].dims) == 3, past,
                 start, longest, named[past].max if past else _UNLIMITED)  # fmt: skip


def _ids(io: IO, masks: Set[str | None]) -> TensorSpec:
    ids = [spec for spec in io.inputs if spec.high is not None and spec.name not in masks and len(spec.dims) == 2]
    if len(ids) != 1 or isinstance(ids[0].dims[0], int) or ids[0].dims[1] not in (1, str(ids[0].dims[1])):
        raise _refused(f"it has {len(ids)} inputs of token ids [batch, seq]; expected one")
    return ids[0]


def _caches(io: IO, floats: Sequence[TensorSpec], batch: str, seq: str) -> tuple[str, tuple[Cached, ...], bool]:
    """The dim of the caches' length, each cache with its output, and whether that is the whole cache."""
    lengths = [
        dim.name for dim in io.dims if dim.name not in (batch, seq) and any(dim.name in spec.dims for spec in floats)
    ]
    if not lengths:
        return "", (), True
    for grown in (True, False):
        pairs = {past: _pairs(io, [spec for spec in floats if past in spec.dims], past, seq, grown=grown)
                 for past in lengths}  # fmt: skip
        found = [(past, pair, grown) for past, pair in pairs.items() if pair is not None]
        if len(found) > 1:
            raise _refused(f"each of {', '.join(past for past, _, _ in found)} may be the length of its cache")
        if found:
            return found[0]
    raise _refused(f"not every cache has an output with {lengths[0]}+{seq} or {seq} in place of {lengths[0]}")


def _pairs(io: IO, inputs: Sequence[TensorSpec], past: str, seq: str, *, grown: bool) -> tuple[Cached, ...] | None:
    """Each cache with its output: they are in the same order, and differ in the length alone."""
    lengths = (f"{past}+{seq}", f"{seq}+{past}") if grown else (seq,)
    followed: list[Cached] = []
    left = list(io.outputs)
    for spec in inputs:
        axis = spec.dims.index(past)
        wanted = [(*spec.dims[:axis], length, *spec.dims[axis + 1 :]) for length in lengths]
        output = next((each for each in left if each.dims in wanted), None)
        if output is None:
            return None
        followed.append((spec, output.name, axis))
        left.remove(output)
    return tuple(followed)


def _states(io: IO, inputs: Set[str], outputs: Set[str], batch: str) -> tuple[Cached, ...]:
    """Each state with its output, of the same dims and in the same order; `inputs` and `outputs` are something else."""
    followed: list[Cached] = []
    left = [spec for spec in io.outputs if spec.name not in outputs]
    for spec in io.inputs:
        output = next((each for each in left if each.dims == spec.dims), None)
        if spec.name not in inputs and output is not None and batch in spec.dims:
            followed.append((spec, output.name, None))
            left.remove(output)
    return tuple(followed)


def _grows(spec: TensorSpec, past: str, seq: str) -> bool:
    """Whether an input has a size that differs from step to step."""
    return any(isinstance(dim, str) and {past, seq} & names(dim) for dim in spec.dims)


def _mask(io: IO, carriers: Set[str | None], ids: TensorSpec, past: str) -> tuple[TensorSpec | None, bool]:
    batch, seq = ids.dims
    masks = [spec for spec in io.inputs if spec.name in carriers
             and (_grows(spec, past, str(seq)) or spec.dims == ids.dims)]  # fmt: skip
    if not masks:
        return None, True
    whole = masks[0].dims in (((batch, f"{past}+{seq}"), (batch, f"{seq}+{past}")) if past else (ids.dims,))
    held = [mask for mask in io.masks if mask.input == masks[0].name]
    plain = all(mask.carries == "mask" and mask.polarity == "keep" for mask in held)
    if len(masks) > 1 or not plain or not (whole or masks[0].dims == (batch, past)):
        raise _refused(f"there is no rule for its mask {masks[0]}")
    return masks[0], whole


def _refused(why: str) -> FeedError:
    return FeedError(f"the model does not generate: {why}. {HINT}")
