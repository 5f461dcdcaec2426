"""What each input and output of a decoder with a cache is for, read from its contract."""

from __future__ import annotations

from dataclasses import dataclass

from .contract import IO, TensorSpec
from .errors import FeedError

HINT = "Of hf:, export it with --with-past."


@dataclass(frozen=True)
class Roles:
    """The inputs and outputs of a decoder.

    Attributes:
        ids: The new tokens, `[batch, seq]`.
        mask: What says which tokens are real, `[batch, past+seq]`, or of the cache alone, `[batch, past]`.
        whole: Whether the mask is of all tokens.
        caches: Inputs with a length of `past`, each with the output that follows it and the axis of its length.
        grown: Whether these outputs are the whole cache, and not what is to be put behind it.
        logits: The output that scores the next token.
        each: Whether it does so for every new token, `[batch, seq, vocabulary]`, and not for the last, `[batch, ...]`.
        past, start: The dim of the cache's length, and how many empty places it begins with.
        longest_seq, longest_past: The most new tokens of a pass, and the most places of the cache.
    """

    ids: TensorSpec
    mask: TensorSpec | None
    whole: bool
    caches: tuple[tuple[TensorSpec, str, int], ...]
    grown: bool
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
    inputs = [spec for spec in io.inputs if spec.dtype.startswith(("float", "bfloat"))]
    if not inputs:
        raise _refused("it has no cache: no input is of floats")
    ids = [spec for spec in io.inputs if spec.high is not None and spec.name not in masks and len(spec.dims) == 2]
    if len(ids) != 1 or not all(isinstance(dim, str) for dim in ids[0].dims):
        raise _refused(f"it has {len(ids)} inputs of token ids [batch, seq]; expected one")
    batch, seq = (str(dim) for dim in ids[0].dims)
    named = {dim.name: dim for dim in io.dims}
    past = {str(dim) for spec in inputs for dim in spec.dims if dim in named} - {batch, seq}
    if len(past) != 1:
        raise _refused("it has no cache: no input of floats with a length of its own")
    name = past.pop()
    caches, grown = _pairs(io, [spec for spec in inputs if name in spec.dims], name, seq)
    logits = [spec for spec in io.outputs if spec.dims[:1] == (batch,) and spec.dims[-1] == ids[0].high
              and spec.dims[1:-1] in ((), (seq,))]  # fmt: skip
    if not logits:
        raise _refused(f"no output scores the {ids[0].high} ids")
    mask, whole = _mask(io, masks, batch, name, seq)
    start = named[name].min
    if start and mask is None:
        raise _refused(f"its cache cannot be empty: {name} is from {named[name].span}, and no mask hides a place")
    taken = {ids[0].name, *(spec.name for spec, _, _ in caches), *([mask.name] if mask else [])}
    if others := [spec.name for spec in io.inputs if spec.name not in taken]:
        raise _refused(f"it also takes {', '.join(others)}")
    return Roles(ids[0], mask, whole, caches, grown, logits[0], len(logits[0].dims) == 3, name,
                 start, named[seq].max, named[name].max)  # fmt: skip


def _pairs(
    io: IO, inputs: list[TensorSpec], past: str, seq: str
) -> tuple[tuple[tuple[TensorSpec, str, int], ...], bool]:
    """Each cache with its output: they are in the same order, and differ in the length alone."""
    for grown, lengths in ((True, (f"{past}+{seq}", f"{seq}+{past}")), (False, (seq,))):
        followed = []
        left = list(io.outputs)
        for spec in inputs:
            axis = spec.dims.index(past)
            for output in left:
                if output.dims in [(*spec.dims[:axis], length, *spec.dims[axis + 1 :]) for length in lengths]:
                    followed.append((spec, output.name, axis))
                    left.remove(output)
                    break
        if len(followed) == len(inputs):
            return tuple(followed), grown
    raise _refused(f"not every cache has an output with {past}+{seq} or {seq} in place of {past}")


def _mask(io: IO, names: set[str], batch: str, past: str, seq: str) -> tuple[TensorSpec | None, bool]:
    masks = [spec for spec in io.inputs if spec.name in names]
    if not masks:
        return None, True
    whole = masks[0].dims in ((batch, f"{past}+{seq}"), (batch, f"{seq}+{past}"))
    plain = all(mask.carries == "mask" and mask.polarity == "keep" for mask in io.masks if mask.input)
    if len(masks) > 1 or not plain or not (whole or masks[0].dims == (batch, past)):
        raise _refused(f"there is no rule for its mask {masks[0]}")
    return masks[0], whole


def _refused(why: str) -> FeedError:
    return FeedError(f"the model does not generate: {why}. {HINT}")
