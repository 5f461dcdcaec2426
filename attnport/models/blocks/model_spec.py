"""The ModelSpec of a model of ours: it is called as its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnport.artifacts import IOContract, ModelSpec, Source

if TYPE_CHECKING:
    from torch import nn


def model_spec(module: str, io: IOContract, make: Callable[[], nn.Module]) -> ModelSpec:
    """What a model's file gives for itself.

    Args:
        module: The file's `__name__`.
        io: What goes in and out.
        make: Makes the module.
    """
    name = module.rpartition(".")[2]
    return ModelSpec(name=name, source=Source(text=name), io=io, make=make)
