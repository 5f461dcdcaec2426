"""Three layers, small enough to be searched within seconds, each with what a fault may sit in."""

from __future__ import annotations

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

VOCAB, WIDTH, HEADS, LAYERS, LONGEST = 30, 16, 2, 3, 24

IO = IOContract(
    inputs=(
        TensorSpec("input_ids", "int64", ("batch", "seq"), VOCAB),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
    ),
    outputs=(TensorSpec("hidden", "float32", ("batch", "seq", WIDTH)),),
    dims=(Dim("batch", 1, 3, 8), Dim("seq", 1, 8, LONGEST)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
)


class Attention(nn.Module):
    """Queries, keys and values by layers of their own, so that the graph has branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x_BTE: torch.Tensor, allowed_B11T: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            project(x_BTE).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed_B11T)
        y_BTE: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y_BTE


class Layer(nn.Module):
    """Attention and feed-forward, with residuals that carry every error past them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.act = nn.GELU()

    def forward(self, x_BTE: torch.Tensor, allowed_B11T: torch.Tensor) -> torch.Tensor:
        x_BTE = x_BTE + self.attention(self.norm(x_BTE), allowed_B11T)
        y_BTE: torch.Tensor = x_BTE + self.down(self.act(self.up(x_BTE)))
        return y_BTE


class Layered(nn.Module):
    """An embedding and the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x_BTE: torch.Tensor = self.words(input_ids)
        for layer in self.layers:
            x_BTE = layer(x_BTE, attention_mask[:, None, None, :].bool())
        return x_BTE


def make() -> Layered:
    """The module, the same every time."""
    torch.manual_seed(0)
    return Layered().eval()


def spec() -> ModelSpec:
    """The ModelSpec that a SPEC names."""
    return ModelSpec("layered", Source("layered"), IO, make)
