"""The parts of a pre-norm transformer layer: attention and feed-forward, each with a norm of what it takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class PreNormParts(nn.Module):
    """A base class (Xiong et al. 2020): a derived one says in `forward` what the attention reads.

    Args:
        norm: Makes a norm.
        attention: What is called on the norm of x.
        feed_forward: f, from [B, S, E] to [B, S, E].
    """

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = norm()
        self.attention = attention
        self.feed_forward_norm = norm()
        self.feed_forward = feed_forward

    def plus_feed_forward(self, x_BSE: torch.Tensor) -> torch.Tensor:
        """`x + f(norm(x))`, the end of every layer."""
        y_BSE: torch.Tensor = x_BSE + self.feed_forward(self.feed_forward_norm(x_BSE))
        return y_BSE
