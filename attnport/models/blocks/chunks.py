"""Sequences cut into chunks of equal length, so that attention between near tokens has a linear cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def cut(x: torch.Tensor, length: int) -> torch.Tensor:
    """[..., T, D] to [..., C, W, D] with W = `length`, filled up with zeros to C = ceil(T / W) + 1 chunks.

    There is one chunk more than needed, so that there are always several: torch.export treats a size of 1 as constant.
    """
    import torch

    T = x.shape[-2]
    chunks = (T - 1) // length + 2
    filled = torch.nn.functional.pad(x, (0, 0, 0, chunks * length - T))
    # Indexed, not reshaped, here and below: torch.export cannot know that the padded length is divisible.
    at_C1, at_W = torch.arange(chunks, device=x.device)[:, None], torch.arange(length, device=x.device)
    return filled[..., at_C1 * length + at_W, :]


def join(x: torch.Tensor, T: int) -> torch.Tensor:
    """[..., C, W, D] to the first T of its tokens, [..., T, D]: the reverse of `cut`."""
    import torch

    at_T = torch.arange(T, device=x.device)
    return x[..., at_T // x.shape[-2], at_T % x.shape[-2], :]


def with_neighbours(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """[..., C, W, D] to [..., C, (before + 1 + after) W, D]: each chunk between its neighbours, zeros past the ends."""
    import torch

    chunks = x.shape[-3]
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, before, after))
    return torch.cat([padded.narrow(-3, start, chunks) for start in range(before + 1 + after)], dim=-2)
