"""Named dimensions, tensor declarations and optimization profiles.

Shape legend, used in names, docstrings and ONNX dims: B batch, H heads, G key/value heads, S query length,
T key length, D head dim, E model dim.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnport.errors import FeedError, ProfileError, UsageError
from attnport_bundle.feeds import not_an_array

STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
"""pydantic's configuration of every value that is read from disk (a plain dict: nothing is imported)."""

DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "bool")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Dim:
    """A named dimension that stays dynamic: its smallest, usual and largest size."""

    name: str
    min: int
    opt: int
    max: int

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.name):
            raise ProfileError(f"dim name {self.name!r} is not an identifier.")
        if not 1 <= self.min <= self.opt <= self.max:
            raise ProfileError(
                f"dim {self.name}: got min={self.min}, opt={self.opt}, max={self.max}; expected 1 <= min <= opt <= max."
            )

    def __str__(self) -> str:
        return f"{self.name}={self.min}:{self.opt}:{self.max}"


@dataclass(frozen=True)
class TensorSpec:
    """A declared input or output: name, dtype and dims (names of dynamic dims, or fixed sizes).

    `high` bounds an integer input's values (exclusive), as a vocabulary bounds token ids.
    """

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    high: int | None = None

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"{self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}.")

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The concrete shape for `sizes`, a size for each named dim."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)

    def __str__(self) -> str:
        return f"{self.name}={self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Profile:
    """An optimization profile: a range for every named dim of a model."""

    dims: tuple[Dim, ...]

    __pydantic_config__ = STRICT

    def __str__(self) -> str:
        return ",".join(map(str, self.dims))

    def sizes(self, which: str) -> dict[str, int]:
        """The sizes at `which` of `min`, `opt`, `max`."""
        return {dim.name: getattr(dim, which) for dim in self.dims}

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether every size lies in its dim's range."""
        return all(dim.min <= sizes[dim.name] <= dim.max for dim in self.dims)


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
