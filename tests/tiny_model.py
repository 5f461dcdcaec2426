"""A model small enough to export within a second or two, with everything that a check looks at."""

from __future__ import annotations

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

VOCAB, WIDTH, HEADS, LONGEST = 40, 16, 2, 48

IO = IOContract(
    inputs=(
        TensorSpec("input_ids", "int64", ("batch", "seq"), VOCAB),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
    ),
    outputs=(
        TensorSpec("last_hidden_state", "float32", ("batch", "seq", WIDTH)),
        TensorSpec("sentence_embedding", "float32", ("batch", WIDTH)),
    ),
    dims=(Dim("batch", 1, 4, 32), Dim("seq", 1, 16, LONGEST)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
)


class Tiny(nn.Module):
    """Embedding, one attention with a padding mask, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        B, T = input_ids.shape
        x_BTE = self.words(input_ids) + self.places(torch.arange(T, device=input_ids.device))
        q, k, v = self.project(x_BTE).reshape(B, T, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        keep_B1ST = (attention_mask != 0)[:, None, None, :].expand(B, 1, T, T)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep_B1ST)
        hidden_BTE = torch.tanh(x_BTE + self.out(mixed.transpose(1, 2).reshape(B, T, WIDTH)))
        weight_BT1 = attention_mask[:, :, None].to(hidden_BTE.dtype)
        return hidden_BTE, (hidden_BTE * weight_BT1).sum(1) / weight_BT1.sum(1).clamp(min=1)


def make() -> Tiny:
    """The module, the same every time."""
    torch.manual_seed(0)
    return Tiny().eval()


def spec() -> ModelSpec:
    """The ModelSpec that a SPEC names."""
    return ModelSpec("tiny", Source("tiny"), IO, make)
