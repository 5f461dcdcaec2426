"""What a module of this folder is tried with: how it is declared, how it is called, and at which ten sizes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from attnport.dims import TensorSpec
from attnport.sources.parsing import parse_input

Sizes = dict[str, int]
Values = Callable[[Sizes, torch.Generator], torch.Tensor]

BATCH = (3, 1, 2, 5, 4, 1, 7, 2, 6, 8)
SEQ = (11, 1, 2, 7, 16, 33, 64, 5, 77, 128)
MORE = (7, 2, 1, 16, 5, 9, 3, 40, 12, 64)


@dataclass(frozen=True)
class Case:
    """A factory and what its module is tried with.

    Attributes:
        inputs: Declarations as `--input` takes them, in the order of the forward. A tensor inside of a tuple, a list or
            a dict has the name that torch gives it: `features_0` for `features[0]`, `batch_ids` for `batch["ids"]`.
        sizes: Ten assignments of all dims; the first is the example that is traced.
        nest: Puts the tensors, by declared name, into the arguments: a dict of keyword arguments or a tuple. It is
            called with tensors, and again with what torch's `dynamic_shapes` says of each.
        shapes: As `nest`, for `dynamic_shapes` alone, where torch wants them nested otherwise: those of `*args` in a
            tuple of their own, those of `**kwargs` in a dict.
        values: Tensors that a declaration does not describe, by name.
        kept: The name of a padding mask `[batch,seq]`: outputs are compared at its real tokens only.
        tolerance: Of the largest difference, relative to the output's largest magnitude.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    dims: tuple[str, ...] = ()
    nest: Callable[[dict[str, Any]], Any] = dict
    shapes: Callable[[dict[str, Any]], Any] | None = None
    values: Mapping[str, Values] | None = None
    kept: str = ""
    tolerance: float = 1e-4

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(parse_input(text).spec for text in self.inputs)

    def call(self, tensors: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and the keyword arguments of the module."""
        nested = self.nest(dict(tensors))
        return (nested, {}) if isinstance(nested, tuple) else ((), nested)

    def feeds(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        """A tensor for each input, the same each time."""
        feeds = {}
        for text, spec in zip(self.inputs, self.specs, strict=True):
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name} {spec.name} {sizes}".encode()))
            own = (self.values or {}).get(spec.name)
            feeds[spec.name] = own(sizes, generator) if own else _value(text, spec, sizes, generator)
        return feeds


def door(
    *inputs: str, sizes: Sequence[Sizes] = (), **others: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Marks a factory as a case; `others` are the fields of `Case`. Without sizes: those of batch and seq."""

    def mark(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        vars(make)["case"] = Case(make.__name__, make, inputs, tuple(sizes or ten()), **others)
        return make

    return mark


def cases_of(module: ModuleType) -> Iterator[Case]:
    """The cases that a file defines, in its order."""
    for value in vars(module).values():
        case = getattr(value, "case", None)
        if isinstance(case, Case) and case.make.__module__ == module.__name__:
            yield case


def ten(batch: Sequence[int] = BATCH, seq: Sequence[int] = SEQ, **others: Sequence[int]) -> tuple[Sizes, ...]:
    """Ten assignments of `batch`, `seq` and others; an empty sequence leaves the dim out."""
    dims = {name: sizes for name, sizes in {"batch": batch, "seq": seq, **others}.items() if sizes}
    assert all(len(sizes) == 10 and sizes[0] > 1 for sizes in dims.values())
    return tuple({name: sizes[at] for name, sizes in dims.items()} for at in range(10))


def spec_of(case: Case) -> str:
    """The SPEC of a case's factory."""
    return f"{Path(case.make.__code__.co_filename)}:{case.name}"


def right_padding(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """An int64 mask `[batch,seq]` with one real token at least in each item."""
    lengths = torch.randint(1, sizes["seq"] + 1, (sizes["batch"], 1), generator=generator)
    lengths[0] = sizes["seq"]
    return (torch.arange(sizes["seq"]) < lengths).long()


def left_padding(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return right_padding(sizes, generator).flip(1)


def _value(text: str, spec: TensorSpec, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    shape, dtype = spec.shape(sizes), getattr(torch, spec.dtype)
    if ":padding" in text and len(shape) == 1:
        return torch.randint(1, sizes["seq"] + 1, shape, generator=generator).to(dtype)
    if ":padding" in text:
        mask = right_padding({"batch": shape[0], "seq": shape[-1]}, generator)
        return (1 - mask if ":hide" in text else mask).to(dtype).reshape(shape)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, spec.high or 2, shape, generator=generator).to(dtype)
