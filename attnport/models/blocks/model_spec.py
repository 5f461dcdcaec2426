"""The ModelSpec of a built-in model, which is named after its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnport.artifacts import IOContract, ModelSpec, Source

if TYPE_CHECKING:
    from torch import nn


def model_spec(module: str, io: IOContract, make: Callable[[], nn.Module]) -> ModelSpec:
    """The ModelSpec for a model's file.

    Args:
        module: The file's `__name__`.
        io: The inputs and outputs.
        make: Makes the module.
    """
    name = module.rpartition(".")[2]
    return ModelSpec(name=name, source=Source(text=name), io=io, make=make)
