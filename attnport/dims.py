"""Optimization profiles and sizes as users write them. `Dim`, `TensorSpec` and `Profile` are the reader's own.

Shape legend, used in names, docstrings and ONNX dims: B batch, H heads, G key/value heads, S query length,
T key length, D head dim, E model dim.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnport.errors import FeedError, ProfileError
from attnport_bundle.contract import STRICT as STRICT
from attnport_bundle.contract import Dim as Dim
from attnport_bundle.contract import Profile as Profile
from attnport_bundle.contract import TensorSpec as TensorSpec
from attnport_bundle.feeds import not_an_array


def profiles_digest(profiles: Sequence[Profile]) -> str:
    """Eight hex digits that name a list of profiles in file names."""
    return hashlib.sha256(";".join(map(str, profiles)).encode()).hexdigest()[:8]


def parse_profile(text: str, dims: Sequence[Dim]) -> Profile:
    """Reads `batch=1:8:64,seq=1:128:512` against a model's own dims; a dim left out keeps its range.

    Raises:
        ProfileError: malformed text, an unknown or repeated dim, min > opt > max, or a size beyond the model's limit.
    """
    known = {dim.name: dim for dim in dims}
    given: dict[str, Dim] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"([A-Za-z_]\w*)\s*=\s*(\d{1,18})(?::(\d{1,18}):(\d{1,18}))?", part)
        if not match:
            raise ProfileError(
                f"{text!r}: cannot read {part!r}.",
                hint="Write DIM=SIZE or DIM=LEAST:USUAL:LARGEST, for example seq=128 or seq=1:128:512.",
            )
        name, low, opt, high = match.groups()
        if name not in known:
            raise ProfileError(f"{text!r}: got dim {name!r}; the model's dims are {', '.join(known) or 'none'}.")
        if name in given:
            raise ProfileError(f"{text!r}: dim {name!r} is given twice.")
        dim = Dim(name, int(low), int(opt or low), int(high or low))
        limit = known[name]
        if dim.min < limit.min or dim.max > limit.max:
            raise ProfileError(f"{text!r}: got {dim}; the model takes {limit.name} from {limit.min} to {limit.max}.")
        given[name] = dim
    return Profile(tuple(given.get(dim.name, dim) for dim in dims))


def parse_sizes(text: str, dims: Iterable[Dim]) -> dict[str, int]:
    """Reads `batch=8,seq=128` into sizes; a dim left out takes its opt. Raises ProfileError as `parse_profile`."""
    profile = parse_profile(text, tuple(dims))
    return {dim.name: dim.opt for dim in profile.dims}


def check_feeds(inputs: Sequence[TensorSpec], dims: Sequence[Dim], feeds: Mapping[str, object]) -> dict[str, int]:
    """Checks arrays against the declared inputs and returns the size of each named dim.

    Args:
        inputs: The declared inputs.
        dims: The named dims with their ranges.
        feeds: A NumPy array or a torch tensor for each input.

    Raises:
        FeedError: a missing or unknown name, a wrong dtype, rank or size; names the tensor, got and expected.
    """
    declared = {spec.name: spec for spec in inputs}
    for name in feeds:
        if name not in declared:
            raise FeedError(f"input {name!r}: the model has no such input; expected {', '.join(declared)}.")
    ranges = {dim.name: dim for dim in dims}
    sizes: dict[str, int] = {}
    bound_by: dict[str, str] = {}
    for spec in inputs:
        if spec.name not in feeds:
            raise FeedError(f"input {spec.name!r} is missing; expected {spec}.")
        got_dtype, got_shape = _dtype_and_shape(spec, feeds[spec.name])
        if got_dtype != spec.dtype:
            raise FeedError(f"input {spec.name!r}: got dtype {got_dtype}; expected {spec.dtype}.")
        if len(got_shape) != len(spec.dims):
            raise FeedError(
                f"input {spec.name!r}: got rank {len(got_shape)}, shape {list(got_shape)}; "
                f"expected rank {len(spec.dims)}, {spec}."
            )
        for axis, (got, dim) in enumerate(zip(got_shape, spec.dims, strict=True)):
            got = int(got)
            if isinstance(dim, int):
                if got != dim:
                    raise FeedError(f"input {spec.name!r}: got size {got} on axis {axis}; expected {dim}.")
            elif dim in sizes and sizes[dim] != got:
                raise FeedError(
                    f"input {spec.name!r}: got {dim}={got} on axis {axis}; "
                    f"expected {dim}={sizes[dim]} as in input {bound_by[dim]!r}."
                )
            elif not ranges[dim].min <= got <= ranges[dim].max:
                raise FeedError(
                    f"input {spec.name!r}: got {dim}={got} on axis {axis}; "
                    f"expected {ranges[dim].min} to {ranges[dim].max}."
                )
            else:
                sizes[dim], bound_by[dim] = got, spec.name
    return sizes


def _dtype_and_shape(spec: TensorSpec, value: Any) -> tuple[str, tuple[int, ...]]:
    """Those of an array or torch tensor. Raises FeedError for anything else."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    problem = not_an_array(value, spec.dtype)
    if problem:
        raise FeedError(f"input {spec.name!r}: {problem}.")
    array = np.asarray(value)  # what a subclass says of itself need not be so
    return str(array.dtype), array.shape
