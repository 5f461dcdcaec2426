"""T5's relative positions: a learned number for each head and bucket of distances, added to the scores."""

from __future__ import annotations

import torch
from torch import nn

from attnport.masks.torch_biases import t5_bias


class RelativePositions(nn.Module):
    """`bias[h, i, j] = table[bucket(j - i), h]` (Raffel et al. 2020, section 2.1, and its code).

    Each near distance has its own bucket; farther ones share buckets of logarithmic width, and all beyond
    `max_distance` share the last.

    Args:
        heads: H.
        buckets: Rows of the table; if `bidirectional`, half of them are for later keys.
        max_distance: The distance at which the last bucket begins.
        bidirectional: False in decoders, where later keys are hidden.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def forward(self, S: int, T: int, alignment: str = "upper_left") -> torch.Tensor:
        """The bias of S queries and T keys, [1, H, S, T]; `lower_right`: the last query is at the last key."""
        return t5_bias(
            self.table.weight,
            S,
            T,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
            alignment=alignment,
        )
