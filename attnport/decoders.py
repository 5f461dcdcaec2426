"""Finds what each input and output of a decoder with a cache is for, from its contract."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

from attnport.artifacts import IOContract, TensorSpec, Window
from attnport.errors import UsageError
from attnport_bundle.errors import FeedError
from attnport_bundle.format.contract import dims_in
from attnport_bundle.format.decoder import Cache, Covers, Decoder, Roles, not_generating
from attnport_bundle.format.decoder import Window as Kept


def decoder_of(io: IOContract) -> Decoder:
    """The decoder in a contract.

    Raises:
        FeedError: the model does not generate, with the reason.
    """
    decoder = _found(io)
    try:
        Roles(io, decoder)
    except UsageError as err:
        raise not_generating(str(err).removeprefix("decoder: ").rstrip(".")) from err
    return decoder


def roles_in(io: IOContract) -> Roles:
    """What the inputs and outputs of a decoder with a cache are for. Raises as `decoder_of`."""
    return Roles(io, decoder_of(io))


def decoder_roles(io: IOContract) -> Roles | None:
    """As `roles_in`; None for a model that does not generate."""
    try:
        return roles_in(io)
    except FeedError:
        return None


def is_declared(io: IOContract) -> bool:
    """Whether a contract says something that is of decoders alone."""
    return bool(io.stop or io.start or io.rules or io.window)


def _found(io: IOContract) -> Decoder:
    masks = {mask.input for mask in io.masks if mask.input}
    floats = [spec for spec in io.inputs if spec.dtype.startswith(("float", "bfloat"))]
    if not floats:
        raise not_generating("it has no cache: no input is of floats")
    window = io.window
    positions = window.positions if window else None
    ids = _ids(io, masks | {positions})
    batch, seq = (str(dim) for dim in ids.dims)
    near = {spec.name for spec in io.inputs if window and _grows(spec, window.dim, window.dim)}
    # A mask of all tokens, which counts their positions, has the length of other caches.
    apart = near if window and not positions else set[str]()
    past, growing, whole = _growing(io, [spec for spec in floats if spec.name not in apart], batch, seq)
    logits = [spec for spec in io.outputs if spec.dims[:1] == (batch,) and spec.dims[-1] == ids.high
              and spec.dims[1:-1] in ((), ids.dims[1:])]  # fmt: skip
    mask, covers = _mask(io, masks - apart, ids, past)
    start = next((dim.min for dim in io.dims if dim.name == past), 0)
    if start and mask is None:
        span = next(dim.span for dim in io.dims if dim.name == past)
        raise not_generating(f"its cache cannot be empty: {past} is from {span}, and no mask hides a place")
    caches = [Cache(*pair, "window" if pair[0] in near else "all") for pair in growing]
    kept = None
    if window:
        pairs, kept_mask = _kept(io, window, [spec for spec in floats if spec.name in near], masks & near, ids)
        if not past or not whole or next(dim.min for dim in io.dims if dim.name == window.dim) != start:
            raise not_generating(f"there is no rule for its window of {window.dim}")
        kept = Kept(None if positions else kept_mask, window.places)
        caches += [] if positions else [Cache(*pair, "window") for pair in pairs]
    taken = {ids.name, mask, positions, kept.mask if kept else None, *(cache.input for cache in caches)}
    given = {cache.output for cache in caches} | {spec.name for spec in logits[:1]}
    states = _states(io, taken, given, batch)
    if not caches and not states:
        raise not_generating(
            "it has no cache: no input of floats with a length of its own, or with an output of its size"
        )
    if not logits:
        raise not_generating(f"no output scores the {ids.high} ids")
    holds: Literal["all", "new"] | None = ("all" if whole else "new") if caches else None
    return Decoder(ids.name, mask, covers, positions, logits[0].name, (*caches, *states), holds, kept, io.stop,
                   io.start, io.rules)  # fmt: skip


def _kept(
    io: IOContract, window: Window, caches: Sequence[TensorSpec], masks: Set[str | None], ids: TensorSpec
) -> tuple[Sequence[tuple[str, str, int]], str]:
    """The caches of a window, each with its output, and the mask of what they hold."""
    seq = str(ids.dims[1])
    mask, covers = _mask(io, masks, ids, window.dim)
    pairs = _pairs(io, caches, window.dim, [f"{window.dim}+{seq}", f"{seq}+{window.dim}"])
    if mask is None or covers != "all" or not pairs:
        raise not_generating(
            f"its window of {window.dim} needs a mask, and for every cache an output, of {window.dim}+{seq}"
        )
    return pairs, mask


def _ids(io: IOContract, others: Set[str | None]) -> TensorSpec:
    """The new tokens: no mask, and none of the others."""
    ids = [spec for spec in io.inputs if spec.high is not None and spec.name not in others and len(spec.dims) == 2]
    if len(ids) != 1 or isinstance(ids[0].dims[0], int) or ids[0].dims[1] not in (1, str(ids[0].dims[1])):
        raise not_generating(f"it has {len(ids)} inputs of token ids [batch, seq]; expected one")
    return ids[0]


def _growing(
    io: IOContract, floats: Sequence[TensorSpec], batch: str, seq: str
) -> tuple[str, Sequence[tuple[str, str, int]], bool]:
    """The dim of the cache's length, each cache with its output, and whether that is the whole cache."""
    lengths = [
        dim.name for dim in io.dims if dim.name not in (batch, seq) and any(dim.name in spec.dims for spec in floats)
    ]
    if not lengths:
        return "", (), True
    for whole in (True, False):
        found = []
        for past in lengths:
            followed = [f"{past}+{seq}", f"{seq}+{past}"] if whole else [seq]
            pairs = _pairs(io, [spec for spec in floats if past in spec.dims], past, followed)
            if pairs is not None:
                found.append((past, pairs, whole))
        if len(found) > 1:
            raise not_generating(f"each of {', '.join(past for past, _, _ in found)} may be the length of its cache")
        if found:
            return found[0]
    raise not_generating(f"not every cache has an output with {lengths[0]}+{seq} or {seq} in place of {lengths[0]}")


