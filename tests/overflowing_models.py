"""Small transformers whose numbers leave fp16 in one known place each, and one whose numbers do not."""

from __future__ import annotations

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec

WIDTH, HEADS, LAYERS = 32, 2, 2

IO = IOContract(
    inputs=(
        TensorSpec("x", "float32", ("batch", "seq", WIDTH)),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
    ),
    outputs=(TensorSpec("hidden", "float32", ("batch", "seq", WIDTH)),),
    dims=(Dim("batch", 1, 2, 4), Dim("seq", 1, 8, 16)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
)


class WrittenNorm(nn.Module):
    """A layer norm written out: the squares of what is about 2000 large are beyond 65504."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        centred = x_BTE - x_BTE.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, scores: float) -> None:
        super().__init__()
        self.scores = scores
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x_BTE: torch.Tensor, allowed_B11T: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            project(x_BTE).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q * self.scores, k * self.scores, v, attn_mask=allowed_B11T)
        y_BTE: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y_BTE


class Layer(nn.Module):
    """Attention and feed-forward behind a norm each; `gain` is how large the stream between layers is."""

    def __init__(self, norm: type[nn.Module], gain: float, scores: float) -> None:
        super().__init__()
        self.gain = gain
        self.attention_norm, self.attention = _norm(norm), Attention(scores)
        self.norm, self.up, self.down = _norm(norm), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_BTE: torch.Tensor, allowed_B11T: torch.Tensor) -> torch.Tensor:
        x_BTE = x_BTE + self.attention(self.attention_norm(x_BTE), allowed_B11T) * self.gain
        y_BTE: torch.Tensor = x_BTE + self.down(nn.functional.gelu(self.up(self.norm(x_BTE)))) * self.gain
        return y_BTE


def _norm(kind: type[nn.Module]) -> nn.Module:
    return nn.LayerNorm(WIDTH) if kind is nn.LayerNorm else kind()


class Model(nn.Module):
    def __init__(self, norm: type[nn.Module], gain: float = 1.0, scores: float = 1.0, lowest: bool = False) -> None:
        """`lowest`: whether the mask adds the lowest float, so that a row without a key has numbers other than zero."""
        super().__init__()
        self.gain, self.lowest = gain, lowest
        self.layers = nn.ModuleList(Layer(norm, gain, scores) for _ in range(LAYERS))
        self.last = _norm(norm)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = x * self.gain
        allowed_B11T = attention_mask[:, None, None, :].bool()
        if self.lowest:
            allowed_B11T = torch.zeros_like(allowed_B11T, dtype=x.dtype).masked_fill(
                ~allowed_B11T, torch.finfo(x.dtype).min
            )
        for layer in self.layers:
            x = layer(x, allowed_B11T)
        y_BTE: torch.Tensor = self.last(x)
        return y_BTE


def _spec(name: str, *args: object) -> ModelSpec:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Model(*args).eval()

    return ModelSpec(name, Source(name), IO, make)


def fine() -> ModelSpec:
    """Nothing leaves fp16."""
    return _spec("fine", nn.LayerNorm)


def norm() -> ModelSpec:
    """The variances of written norms overflow; the stream, up to some thousands, does not."""
    return _spec("norm", WrittenNorm, 1000.0)


def residual() -> ModelSpec:
    """The stream itself overflows, and is normed at the end."""
    return _spec("residual", nn.LayerNorm, 60000.0)


def scores() -> ModelSpec:
    """The scores of attention overflow, which no island around it mends."""
    return _spec("scores", nn.LayerNorm, 1.0, 1000.0)


def lowest() -> ModelSpec:
    """Nothing leaves fp16, and a row without a key has the mean of all values."""
    return _spec("lowest", nn.LayerNorm, 1.0, 1.0, True)
