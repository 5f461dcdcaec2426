"""Self-attention of one head, written out: the result for a token is a mean of all tokens, weighted by their scores.

Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin, "Attention Is All You Need" (2017), equation 1.
On x [B, T, E]:

    y = softmax(q k^T / sqrt(D)) v        q = x Wq, k = x Wk, v = x Wv, each [B, T, D]

No mask and no positions: a permutation of the tokens permutes the output. Cost: 6 B T E D + 4 B T^2 D floating-point
operations; the scores take B T^2 numbers unless one kernel computes the whole attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import TensorSpec
from attnport.models.blocks.model import BATCH, build, length, model_spec


@dataclass(frozen=True)
class SelfAttentionConfig:
    """Sizes: `width` is E, `depth` is D."""

    width: int = 64
    depth: int = 32


class SelfAttention(nn.Module):
    """Three projections, scores, softmax, weighted mean."""

    def __init__(self, config: SelfAttentionConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.width, config.depth)
        self.key = nn.Linear(config.width, config.depth)
        self.value = nn.Linear(config.width, config.depth)
        self.scale = config.depth**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, D]."""
        q_BSD, k_BTD, v_BTD = self.query(x), self.key(x), self.value(x)
        scores_BST = q_BSD @ k_BTD.transpose(-2, -1) * self.scale
        y_BSD: torch.Tensor = scores_BST.softmax(dim=-1) @ v_BTD
        return y_BSD


def make(config: SelfAttentionConfig = SelfAttentionConfig(), seed: int = 0) -> SelfAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: SelfAttention(config), seed)


def spec(config: SelfAttentionConfig = SelfAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    io = IOContract(
        inputs=(TensorSpec("x", "float32", ("batch", "seq", config.width)),),
        outputs=(TensorSpec("y", "float32", ("batch", "seq", config.depth)),),
        dims=(BATCH, length()),
        positions="none",
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
