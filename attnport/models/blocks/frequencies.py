"""The frequencies of sinusoidal and rotary positions, as a buffer on the module's device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


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
