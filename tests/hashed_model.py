"""An attention whose position bias is looked up by a hash of integers that no int32 holds."""

from __future__ import annotations

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

WIDTH, HEADS, BUCKETS, FACTOR = 16, 2, 13, 2654435761

IO = IOContract(
    inputs=(
        TensorSpec("hidden", "float32", ("batch", "seq", WIDTH)),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
    ),
    outputs=(TensorSpec("output", "float32", ("batch", "seq", WIDTH)),),
    dims=(Dim("batch", 1, 2, 4), Dim("seq", 1, 6, 12)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
)


class HashedBias(nn.Module):
    """A bias of each head by the hash of the distance of two positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, HEADS)

    def forward(self, seq: int) -> torch.Tensor:
        position = torch.arange(seq)
        hashed = ((position[None, :] - position[:, None]) * FACTOR) % (2**32)
        found: torch.Tensor = self.table(hashed % BUCKETS)
        return found.permute(2, 0, 1)[None]


class Layer(nn.Module):
    """Self-attention with that bias."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.bias = HashedBias()

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            project(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + self.bias(hidden.shape[1])
        scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, float("-inf"))
        mixed: torch.Tensor = scores.softmax(-1) @ v
        return mixed.transpose(1, 2).flatten(2)


def make() -> Layer:
    """The module, the same every time."""
    torch.manual_seed(0)
    return Layer().eval()


def spec() -> ModelSpec:
    """The ModelSpec that a SPEC names."""
    return ModelSpec("hashed", Source("hashed"), IO, make)
