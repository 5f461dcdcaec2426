"""T5's attention: without scale and without biases of the projections, with a bias that is added to the scores."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from attnport.models.blocks.multi_head import MultiHeadAttention

M = TypeVar("M", bound=nn.Module)


class T5Attention(MultiHeadAttention):
    """`Wo softmax(q k^T + mask) v`, q of x and k, v of memory (Raffel et al. 2020, and its code).

    The factor 1 / sqrt(D) of other models is in T5's initial weights: those of q have variance 1 / (E D).

    Args:
        width: Model dim E.
        heads: H.
        depth: Head dim D; H D need not be E.
    """

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__(width, heads, depth=depth, bias=False, scale=1.0)
        self.depth = depth


def scale_queries(module: M) -> M:
    """Divides the weights of every q in `module` by sqrt(D), in place, from variance 1 / E to T5's; returns it."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, T5Attention):
                part.project.query.weight.mul_(part.depth**-0.5)
    return module
