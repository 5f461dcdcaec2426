"""Casts a module to the type of a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def cast(
    module: torch.nn.Module, dtype: torch.dtype, put: Callable[[Any], Any] = lambda weight: weight
) -> torch.nn.Module:
    """A copy in another type; a cast works in place, and a maker may hand out one module several times.

    `put` brings each weight to a device, where it is cast: a GPU is quick at that, and holds one weight twice at most.

    `Module.to` would take the imaginary parts of complex weights away. They become as precise as float64, and stay
    otherwise, as `Module.half` has it.
    """
    import torch

    def to(given: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = put(given)
        if weight.is_complex():
            return weight.to(torch.complex128) if dtype == torch.float64 else weight
        return weight.to(dtype) if weight.is_floating_point() else weight

    copied: torch.nn.Module = copy.deepcopy(module)
    copied._apply(to)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return copied
