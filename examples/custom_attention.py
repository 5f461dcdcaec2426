"""A self-attention of your own, exported without any registration.

    attnport export examples/custom_attention.py:make -o out/custom \
        --input "x=float32[batch,seq,256]" --input "attention_mask=int64[batch,seq]:padding"

`batch` and `seq` are names, so they stay dynamic; 256 is a number, so it is fixed. `:padding` says that the input hides
keys: 1 may be attended, 0 may not.
"""

from __future__ import annotations

import torch
from torch import nn


class SelfAttention(nn.Module):
    """Multi-head self-attention with a padding mask, written out by hand.

    Args:
        width: Model dim E.
        heads: Number of heads H; D = E / H.
    """

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from each position of `x` [B, T, E] to those where `attention_mask` [B, T] is 1; gives [B, T, E]."""
        q_BHTD, k_BHTD, v_BHTD = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores_BHTT = q_BHTD @ k_BHTD.transpose(-1, -2) / q_BHTD.shape[-1] ** 0.5
        hidden_B11T = attention_mask[:, None, None, :] == 0
        weights_BHTT = scores_BHTT.masked_fill(hidden_B11T, float("-inf")).softmax(dim=-1)
        return self.out((weights_BHTT @ v_BHTD).transpose(1, 2).flatten(2))


def make() -> nn.Module:
    """The factory that the SPEC names: weights are seeded, so that every call makes the same module."""
    torch.manual_seed(0)
    return SelfAttention().eval()
