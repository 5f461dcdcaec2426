"""A stack of pre-norm layers that read a key/value cache and return the keys and values to append to it."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.cache import Cache, allowed_behind
from attnport.models.blocks.pre_norm import PreNormParts


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
