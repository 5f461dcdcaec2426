"""BigBird's attention: a window, global tokens and random keys, block by block.

Zaheer et al., "Big Bird: Transformers for Longer Sequences" (2020), section 2, in its internal transformer
construction: tokens are grouped into blocks, and the pattern is one of blocks. A query block sees

    itself and its neighbours at distance 1        (window)
    the first G blocks, which see every block       (global)
    R blocks drawn once, with the weights           (random)

    y_i = Wo softmax over the tokens j of the blocks that block(i) sees of (q_i k_j / sqrt(D)) v_j

The random blocks are drawn for the longest sequence, so that the pattern of a token does not depend on the tokens after
it. Block i draws from the blocks before the next power of two, so that most of them exist in short sequences too.

The pattern is a mask here. Cost: 8 B T E^2 + 4 B T^2 E floating-point operations; in kernels that skip whole
blocks of b tokens, 8 B T E^2 + 4 B T (3 + G + R) b E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class BigBirdConfig:
    """`width` is E, `heads` is H, `block` the tokens of a block, `positions` the longest sequence, in tokens."""

    width: int = 64
    heads: int = 4
    block: int = 8
    global_blocks: int = 1
    random_blocks: int = 2
    positions: int = 512


class BigBirdAttention(ProjectedAttention):
    """Multi-head self-attention whose pattern of blocks is drawn at construction and stored with the weights."""

    pattern: torch.Tensor  # [N, N], of blocks

    def __init__(self, config: BigBirdConfig) -> None:
        super().__init__(config.width, config.heads)
        self.block = config.block
        self.register_buffer("pattern", draw_pattern(config))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to those of the blocks that its own block sees.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding.
        """
        block_T = torch.arange(x.shape[1], device=x.device) // self.block
        pattern_TT = self.pattern[block_T[:, None], block_T]
        allowed_B1TT = masks.combine(masks.padding(attention_mask), pattern_TT)
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=allowed_B1TT)
        return self.merge(mixed_BHTD)


def draw_pattern(config: BigBirdConfig) -> torch.Tensor:
    """Which of the N blocks each block sees, bool [N, N]; from torch's global generator."""
    at_N = torch.arange(-(-config.positions // config.block))
    near_NN = (at_N[:, None] - at_N).abs() <= 1
    first_N = at_N < config.global_blocks
    sees_NN = near_NN | first_N[:, None] | first_N
    for index, row_N in enumerate(sees_NN):
        free = (~row_N[: 1 << index.bit_length()]).nonzero()[:, 0]
        row_N[free[torch.randperm(len(free))[: config.random_blocks]]] = True
    return sees_NN


def make(config: BigBirdConfig = BigBirdConfig(), seed: int = 0) -> BigBirdAttention:
    """A `BigBirdAttention` in float32 and eval mode with random weights; a seed gives the same weights and pattern."""
    return build(lambda: BigBirdAttention(config), seed)


def spec(config: BigBirdConfig = BigBirdConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(__name__, sequence_contract(config.width, limit=config.positions), lambda: make(config, seed))


SPEC = spec()
