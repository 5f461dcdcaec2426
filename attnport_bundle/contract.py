"""The contract of a bundled model: what goes in and out, named dims with their ranges, masks, profiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DTYPES = ("float32", "float16", "float64", "int32", "int64", "bool")
KINDS = ("none", "padding", "causal", "window", "prefix", "documents", "global", "bias", "explicit")
CARRIES = {"mask": KINDS, "lengths": ("padding", "prefix"), "ids": ("documents",), "marks": ("global",)}
"""What an input may hold, and the kinds that it can say by that."""

_INTEGERS = ("int32", "int64")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Polarity = Literal["keep", "hide", "additive"]
Alignment = Literal["upper_left", "lower_right"]
Content = Literal["mask", "lengths", "ids", "marks"]


@dataclass(frozen=True)
class Dim:
    """A named dimension: the model takes sizes from `min` to `max`."""

    name: str
    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.name) or not 1 <= self.min <= self.opt <= self.max:
            raise ValueError(f"dim {self.name!r}: expected a name and 1 <= min <= opt <= max")


@dataclass(frozen=True)
class Tensor:
    """An input or output. `dims`: names of dims, or fixed sizes. `high` bounds an integer input's values, exclusive."""

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    high: int | None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"tensor {self.name!r}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.high is not None and (self.dtype not in _INTEGERS or self.high < 1):
            raise ValueError(f"tensor {self.name!r}: got high {self.high} for {self.dtype}; expected 1 up, of integers")

    def __str__(self) -> str:
        return f"{self.name}={self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Mask:
    """What a mask means.

    Attributes:
        polarity: Of a `mask`: `keep` (nonzero may be attended), `hide` (nonzero is hidden) or `additive`.
        carries: What the input holds: a `mask`, `lengths` [B], `ids` of documents [B,T] or `marks` of global tokens.
        keys: The dim whose positions `lengths` count; None for everything else.
    """

    kinds: tuple[str, ...]
    input: str | None
    polarity: Polarity
    alignment: Alignment
    window: int
    carries: Content = "mask"
    keys: str | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ValueError(f"mask kind {', '.join(unknown) or 'missing'} is not one of {', '.join(KINDS)}")
        if len(set(self.kinds)) != len(self.kinds) or ("none" in self.kinds and len(self.kinds) > 1):
            raise ValueError(f"mask kinds {', '.join(self.kinds)}: each is there once, and none is alone")
        if self.window < 0 or (self.window and "window" not in self.kinds):
            raise ValueError(f"got window {self.window}; expected 0, or more with the kind window")
        if (self.keys is None) is (self.carries == "lengths"):
            raise ValueError(f"a mask that carries {self.carries} has keys {self.keys!r}; lengths alone count a dim")
        if self.carries != "mask":
            self._check_said()

    def _check_said(self) -> None:
        """Raises ValueError unless the kinds are what lengths, ids or marks can say."""
        said = [kind for kind in self.kinds if kind in CARRIES[self.carries]]
        beside = {"causal", "window", "bias", *["padding"] * (self.carries == "ids")}
        if len(said) != 1 or not set(self.kinds) <= {*said, *beside}:
            raise ValueError(f"{self.carries} cannot say {', '.join(self.kinds)}")
        if self.polarity != "keep":
            raise ValueError(f"got polarity {self.polarity} for {self.carries}; only a mask has one")


@dataclass(frozen=True)
class IO:
    """The contract of inputs and outputs."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dims: tuple[Dim, ...]
    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        for names in ([x.name for x in self.inputs], [x.name for x in self.outputs], [dim.name for dim in self.dims]):
            if len(set(names)) != len(names):
                raise ValueError(f"a name is there twice among {', '.join(names)}")
        known = {dim.name for dim in self.dims}
        for tensor in (*self.inputs, *self.outputs):
            for dim in tensor.dims:
                if dim not in known if isinstance(dim, str) else dim < 0:
                    raise ValueError(f"tensor {tensor.name!r}: got dim {dim!r}; known are {', '.join(sorted(known))}")
        for tensor in self.outputs:
            if tensor.high is not None:
                raise ValueError(f"output {tensor.name!r}: got high {tensor.high}; only inputs have one")
        inputs = {tensor.name: tensor for tensor in self.inputs}
        for mask in self.masks:
            _check_carried(mask, None if mask.input is None else inputs.get(mask.input), known)
        if not self.inputs or not self.outputs:
            raise ValueError("a model has at least one input and one output")


def _check_carried(mask: Mask, carrier: Tensor | None, dims: set[str]) -> None:
    """Raises ValueError unless the input that carries a mask, and the dims, are what the mask says."""
    if carrier is None and (mask.input is not None or mask.carries != "mask"):
        raise ValueError(f"a mask is carried by {mask.input!r}, which is no input")
    rank = {"lengths": 1, "ids": 2, "marks": 2}.get(mask.carries)
    if carrier is not None and rank is not None and len(carrier.dims) != rank:
        raise ValueError(f"{carrier} carries {mask.carries}, which have rank {rank}")
    if carrier is not None and mask.carries in ("lengths", "ids") and carrier.dtype not in _INTEGERS:
        raise ValueError(f"{carrier} carries {mask.carries}, which are integers")
    if carrier is not None and mask.polarity == "additive" and not carrier.dtype.startswith("float"):
        raise ValueError(f"{carrier} carries an additive mask, which is of floats")
    if mask.keys is not None and mask.keys not in dims:
        raise ValueError(f"{mask.input!r} counts {mask.keys!r}, which is no dim")


@dataclass(frozen=True)
class Profile:
    """An optimization profile of an engine: a range, inside the model's own, for every named dim."""

    dims: tuple[Dim, ...]

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether every size lies in its dim's range; a dim without a size does not matter."""
        return all(dim.min <= sizes.get(dim.name, dim.min) <= dim.max for dim in self.dims)

    def check(self, io: IO) -> None:
        """Raises ValueError unless it has the model's dims, in order, each inside its range."""
        if [dim.name for dim in self.dims] != [dim.name for dim in io.dims]:
            raise ValueError(f"a profile has dims {[dim.name for dim in self.dims]}; the model's are others")
        for own, limit in zip(self.dims, io.dims, strict=True):
            if own.min < limit.min or own.max > limit.max:
                raise ValueError(f"a profile has {own.name} from {own.min} to {own.max}, beyond the model's range")
