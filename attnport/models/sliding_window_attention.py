"""Sliding-window attention: every token sees those at most W away, in time and memory linear in the length.

Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer" (2020), section 3.1; Child et al. (2019) have it as
local attention. With q, k, v [B, H, T, D] of x [B, T, E]:

    y_i = Wo sum_j p_ij v_j        p_i = softmax over the j with |i - j| <= W of q_i k_j / sqrt(D)

The sequence is cut into chunks of W tokens. The windows of a chunk's tokens lie within the chunk and its two
neighbours; keys of these outside a window are masked. Cost: 8 B T E^2 + 12 B T W E floating-point operations against
8 B T E^2 + 4 B T^2 E of full attention; the scores take 3 B H T W numbers against B H T^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnport.artifacts import ModelSpec
from attnport.masks import MaskSpec
from attnport.models.blocks.chunks import cut, join, with_neighbours
from attnport.models.blocks.model import PADDING, build, model_spec, sequence_contract
from attnport.models.blocks.multi_head import ProjectedAttention


@dataclass(frozen=True)
class SlidingWindowConfig:
    """`width` is E, `heads` is H, `window` is W: the largest distance of a key on either side."""

    width: int = 64
    heads: int = 4
    window: int = 8


class SlidingWindowAttention(ProjectedAttention):
    """Multi-head self-attention within a window, chunk by chunk."""

    def __init__(self, config: SlidingWindowConfig) -> None:
        super().__init__(config.width, config.heads)
        self.window = config.window

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to the ones near it.

        Shapes: C chunks of W queries, each with U = 3 W keys.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a window with no other token gives zero before the projection.
        """
        q_BHTD, k_BHTD, v_BHTD = self.project(x)
        q_BHCWD = cut(q_BHTD, self.window)
        k_BHCUD, v_BHCUD = (with_neighbours(cut(y_BHTD, self.window), 1, 1) for y_BHTD in (k_BHTD, v_BHTD))
        # Cut like the keys: the filling of the last chunk and positions outside the sequence are zero, so hidden.
        keep_B1CU1 = with_neighbours(cut(attention_mask[:, None, :, None], self.window), 1, 1)
        allowed_B1CWU = keep_B1CU1.mT.bool() & self.near(x.device)
        scores_BHCWU = (q_BHCWD @ k_BHCUD.mT * q_BHTD.shape[-1] ** -0.5).masked_fill(~allowed_B1CWU, -torch.inf)
        # A row with no allowed key is NaN after the softmax.
        p_BHCWU = scores_BHCWU.softmax(dim=-1).masked_fill(~allowed_B1CWU, 0.0)
        mixed_BHCWD = p_BHCWU @ v_BHCUD
        mixed_BHTD = join(mixed_BHCWD, x.shape[1])
        return self.merge(mixed_BHTD)

    def near(self, device: torch.device) -> torch.Tensor:
        """Which keys of a chunk and its neighbours are in each query's window: key u is at u - W in the chunk."""
        at_W, at_U = torch.arange(self.window, device=device), torch.arange(3 * self.window, device=device)
        return (at_U - self.window - at_W[:, None]).abs() <= self.window


def make(config: SlidingWindowConfig = SlidingWindowConfig(), seed: int = 0) -> SlidingWindowAttention:
    """A `SlidingWindowAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: SlidingWindowAttention(config), seed)


def spec(config: SlidingWindowConfig = SlidingWindowConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    io = sequence_contract(config.width, masks=(PADDING, MaskSpec(("window",), window=config.window)))
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
