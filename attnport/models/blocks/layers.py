"""Transformer layers: norms, feed-forward blocks, pre-norm layers, and stacks with a key/value cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from attnport.models.blocks.cache import Cache, allowed_behind


class RMSNorm(nn.Module):
    """`w x / sqrt(mean(x^2) + eps)` (Zhang and Sennrich 2019): LayerNorm without the mean and the shift.

    The mean is computed in float32 or wider, since the square of a half-precision number above 255 is infinite.

    Args:
        width: Model dim E.
        eps: Added to the mean square, so that a zero token stays zero.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [..., E] to [..., E]."""
        wide_BTE = x_BTE.to(torch.promote_types(x_BTE.dtype, torch.float32))
        normed_BTE = wide_BTE * torch.rsqrt(wide_BTE.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed_BTE.to(x_BTE.dtype)


class FeedForward(nn.Module):
    """`W2 gelu(W1 x + b1) + b2` (Vaswani et al. 2017, section 3.3, with the exact GELU of Hendrycks and Gimpel 2016).

    Args:
        width: Model dim E.
        hidden: Size between the projections, 4 E in most models.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(self.act(self.up(x_BTE)))
        return y_BTE


class ReluFeedForward(nn.Module):
    """`W2 relu(W1 x + b1) + b2` (Vaswani et al. 2017, section 3.3); T5 leaves the biases out.

    Args:
        width: Model dim E.
        hidden: Size between the projections, 4 E in most models.
        bias: Whether there are b1 and b2.
    """

    def __init__(self, width: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(self.up(x_BTE).relu())
        return y_BTE


class SwiGLU(nn.Module):
    """`W2 (silu(W1 x) * W3 x)` without biases (Shazeer 2020, "GLU Variants Improve Transformer").

    Args:
        width: Model dim E.
        hidden: Size of the gate and of the gated vector; 8/3 E has as many weights as a plain block of 4 E.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        y_BTE: torch.Tensor = self.down(nn.functional.silu(self.gate(x_BTE)) * self.up(x_BTE))
        return y_BTE


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


class CachedLayer(PreNormParts):
    """`a = x + attention(norm(x))`, `y = a + f(norm(a))`, with a cache for the attention.

    The attention is called with norm(x) and the layer's `Cache`; it returns [B, S, E], and the new tokens' keys and
    values.
    """

    def forward(self, x_BSE: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gives [B, S, E], and the new tokens' keys and values [B, G, S, D]."""
        mixed_BSE, k_BGSD, v_BGSD = self.attention(self.attention_norm(x_BSE), cache)
        return self.plus_feed_forward(x_BSE + mixed_BSE), k_BGSD, v_BGSD


class CachedLayers(nn.ModuleList):
    """L layers, each with its part of the cache."""

    def forward(
        self, x_BSE: torch.Tensor, past_keys: torch.Tensor, past_values: torch.Tensor, cache_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Takes S new tokens through all layers.

        Args:
            x_BSE: The new tokens.
            past_keys: [B, L, G, P, D].
            past_values: [B, L, G, P, D].
            cache_mask: int64 [B, P], 1 where the cache holds a token, and 0 at empty places, which may be anywhere.

        Returns:
            [B, S, E], and the new tokens' keys and values, each [B, L, G, S, D].
        """
        allowed_B1ST = allowed_behind(cache_mask, x_BSE.shape[1])
        length_B111 = cache_mask.sum(dim=1)[:, None, None, None]
        keys, values = [], []
        for index, layer in enumerate(self):
            cache = Cache(past_keys[:, index], past_values[:, index], allowed_B1ST, length_B111)
            x_BSE, k_BGSD, v_BGSD = layer(x_BSE, cache)
            keys.append(k_BGSD)
            values.append(v_BGSD)
        return x_BSE, torch.stack(keys, dim=1), torch.stack(values, dim=1)
