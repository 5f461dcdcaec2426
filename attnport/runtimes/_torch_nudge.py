"""Weights and inputs moved by one rounding, each to a side that is drawn: another sample of what rounding does.

The result for moved values is as good an answer as that for the given ones, since these were rounded themselves. Where
it is far away, the task and not the runtime makes the error: softmax between two scores of thousands that nearly tie.
(Monte Carlo arithmetic: D. Stott Parker, 1997; here the data are perturbed, not each operation.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def draw(seed: int) -> torch.Generator:
    """A generator of sides, on the CPU."""
    import torch

    return torch.Generator().manual_seed(seed)


def nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A copy with each element moved to a neighbour in its type; zeros and what is not finite stay.

    Args:
        tensor: On any device; returned as it is unless dense and of a floating type of 16, 32 or 64 bits.
        generator: As `draw` makes it.
    """
    import torch

    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    dense = type(tensor) is torch.Tensor and tensor.layout is torch.strided  # a class of its own may hold other bits
    if whole is None or not dense or not tensor.is_floating_point():
        return tensor
    sides = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device)
    moved = (tensor.view(whole) + (2 * sides - 1).to(whole)).view(tensor.dtype)
    return torch.where((tensor != 0) & tensor.isfinite() & moved.isfinite(), moved, tensor)


def nudge_parameters(module: torch.nn.Module, generator: torch.Generator) -> torch.nn.Module:
    """Moves every weight of a module in place; returns it."""
    for parameter in module.parameters():
        parameter.data = nudged(parameter.data, generator)
    return module
