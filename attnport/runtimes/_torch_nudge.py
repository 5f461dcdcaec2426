"""Moves weights and inputs by one rounding in a random direction, to get another sample of the effect of rounding.

The result for the moved values is as good as that for the given ones, which were rounded themselves. If the two are far
apart, the error comes from the task and not from the runtime, as in a softmax of two nearly equal scores in the
thousands. (Monte Carlo arithmetic: D. Stott Parker, 1997; here the data are perturbed, not each operation.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Draw:
    """A source of random sides; the same seed gives the same ones on a device."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        """The generator of a device: numbers for the weights of a large model are not copied there."""
        import torch

        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def nudged(tensor: torch.Tensor, draw: Draw) -> torch.Tensor:
    """A copy with each element moved to a neighbour in its type; zeros and values that are not finite stay.

    Args:
        tensor: On any device; returned unchanged unless it is dense, with a floating type of 16, 32 or 64 bits.
    """
    import torch

    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    dense = type(tensor) is torch.Tensor and tensor.layout is torch.strided  # a subclass may store other bits
    if whole is None or not dense or not tensor.is_floating_point():
        return tensor
    sides = torch.randint(0, 2, tensor.shape, generator=draw.on(tensor.device), device=tensor.device, dtype=torch.int8)
    moved = (tensor.view(whole) + (2 * sides - 1)).view(tensor.dtype)
    return torch.where((tensor != 0) & tensor.isfinite() & moved.isfinite(), moved, tensor)


def nudge_parameters(module: torch.nn.Module, draw: Draw) -> torch.nn.Module:
    """Moves every weight of a module in place; returns it."""
    for parameter in module.parameters():
        parameter.data = nudged(parameter.data, draw)
    return module
