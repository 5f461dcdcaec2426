"""What a spelling is: a module, its contract, and what recognition should read in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

E, H, D = 16, 4, 4
BATCH, SEQ, MEM = Dim("batch", 1, 2, 8), Dim("seq", 1, 5, 64), Dim("mem", 1, 7, 64)
PAST, CHUNK = Dim("past", 1, 3, 64), Dim("chunk", 1, 2, 8)
SIZES = (
    {"batch": 2, "seq": 5, "mem": 7, "past": 3, "chunk": 2},
    {"batch": 3, "seq": 1, "mem": 2, "past": 4, "chunk": 1},
    {"batch": 1, "seq": 11, "mem": 4, "past": 1, "chunk": 3},
)
Arrays = dict[str, np.ndarray[Any, Any]]
SDPA = "scaled_dot_product_attention"
X = TensorSpec("x", "float32", ("batch", "seq", E))
MEMORY = TensorSpec("memory", "float32", ("batch", "mem", E))
MASK = TensorSpec("mask", "int64", ("batch", "seq"))
MEMORY_MASK = TensorSpec("mask", "int64", ("batch", "mem"))
HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq"))
Y = TensorSpec("y", "float32", ("batch", "seq", E))
PADDING = MaskSpec(("padding",), "mask")


def _keep(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Hides the last third of each row's keys, but nothing of the last row's."""
    keep = np.ones(shape)
    keep[..., -max(1, shape[-1] // 3) :] = shape[-1] == 1
    keep[-1] = 1
    return keep


def _segments(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.sort(random.integers(0, 3, shape), axis=-1)


FEEDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray[Any, Any]]] = {
    "mask": _keep,
    "hidden": lambda random, shape: 1 - _keep(random, shape),
    "segments": _segments,
    "lengths": lambda random, shape: random.integers(1, 5, shape),
    "prefix": lambda random, shape: random.integers(0, 4, shape),
    "cap": lambda random, shape: random.uniform(0.5, 2.0, shape),
}
"""How an input of this name is made; any other is normal."""


def in_order(mask: str) -> str:
    """A mask's text with its kinds in alphabetical order."""
    kinds, bracket, source = mask.partition("(")
    return "+".join(sorted(kinds.split("+"))) + bracket + source


@dataclass(frozen=True)
class Case:
    """A module, what goes in and out, and what recognition should read.

    Attributes:
        masks: The mask of each counted attention, as text; its kinds may be read in any order.
        call: What the attentions were counted as.
        within: The largest error of a float32 form.
    """

    module: Callable[[], nn.Module]
    io: IOContract
    masks: str | tuple[str, ...]
    call: str = "softmax"
    within: float = 2e-5

    def expected(self, names: Sequence[str]) -> dict[str, str]:
        """The masks by name of the counted attentions, each with its kinds in order."""
        masks = (self.masks,) if isinstance(self.masks, str) else self.masks
        return {name: in_order(mask) for name, mask in zip(names, masks, strict=True)}

    def feeds(self, sizes: Mapping[str, int], *, seed: int = 0, empty_row: bool = False) -> Arrays:
        """Random inputs; masks hide some keys of each batch row, or all of row 0's."""
        random = np.random.default_rng(seed)
        made: Arrays = {}
        for spec in self.io.inputs:
            shape = spec.shape(sizes)
            array = FEEDS.get(spec.name, lambda random, shape: random.standard_normal(shape))(random, shape)
            if empty_row and spec.name in ("mask", "hidden"):
                array[0] = spec.name == "hidden"
            made[spec.name] = array.astype(spec.dtype)
        return made

    def reference(self, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
        """The module in float64."""
        module = self.module().eval().double()
        given = {k: torch.from_numpy(v.astype(np.float64) if v.dtype.kind == "f" else v) for k, v in feeds.items()}
        with torch.no_grad():
            found = module(**given)
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]


def contract(
    *inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (Y,), masks: tuple[MaskSpec, ...] = ()
) -> IOContract:
    """A contract over the dims that its tensors name."""
    used = {dim for spec in (*inputs, *outputs) for dim in spec.dims}
    return IOContract(inputs, outputs, tuple(dim for dim in (BATCH, SEQ, MEM, PAST, CHUNK) if dim.name in used), masks)


PLAIN = contract(X)
PADDED = contract(X, MASK, masks=(PADDING,))


def heads(name: str, length: str | int, count: int = H, depth: int = D) -> TensorSpec:
    """A tensor `[B,H,S,D]`."""
    return TensorSpec(name, "float32", ("batch", count, length, depth))


def flat(name: str, length: str | int, width: int = E) -> TensorSpec:
    """A tensor `[B,S,E]`."""
    return TensorSpec(name, "float32", ("batch", length, width))


def scores(q: Any, k: Any, scale: float = 1 / math.sqrt(D)) -> Any:
    """The usual spelling, for cases that are about something else."""
    return q @ k.transpose(-1, -2) * scale


def grid(q: Any, k: Any) -> tuple[Any, Any]:
    """Query and key numbers, `[S,1]` and `[1,T]`."""
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]


class Projected(nn.Module):
    """Projections around `attend(q, k, v, *masks)`, which a case gives; q, k, v are `[B,H,S,D]`.

    Inputs beside `x` and `memory` are handed on in the order in which they are declared here.
    """

    def __init__(self, attend: Callable[..., Any], heads: int = H, key_heads: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.attend, self.heads, self.key_heads = attend, heads, key_heads or heads
        self.q = nn.Linear(E, E)
        self.k = nn.Linear(E, E // heads * self.key_heads)
        self.v = nn.Linear(E, E // heads * self.key_heads)

    def split(self, x: Any, heads: int) -> Any:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def forward(
        self,
        x: Any,
        memory: Any = None,
        mask: Any = None,
        bias: Any = None,
        hidden: Any = None,
        segments: Any = None,
        lengths: Any = None,
        prefix: Any = None,
        cap: Any = None,
    ) -> Any:
        source = x if memory is None else memory
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(source), self.key_heads), self.v(source)
        given = (mask, bias, hidden, segments, lengths, prefix, cap)
        out = self.attend(q, k, self.split(v, self.key_heads), *(each for each in given if each is not None))
        out, *more = out if isinstance(out, tuple) else (out,)
        y = out.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
        return (y, *more) if more else y


def projected(
    attend: Callable[..., Any], io: IOContract = PLAIN, mask: str = "none", *, key_heads: int = H, **more: Any
) -> Case:
    """A case of `attend(q, k, v, *masks)` between projections."""
    return Case(lambda: Projected(attend, key_heads=key_heads), io, mask, **more)
