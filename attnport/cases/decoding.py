"""Cases of a decoder with a cache that are run token by token, and compared with one pass over all tokens."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.cases.inputs import Array, Case, case, random_feeds
from attnport.cases.sizes import LONGEST, largest
from attnport.decoders import decoder_roles, roles_in
from attnport.dims import Dim, TensorSpec
from attnport.masks.numpy_builders import numpy_dtype
from attnport_bundle.decoding.caches import Decoding, MakeSteps, Run, positions, steps_of

GROUP = "decode"
PROMPT = 8
STEPS = (32, 256)
_CONTEXT = 7
"""The size of what has another length than the tokens, such as what an encoder gave."""
_LEFT = 5
"""The padding at the left of the second text."""


def of_all_tokens(io: IOContract) -> IOContract:
    """The contract of the module itself, which takes all tokens in one pass also where its graph takes them one by one.

    Any other contract stays as it is.
    """
    roles = decoder_roles(io)
    if roles is None or isinstance(roles.ids.dims[1], str):
        return io
    seq = next(name for name in ("seq", "new_tokens", "seq_") if name not in {dim.name for dim in io.dims})
    pasts = [dim for dim in (roles.past, io.window and io.window.dim) if dim]
    lengths: dict[str | int, str] = {sum_: f"{past}+{seq}" for past in pasts for sum_ in (f"{past}+1", f"1+{past}")}
    by_token = (roles.ids, roles.mask, roles.positions, roles.window_mask)
    followed = {output for _, output, axis in roles.caches if axis is not None}

    def longer(spec: TensorSpec) -> TensorSpec:
        if spec not in by_token and spec.name not in followed:
            return spec
        alone = spec in by_token and spec.dims == roles.ids.dims
        dims = (spec.dims[0], seq) if alone else tuple(lengths.get(dim, dim) for dim in spec.dims)
        return dataclasses.replace(spec, dims=dims)

    inputs, outputs = (tuple(map(longer, specs)) for specs in (io.inputs, io.outputs))
    dims = (*io.dims, Dim(seq, 1, 1, min(LONGEST, roles.longest_past + 1)))
    return dataclasses.replace(io, inputs=inputs, outputs=outputs, dims=dims)


def in_steps(session: Any, io: IOContract, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What a session gives for all tokens of a decoding case, run as `generate` does: a prompt, then token by token.

    Where the session keeps the caches, it does so here.
    """
    if hasattr(session, "in_steps"):
        return dict(session.in_steps(feeds))  # in the process that has the session
    return stepped(lambda **given: session.run(given), io, feeds, PROMPT, steps_of(session))


def stepped(
    run: Run, io: IOContract, feeds: Mapping[str, Array], prompt: int, make_steps: MakeSteps | None = None
) -> dict[str, Array]:
    """The outputs of one pass over all tokens, computed by a prompt and then one token at a time.

    Args:
        prompt: How many of the tokens the prompt has, where the model takes several at a time.
        feeds: The inputs of a pass with an empty cache.
        make_steps: As of `Decoding`.
    """
    import numpy as np

    roles = roles_in(io)
    ids_BS = feeds[roles.ids.name]
    keep_BS = np.ones(ids_BS.shape, dtype=bool)
    if roles.mask and roles.mask_covers_new:
        keep_BS = feeds[roles.mask.name][:, roles.start :].astype(bool)
    context = {spec.name: feeds[spec.name] for spec in roles.context}
    decoding = Decoding(run, io, roles, make_steps, context)
    ends = range(min(prompt, roles.longest_seq), ids_BS.shape[1] + 1)
    logits = []
    gone: dict[str, list[Array]] = {spec.name: [] for spec, _, _ in roles.caches}
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if count := decoding.surplus:
            for spec, length_axis in roles.growing("window"):
                gone[spec.name].append(decoding.cache(spec.name).take(range(count), length_axis))
        decoding.push(ids_BS[:, start:end], keep_BS[:, start:end])
        logits.append(decoding.outputs[roles.logits.name])
    first = 0 if roles.returns_whole_cache else roles.start
    whole = {}
    for spec, output, axis in roles.caches:
        held = decoding.cache(spec.name)
        if axis is not None:
            held = np.concatenate([*gone[spec.name], held], axis).take(range(first, roles.start + ends[-1]), axis)
        whole[output] = held
    scores = np.concatenate(logits, axis=1) if roles.scores_every_token else logits[-1]
    made = {**whole, roles.logits.name: scores}
    return {spec.name: made[spec.name] for spec in io.outputs}


def decoding_cases(io: IOContract, seed: int = 0) -> Iterator[Case]:
    """Two texts, each a prompt and so many steps, one padded at the left where prompts may have several lengths.

    A model that does not generate has none.
    """
    io = of_all_tokens(io)
    roles = decoder_roles(io)
    if roles is None:
        return
    dims = {dim.name: dim for dim in io.dims}
    batch, seq = str(roles.ids.dims[0]), str(roles.ids.dims[1])
    most = largest(io, dims[seq])
    if roles.past:
        most = min(most, largest(io, dims[roles.past]) - roles.start + 1)
    for length in dict.fromkeys(min(PROMPT + steps, most) for steps in STEPS):
        name = f"decode, {length} tokens"
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        sizes = {dim.name: dim.at_least(_CONTEXT) for dim in io.dims} | {batch: dims[batch].at_least(2), seq: length}
        sizes |= {dim: roles.start for dim in (roles.past, io.window and io.window.dim) if dim}
        feeds = random_feeds(io, sizes, "right padding", rng)
        for spec, _, _ in roles.caches:
            feeds[spec.name] = np.zeros(spec.shape(sizes), numpy_dtype(spec.dtype))
        if roles.mask:
            mask_BT = np.ones(roles.mask.shape(sizes), roles.mask.dtype)
            mask_BT[:, : roles.start] = 0
            if roles.mask_covers_new and not roles.context and len(mask_BT) > 1 and length > PROMPT:
                mask_BT[1, : roles.start + _LEFT] = 0
            feeds[roles.mask.name] = mask_BT
        if roles.window_mask and roles.mask:
            feeds[roles.window_mask.name] = feeds[roles.mask.name].astype(roles.window_mask.dtype)
        if roles.positions and roles.mask:
            feeds[roles.positions.name] = positions(feeds[roles.mask.name]).astype(roles.positions.dtype)
        yield case(io, name, GROUP, {spec.name: feeds[spec.name] for spec in io.inputs})
