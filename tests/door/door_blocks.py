"""Small layers as many repositories have them, which the modules of this folder share."""

from __future__ import annotations

import math

import torch
from torch import nn

WIDTH, HEADS, VOCAB = 32, 4, 100


class SelfAttention(nn.Module):
    """An attention written out, as in most tutorials."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        B, T, E = x.shape
        return x.view(B, T, self.heads, E // self.heads).transpose(1, 2)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, memory: torch.Tensor | None = None
    ) -> torch.Tensor:
        memory = x if memory is None else memory
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask
        B, T, E = x.shape
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, E))


class Block(nn.Module):
    """Attention and two linear layers, each with a norm before it."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """Token embeddings and two blocks; a mask `[batch,seq]` of ones and zeros."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(ids)
        added = None if mask is None else hidden_keys(mask)
        for block in self.blocks:
            x = block(x, added)
        return x


def hidden_keys(mask: torch.Tensor) -> torch.Tensor:
    """The additive mask `[B,1,1,T]` of ones and zeros `[B,T]`, as in BERT."""
    return (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min


def mean_pool(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weight = mask.unsqueeze(-1).to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