def _pairs(
    io: IOContract, inputs: Sequence[TensorSpec], past: str, lengths: Sequence[str]
) -> Sequence[tuple[str, str, int]] | None:
    """Each cache with its output and the axis of its length: they have one order, and differ in the length alone."""
    followed: list[tuple[str, str, int]] = []
    left = list(io.outputs)
    for spec in inputs:
        axis = spec.dims.index(past)
        wanted = [(*spec.dims[:axis], length, *spec.dims[axis + 1 :]) for length in lengths]
        output = next((each for each in left if each.dims in wanted), None)
        if output is None:
            return None
        followed.append((spec.name, output.name, axis))
        left.remove(output)
    return followed


def _states(io: IOContract, inputs: Set[str | None], outputs: Set[str], batch: str) -> list[Cache]:
    """Each state with its output, of the same dims and in the same order; `inputs` and `outputs` are something else."""
    followed: list[Cache] = []
    left = [spec for spec in io.outputs if spec.name not in outputs]
    for spec in io.inputs:
        output = next((each for each in left if each.dims == spec.dims), None)
        if spec.name not in inputs and output is not None and batch in spec.dims:
            followed.append(Cache(spec.name, output.name, None, None))
            left.remove(output)
    return followed


def _grows(spec: TensorSpec, past: str, seq: str) -> bool:
    """Whether an input has a size that differs from step to step."""
    return any(isinstance(dim, str) and {past, seq} & dims_in(dim) for dim in spec.dims)


def _mask(io: IOContract, carriers: Set[str | None], ids: TensorSpec, past: str) -> tuple[str | None, Covers | None]:
    """The mask of real tokens, and which it covers."""
    batch, seq = ids.dims
    masks = [spec for spec in io.inputs if spec.name in carriers
             and (_grows(spec, past, str(seq)) or spec.dims == ids.dims)]  # fmt: skip
    if not masks:
        return None, None
    covered: dict[tuple[str | int, ...], Covers] = {(batch, seq): "new"}
    if past:
        covered = {(batch, f"{past}+{seq}"): "all", (batch, f"{seq}+{past}"): "all", (batch, past): "past"}
    if len(masks) > 1 or masks[0].dims not in covered:
        raise not_generating(f"there is no rule for its mask {masks[0]}")
    return masks[0].name, covered[masks[0].dims]
