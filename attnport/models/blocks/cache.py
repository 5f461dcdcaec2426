"""A key/value cache as attention reads it: keys and values of earlier tokens, and which of them a new token may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attnport.masks import torch_builders as masks

if TYPE_CHECKING:
    import torch


class Cache(NamedTuple):
    """One layer's cache of P earlier tokens, for S new ones; T = P + S.

    Attributes:
        keys: [B, G, P, D].
        values: [B, G, P, D].
        allowed: [B, 1, S, T], True where a new token may attend to a cached or a new one.
        length: int64 [B, 1, 1, 1], the number of tokens in the cache, which is the position of the first new one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    allowed: torch.Tensor
    length: torch.Tensor

    def with_new(self, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all T tokens, cached and new."""
        import torch

        return torch.cat([self.keys, k_BGSD], dim=2), torch.cat([self.values, v_BGSD], dim=2)


def allowed_behind(cache_mask_BP: torch.Tensor, S: int) -> torch.Tensor:
    """The mask of S new tokens, bool [B, 1, S, P + S]: all cached tokens, and the new ones up to the query's own.

    Args:
        cache_mask_BP: 1 where the cache holds a token, and 0 at empty places, which may be anywhere.
        S: The number of new tokens; the last one is at the position of the last key.
    """
    import torch

    # Not `pad`: ONNX Runtime's kernel for CUDA takes no integers, so they would be copied to the CPU and back.
    new_BS = torch.ones(cache_mask_BP.shape[0], S, dtype=cache_mask_BP.dtype, device=cache_mask_BP.device)
    keep_BT = torch.cat([cache_mask_BP, new_BS], dim=1)
    causal_11ST = masks.causal(S, keep_BT.shape[1], "lower_right", cache_mask_BP.device)
    return masks.combine(causal_11ST, masks.padding(keep_BT))
