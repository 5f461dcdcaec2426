"""Modules whose arithmetic can be exchanged: other ways that are as exact as PyTorch's, and ways with a fault.

See parity_rule.py, which uses them. Shapes: x [B, T, E], keep [B, T], scores [B, H, T, T].
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

EPS = 1e-5
KINDS = ("attention", "pooled", "two layers", "no attention")
SIZES = ((32, 2), (64, 4), (96, 8), (256, 8))


class Arithmetic:
    """PyTorch's own."""

    hidden = -torch.inf
    """What is added to the score of a hidden key."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x weight' + bias."""
        return functional.linear(x, weight, bias)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q k' / sqrt(D)."""
        return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5

    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        """softmax(scores) v."""
        return scores.softmax(-1) @ v

    def gelu(self, x: Tensor) -> Tensor:
        """The activation."""
        return functional.gelu(x)

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The layer norm."""
        return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


class Module(nn.Module):
    """One of KINDS, of one of SIZES, with weights by the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind, (self.width, self.heads) = KINDS[seed % 4], SIZES[seed // 4 % 4]
        self.by = Arithmetic()
        width = self.width
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Linear(width, 3)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """[B, T, E], or [B, 3] of the first position where the kind is `pooled`."""
        if self.kind == "attention":
            return self.attention(x, keep)
        for _ in range(2 if self.kind == "two layers" else 1):
            if self.kind != "no attention":
                x = self._norm(0, x + self.attention(x, keep))
            x = self._norm(1, x + self._linear(self.down, self.by.gelu(self._linear(self.up, x))))
        return self._linear(self.head, x[:, 0]) if self.kind == "pooled" else x

    def attention(self, x: Tensor, keep: Tensor) -> Tensor:
        """Self-attention; a row without any key is zero before the last product."""
        parts = self._linear(self.qkv, x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = self.by.scores(q, k)
        scores = torch.where(keep[:, None, None] == 0, scores + self.by.hidden, scores)
        mixed = self.by.mix(scores, v)
        mixed = torch.where(keep.any(1)[:, None, None, None], mixed, torch.zeros_like(mixed))
        return self._linear(self.out, mixed.transpose(1, 2).flatten(2))

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return self.by.linear(x, layer.weight, layer.bias)

    def _norm(self, number: int, x: Tensor) -> Tensor:
        layer: Any = self.norms[number]
        return self.by.norm(x, layer.weight, layer.bias)


class Blocks(Arithmetic):
    """Products added up in blocks of the inner dim, softmax by powers of 2, the activation and norm written out."""

    def __init__(self, size: int) -> None:
        self.size = size

    def _product(self, one: Tensor, other: Tensor) -> Tensor:
        starts = range(0, one.shape[-1], self.size)
        total = one[..., : self.size] @ other[..., : self.size, :]
        for start in starts[1:]:
            total = total + one[..., start : start + self.size] @ other[..., start : start + self.size, :]
        return total

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._product(x, weight.t()) + bias

    @override
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self._product(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5

    @override
    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        raised = torch.exp2((scores - scores.amax(-1, keepdim=True)) * math.log2(math.e))
        return self._product(raised / raised.sum(-1, keepdim=True), v)

    @override
    def gelu(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))

    @override
    def norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        off = x - x.mean(-1, keepdim=True)
        return off / (off.square().mean(-1, keepdim=True) + EPS).sqrt() * weight + bias


class Folded(Arithmetic):
    """The scale in q, the division behind the second product, the variance in one pass."""

    @override
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)

    @override
    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        raised = (scores - scores.amax(-1, keepdim=True).clamp_min(-6e4)).exp()
        return (raised @ v) / raised.sum(-1, keepdim=True)

    @override
    def norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(x.square().mean(-1, keepdim=True) - mean.square() + EPS) * weight + bias


class InTiles(Arithmetic):
    """Softmax over tiles of five keys, as flash attention does it."""

    @override
    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        top = torch.full_like(scores[..., :1], -6e4)
        total, mixed = torch.zeros_like(top), torch.zeros_like(scores[..., :1] * v[..., :1, :])
        for start in range(0, scores.shape[-1], 5):
            tile = scores[..., start : start + 5]
            higher = torch.maximum(top, tile.amax(-1, keepdim=True))
            shrink, raised = (top - higher).exp(), (tile - higher).exp()
            total = total * shrink + raised.sum(-1, keepdim=True)
            mixed, top = mixed * shrink + raised @ v[..., start : start + 5, :], higher
        return mixed / total


class RoundedOnce(Arithmetic):
    """Every operation in float64, its result rounded."""

    def __getattribute__(self, name: str) -> Any:
        own = getattr(Arithmetic, name)
        if not callable(own):
            return own

        def rounded(*operands: Tensor) -> Tensor:
            result: Tensor = own(Arithmetic(), *(operand.double() for operand in operands))
            return result.to(operands[0].dtype)

        return rounded


def cut(x: Tensor, bits: int) -> Tensor:
    """float32 rounded to so many bits of significand; other types as they are."""
    if x.dtype != torch.float32:
        return x
    dropped = 23 - bits
    whole = x.contiguous().view(torch.int32) + (1 << (dropped - 1))
    return (whole >> dropped << dropped).view(torch.float32)


class TF32(Arithmetic):
    """Products of 10 bits."""

    bits = 10

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(cut(x, self.bits), cut(weight, self.bits), bias)


class Bits16(TF32):
    """Products of 16 bits, as by two bfloat16."""

    bits = 16


class TF32Scores(Arithmetic):
    """Scores alone of 10 bits."""

    @override
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(cut(q, 10), cut(k, 10))


class Scale(Arithmetic):
    """A scale that is off by one in 10,000."""

    @override
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (1 + 1e-4)


class Clipped(Arithmetic):
    """Right until scores pass 60, as they do at large values."""

    @override
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k).clamp(-60, 60)


class Forgotten(Arithmetic):
    """The last key where there is one more than a multiple of 4 less 1."""

    @override
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        found = super().scores(q, k).clone()
        if found.shape[-1] % 4 == 3:
            found[..., -1] = -torch.inf
        return found


class Unguarded(Arithmetic):
    """Exponentials that overflow."""

    @override
    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        raised = scores.exp()
        return raised / raised.sum(-1, keepdim=True) @ v


class RoughExp(Arithmetic):
    """Exponentials that are off by up to one in 100,000: as small as what rounding does."""

    @override
    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        below = scores - scores.amax(-1, keepdim=True)
        raised = below.exp() * (1 + 1e-5 * torch.sin(1e3 * below).nan_to_num(0))
        return raised / raised.sum(-1, keepdim=True) @ v


class TanhGelu(Arithmetic):
    """The other GELU."""

    @override
    def gelu(self, x: Tensor) -> Tensor:
        return functional.gelu(x, approximate="tanh")


class Leak(Arithmetic):
    """Hidden keys that count a little."""

    hidden = -20.0


CORRECT = {
    "blocks of 4": lambda: Blocks(4),
    "one by one": lambda: Blocks(1),
    "folded": Folded,
    "in tiles": InTiles,
    "rounded once": RoundedOnce,
}
_FAULTY = (TF32, Bits16, TF32Scores, Scale, Clipped, Forgotten, Unguarded, RoughExp, TanhGelu, Leak)
FAULTS = {kind.__name__: kind for kind in _FAULTY}
