"""Heads split from the model dim and merged into it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def split_heads(x_BTE: Tensor, heads: int) -> Tensor:
    """[B, T, H D] to [B, H, T, D]: the first D numbers of a token are those of head 0."""
    import torch

    return torch.unflatten(x_BTE, -1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHTD: Tensor) -> Tensor:
    """[B, H, T, D] to [B, T, H D], the reverse of `split_heads`."""
    return x_BHTD.transpose(1, 2).flatten(2)
