"""Pre-norm transformer layers: attention and feed-forward, each with a norm of its input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class PreNormParts(nn.Module):
    """The base class of pre-norm layers (Xiong et al. 2020); `forward` of a derived class calls the attention.

    Args:
        norm: Makes a norm.
        attention: The module that is called with the norm of x.
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


class PreNormLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `y = a + f(norm(a))`; the attention is a `MultiHeadAttention`."""

    def forward(self, x_BTE: torch.Tensor, mask_BHTT: torch.Tensor | None) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; the mask is the attention's."""
        normed_BTE = self.attention_norm(x_BTE)
        return self.plus_feed_forward(x_BTE + self.attention(normed_BTE, normed_BTE, mask_BHTT))


class PreNormDecoderLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `c = a + cross_attention(norm(a), memory)`, `y = c + f(norm(c))`.

    Args:
        norm: Makes a norm.
        attention: A `MultiHeadAttention`, of x to x.
        cross_attention: A `MultiHeadAttention`, of x to the memory.
        feed_forward: f, from [B, S, E] to [B, S, E].
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
    ) -> None:
        super().__init__(norm, attention, feed_forward)
        self.cross_norm = norm()
        self.cross_attention = cross_attention

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, mask_BHSS: torch.Tensor, memory_mask_B1ST: torch.Tensor
    ) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E], reading the memory; the masks are the attentions'."""
        normed_BSE = self.attention_norm(x_BSE)
        x_BSE = x_BSE + self.attention(normed_BSE, normed_BSE, mask_BHSS)
        x_BSE = x_BSE + self.cross_attention(self.cross_norm(x_BSE), memory_BTE, memory_mask_B1ST)
        return self.plus_feed_forward(x_BSE)
