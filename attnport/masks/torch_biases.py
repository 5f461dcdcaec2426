"""Biases that are added to the scores, in torch, for use inside modules; `numpy_biases` is the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnport.masks.numpy_biases import alibi_slopes, t5_lookup
from attnport.masks.torch_builders import positions


def alibi(
    H: int,
    S: int,
    T: int,
    alignment: str = "upper_left",
    *,
    symmetric: bool = False,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> Tensor:
    """ALiBi's bias `[1,H,S,T]`: slope * (key position - query position), or slope * -distance if `symmetric`."""
    i, j = positions(S, T, alignment, device)
    distance = -(j - i).abs() if symmetric else j - i
    slopes = torch.tensor(alibi_slopes(H), dtype=dtype or torch.get_default_dtype(), device=device)
    return slopes[None, :, None, None] * distance.to(slopes.dtype)


def t5_buckets(
    S: int,
    T: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    alignment: str = "upper_left",
    device: Any = None,
) -> Tensor:
    """T5's bucket of each query and key, int64 `[S,T]` (Raffel et al. 2020, and its code).

    If `bidirectional`, half of the buckets are for later keys; otherwise every later key is in bucket 0.
    """
    i, j = positions(S, T, alignment, device)
    side = buckets // 2 if bidirectional else buckets
    lookup = torch.tensor(t5_lookup(side, max_distance), device=device)
    distance = (j - i).abs() if bidirectional else (i - j).clamp(min=0)
    bucket = lookup[distance.clamp(max=max_distance)]
    return bucket + side * (j > i).long() if bidirectional else bucket


def t5_bias(table: Tensor, S: int, T: int, **options: Any) -> Tensor:
    """The bias `[1,H,S,T]` of a table `[buckets,H]`, such as an embedding's weight; options as `t5_buckets`."""
    buckets = t5_buckets(S, T, buckets=table.shape[0], device=table.device, **options)
    return table[buckets].permute(2, 0, 1)[None]
