"""A model that every target can fuse and that ships in seconds: one attention of head size 16, no positions."""

from __future__ import annotations

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

H, D = 2, 16

IO = IOContract(
    inputs=(
        TensorSpec("input_ids", "int64", ("batch", "seq"), 20),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
    ),
    outputs=(TensorSpec("hidden", "float32", ("batch", "seq", H * D)),),
    dims=(Dim("batch", 1, 2, 4), Dim("seq", 1, 8, 24)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
    positions="none",
)


class OneAttention(nn.Module):
    """Embedding and one attention with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, H * D)
        self.project, self.out = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        B, T = input_ids.shape
        x_BTE = self.words(input_ids)
        q, k, v = self.project(x_BTE).reshape(B, T, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
        keep_B1ST = (attention_mask != 0)[:, None, None, :].expand(B, 1, T, T)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep_B1ST)
        return torch.tanh(x_BTE + self.out(mixed.transpose(1, 2).reshape(B, T, H * D)))


def make() -> OneAttention:
    """The module, the same every time."""
    torch.manual_seed(0)
    return OneAttention().eval()


def spec() -> ModelSpec:
    """The ModelSpec that a SPEC names."""
    return ModelSpec("one_attention", Source("one_attention"), IO, make)
