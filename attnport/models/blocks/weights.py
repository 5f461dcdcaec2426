"""Random weights with which a wrong mask, scale or head changes the output visibly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

M = TypeVar("M", bound="nn.Module")


def randomise(module: M) -> M:
    """Draws the weights of every projection and convolution from a normal distribution, in place; returns `module`.

    Weights have the variance of 1 / fan-in (LeCun et al. 1998, "Efficient BackProp") and not BERT's 0.02, with which
    untrained attention is nearly uniform and a wrong mask or scale would hardly show. Biases have a deviation of 0.1.
    Embeddings, norms and parameters of other modules stay as they are.
    """
    from torch import nn

    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.normal_(part.weight, std=part.weight[0].numel() ** -0.5)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.1)
    return module


def build(construct: Callable[[], M], seed: int) -> M:
    """The module that `construct` makes, with random weights, in eval mode; a seed always gives the same weights.

    The state of the global generator does not change.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return randomise(construct()).eval()
