"""What each input and output of a decoder with a cache is for, read from its contract."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from .contract import IO, Dim, TensorSpec, Window
from .errors import FeedError
from .expressions import names

HINT = "Of hf:, export it with --with-past."
_UNLIMITED = (1 << 31) - 1
"""The places of a cache that no dim counts."""
Caches = tuple[tuple[TensorSpec, str, int | None], ...]
"""Inputs, each with the output that follows it and the axis of its length; a state has none."""


@dataclass(frozen=True)
class Kept:
    """Caches that hold the last places alone, those of layers with a sliding window.

    Attributes:
        names: Of their inputs.
        mask: What says which of these places and of the new tokens are real, `[batch, kept+seq]`.
        places: How many they hold at least, where there are as many.
        most: How many they hold at most.
    """

    names: Set[str]
    mask: TensorSpec
    places: int
    most: int


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
        longest_seq, longest_past: The most new tokens of a pass, and the most places before them.
        kept: The caches that hold the last places alone; None = all hold all.
        positions: The new tokens' positions, `[batch, seq]`, where the model does not count them itself.
    """

    ids: TensorSpec
    mask: TensorSpec | None
    whole: bool
    caches: Caches
    grown: bool
    context: tuple[TensorSpec, ...]
    logits: TensorSpec
    each: bool
    past: str
    start: int
    longest_seq: int
    longest_past: int
    kept: Kept | None = None
    positions: TensorSpec | None = None


def roles_of(io: IO) -> Roles:
    """The roles in a contract.

    Raises:
        FeedError: the model does not generate, with the reason.
    """
    masks = {mask.input for mask in io.masks if mask.input}
    floats = [spec for spec in io.inputs if spec.dtype.startswith(("float", "bfloat"))]
    if not floats:
        raise _refused("it has no cache: no input is of floats")
    window = io.window
    positions = next((spec for spec in io.inputs if window and spec.name == window.positions), None)
    ids = _ids(io, masks | ({positions.name} if positions else set()))
    batch, seq = (str(dim) for dim in ids.dims)
    named = {dim.name: dim for dim in io.dims}
    near = {spec.name for spec in io.inputs if window and _grows(spec, window.dim, window.dim)}
    # A mask of all tokens, which counts their positions, has the length of other caches.
    far = near if window and not positions else set()
    past, caches, grown = _caches(io, [spec for spec in floats if spec.name not in far], batch, seq)
    logits = [spec for spec in io.outputs if spec.dims[:1] == (batch,) and spec.dims[-1] == ids.high
              and spec.dims[1:-1] in ((), ids.dims[1:])]  # fmt: skip
    mask, whole = _mask(io, masks - far, ids, past)
    start = named[past].min if past else 0
    if start and mask is None:
        raise _refused(f"its cache cannot be empty: {past} is from {named[past].span}, and no mask hides a place")
    kept = None
    if window:
        pairs, kept = _kept(io, window, [spec for spec in floats if spec.name in near], masks & near, ids)
        if not past or not grown or named[window.dim].min != start:
            raise _refused(f"there is no rule for its window of {window.dim}")
        caches = caches if positions else (*caches, *pairs)
    others = (ids, mask, positions, kept and kept.mask)
    taken = {*(spec.name for spec, _, _ in caches), *(spec.name for spec in others if spec)}
    states = _states(io, taken, {output for _, output, _ in caches} | {spec.name for spec in logits[:1]}, batch)
    if not caches and not states:
        raise _refused("it has no cache: no input of floats with a length of its own, or with an output of its size")
    if not logits:
        raise _refused(f"no output scores the {ids.high} ids")
    taken |= {spec.name for spec, _, _ in states}
    context = tuple(spec for spec in io.inputs if spec.name not in taken)
    if growing := [spec.name for spec in context if _grows(spec, past, seq)]:
        raise _refused(f"it also takes {', '.join(growing)}")
    longest = named[seq].max if seq in named else 1
    return Roles(ids, mask, whole, (*caches, *states), grown, context, logits[0], len(logits[0].dims) == 3, past,
                 start, longest, _longest_past(named.get(past), kept, positions), kept, positions)  # fmt: skip


def _longest_past(past: Dim | None, kept: Kept | None, positions: TensorSpec | None) -> int:
    """The most places before new tokens: of a cache that holds all, or as many as there are positions."""
    if past is None:
        return _UNLIMITED
    if kept and kept.most < kept.places:  # so few that none may go
        return min(past.max, kept.most)
    return past.min + positions.high - 1 if positions and positions.high else past.max


def _kept(
    io: IO, window: Window, caches: Sequence[TensorSpec], masks: Set[str | None], ids: TensorSpec
) -> tuple[Caches, Kept]:
    """The caches of a window, each with its output, and what they hold."""
    seq = str(ids.dims[1])
    mask, whole = _mask(io, masks, ids, window.dim)
    pairs = _pairs(io, caches, window.dim, seq, grown=True)
    if mask is None or not whole or not pairs:
        raise _refused(f"its window of {window.dim} needs a mask, and for every cache an output, of {window.dim}+{seq}")
    most = next(dim.max for dim in io.dims if dim.name == window.dim)
    return pairs, Kept({spec.name for spec, _, _ in pairs}, mask, window.places, most)


def _ids(io: IO, others: Set[str | None]) -> TensorSpec:
    """The new tokens: no mask, and none of the others."""
    ids = [spec for spec in io.inputs if spec.high is not None and spec.name not in others and len(spec.dims) == 2]
    if len(ids) != 1 or isinstance(ids[0].dims[0], int) or ids[0].dims[1] not in (1, str(ids[0].dims[1])):
        raise _refused(f"it has {len(ids)} inputs of token ids [batch, seq]; expected one")
    return ids[0]


def _caches(io: IO, floats: Sequence[TensorSpec], batch: str, seq: str) -> tuple[str, Caches, bool]:
    """The dim of the cache's length, each cache with its output, and whether that is the whole cache."""
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


def _pairs(io: IO, inputs: Sequence[TensorSpec], past: str, seq: str, *, grown: bool) -> Caches | None:
    """Each cache with its output: they are in the same order, and differ in the length alone."""
    lengths = (f"{past}+{seq}", f"{seq}+{past}") if grown else (seq,)
    followed: list[tuple[TensorSpec, str, int | None]] = []
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


def _states(io: IO, inputs: Set[str], outputs: Set[str], batch: str) -> Caches:
    """Each state with its output, of the same dims and in the same order; `inputs` and `outputs` are something else."""
    followed: list[tuple[TensorSpec, str, int | None]] = []
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
