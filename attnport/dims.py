"""Parses optimization profiles and sizes as users write them; `Dim`, `TensorSpec` and `Profile` are the reader's.

Shape legend, used in names, docstrings and ONNX dims: B batch, H heads, G key/value heads, S query length,
T key length, D head dim, E model dim.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from attnport.errors import ProfileError, nearest
from attnport_bundle.format.contract import IO
from attnport_bundle.format.contract import Dim as Dim
from attnport_bundle.format.contract import Profile as Profile
from attnport_bundle.format.contract import TensorSpec as TensorSpec

_MOST_LABELS = 8
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59)


@dataclass(frozen=True)
class Symbol:
    """A dim of examples, whose range is not known yet. Dims with equal names are always equal.

    Attributes:
        name: A name, or an expression of names where the size follows from others.
        smallest, largest: The sizes that are known to be allowed; `largest` None = no limit.
        by: Who says that it is dynamic: torch's `trace`; the `module`, which runs at other sizes where the trace has
            one; or the `user`.
    """

    name: str
    smallest: int = 1
    largest: int | None = None
    by: Literal["trace", "module", "user"] = "trace"


def said_by(dim: Symbol | int) -> str:
    """Who says that a dim is dynamic, as `Symbol.by`; "" for a size."""
    return "" if isinstance(dim, int) else dim.by


def values_of(spec: TensorSpec, io: IO) -> str:
    """What a tensor's elements are, as far as its contract says: `padding mask, keep`, `0 to 30521`, `negative,
    positive`; of whole numbers that go in without a limit, that there is none."""
    if masks := [mask for mask in io.masks if mask.input == spec.name]:
        held = f"{'+'.join(masks[0].kinds)} {masks[0].carries}"
        return f"{held}, {masks[0].polarity}" if masks[0].carries == "mask" else held
    if len(spec.labels) > _MOST_LABELS:
        return f"{len(spec.labels)} classes: {', '.join(spec.labels[:2])}, ... {spec.labels[-1]}"
    if spec in io.inputs and spec.dtype in ("int32", "int64") and not spec.high:
        return "no limit declared"
    return f"0 to {spec.high - 1}" if spec.high else ", ".join(spec.labels)


def profiles_digest(profiles: Sequence[Profile]) -> str:
    """Eight hex digits that identify a list of profiles in file names."""
    return hashlib.sha256(";".join(map(str, profiles)).encode()).hexdigest()[:8]


def parse_profile(text: str, dims: Sequence[Dim]) -> Profile:
    """Parses `batch=1:8:64,seq=1:128:512` for a model's dims; a dim that is left out keeps its range.

    Raises:
        ProfileError: the text is malformed, a dim is unknown or repeated, or its sizes are not in order or exceed the
            model's limits.
    """
    known = {dim.name: dim for dim in dims}
    given: dict[str, Dim] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"([A-Za-z_]\w*)\s*=\s*(\d{1,18})(?::(\d{1,18}):(\d{1,18}))?", part)
        if not match:
            raise ProfileError(
                f"{text!r}: cannot read {part!r}.",
                hint="Write DIM=SIZE or DIM=SMALLEST:USUAL:LARGEST, for example seq=128 or seq=1:128:512.",
            )
        name, low, opt, high = match.groups()
        if name not in known:
            raise ProfileError(
                f"{text!r}: got dim {name!r}; the model's dims are {', '.join(known) or 'none'}.",
                hint=nearest(name, known),
            )
        if name in given:
            raise ProfileError(f"{text!r}: dim {name!r} is given twice.")
        limit = known[name]
        sizes = int(low), int(opt or low), int(high or low)
        if not all(map(limit.takes, sizes)):
            got = ":".join(map(str, sizes)) if high else low
            raise ProfileError(f"{text!r}: got {name}={got}; the model takes {name} from {limit.span}.")
        dim = Dim(name, *sizes, limit.step)
        given[name] = dim
    return Profile(tuple(given.get(dim.name, dim) for dim in dims))


def parse_sizes(text: str, dims: Iterable[Dim]) -> dict[str, int]:
    """Parses sizes such as `batch=8,seq=128`; other dims have their opt size. Raises as `parse_profile`."""
    profile = parse_profile(text, tuple(dims))
    return {dim.name: dim.opt for dim in profile.dims}


def prime(index: int) -> int:
    """A small prime for each of the first dims of a model; for further ones, other odd numbers."""
    return _PRIMES[index] if index < len(_PRIMES) else 2 * index + 29


def distinct_sizes(dims: Sequence[Dim]) -> dict[str, int]:
    """Small sizes of all dims to try first: a prime for each, where its range allows."""
    return {dim.name: dim.at_least(prime(index)) for index, dim in enumerate(dims)}
