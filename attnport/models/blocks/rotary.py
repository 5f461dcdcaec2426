"""Rotary positions (RoPE): queries and keys are rotated by an angle that grows with their position."""

from __future__ import annotations

import torch
from torch import nn

from attnport.models.blocks.frequencies import Frequencies


class RotaryPositions(nn.Module):
    """Rotates the pairs `(x[i], x[i + D/2])` of every head by `p base^(-2i/D)` (Su et al. 2021, "RoFormer").

    The product of a query and a key then depends only on the distance of their positions. The paper rotates pairs of
    neighbours, `(x[2i], x[2i+1])`; pairs of halves, as in GPT-NeoX and LLaMA, are the same up to the order of the
    weights' rows. The angles are computed in float32 or wider: in half precision integers above 2048 are not exact.

    Args:
        depth: Head dim D, even.
        base: 10000 in the paper.
    """

    def __init__(self, depth: int, base: float = 10000.0) -> None:
        super().__init__()
        self.frequencies = Frequencies(depth, base)

    def forward(self, x_BHTD: torch.Tensor, offset: int | torch.Tensor = 0) -> torch.Tensor:
        """Rotates queries or keys; `offset` is the position of the first one (with a cache: its length).

        An offset may be [B, 1, 1, 1], with a number for each item.
        """
        dtype = torch.promote_types(x_BHTD.dtype, torch.float32)
        positions_T1 = torch.arange(x_BHTD.shape[2], device=x_BHTD.device)[:, None] + offset
        angles_TF = positions_T1.to(dtype) * self.frequencies(dtype)
        cos_TF, sin_TF = angles_TF.cos().to(x_BHTD.dtype), angles_TF.sin().to(x_BHTD.dtype)
        first_BHTF, second_BHTF = x_BHTD.chunk(2, dim=-1)
        return torch.cat(
            [first_BHTF * cos_TF - second_BHTF * sin_TF, second_BHTF * cos_TF + first_BHTF * sin_TF], dim=-1
        )
