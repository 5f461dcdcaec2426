"""Positions: absolute ones added to the tokens, rotary ones (RoPE), and T5's relative ones added to the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attnport.masks.torch_biases import t5_bias


class Frequencies(nn.Module):
    """`base^(-2i/D)` for i < D/2, in float64 whatever the module is cast to: in half precision angles would be wrong.

    A buffer, and not numbers in the code: on a GPU those are copied there in each call, for which the host waits.
    """

    table: torch.Tensor

    def __init__(self, depth: int, base: float = 10000.0) -> None:
        super().__init__()
        numbers = torch.tensor([base ** (-even / depth) for even in range(0, depth, 2)], dtype=torch.float64)
        self.register_buffer("table", numbers, persistent=False)

    def forward(self, dtype: torch.dtype) -> torch.Tensor:
        """[F] in a type."""
        return self.table.to(dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        before = self.table
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self.table.dtype != before.dtype:
            self.table = before.to(self.table.device)
        return self


class LearnedPositions(nn.Module):
    """A table of position vectors; position t of a sequence gets row t, whether it is padding or not.

    Args:
        limit: The longest sequence, which is the number of vectors.
        width: Model dim E.
    """

    def __init__(self, limit: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(limit, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`; T may not exceed the limit."""
        # The length is the size of a tensor, not a number of the configuration, so that T stays dynamic at export.
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device)
        added: torch.Tensor = x_BTE + self.table(positions_T)
        return added


class SinusoidalPositions(nn.Module):
    """`PE[p, 2i] = sin(p / base^(2i/E))`, `PE[p, 2i+1] = cos(p / base^(2i/E))` (Vaswani et al. 2017, section 3.5).

    Sequences may have any length. The angles are computed in float32 or wider, since in half precision integers above
    2048 are not exact.

    Args:
        width: Model dim E, even.
        base: 10000 in the paper.
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.frequencies = Frequencies(width, base)

    def forward(self, x_BTE: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Adds the position vectors to `x_BTE`, whose first token is at position `offset`."""
        dtype = torch.promote_types(x_BTE.dtype, torch.float32)
        positions_T = torch.arange(x_BTE.shape[1], device=x_BTE.device) + offset
        angles_TF = positions_T[:, None].to(dtype) * self.frequencies(dtype)
        encoding_TE = torch.stack([angles_TF.sin(), angles_TF.cos()], dim=-1).flatten(-2)
        return x_BTE + encoding_TE.to(x_BTE.dtype)


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
