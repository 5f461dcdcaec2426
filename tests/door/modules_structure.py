"""Modules that differ in how they are made: adapters, parametrisations, sharing, precision, compilation, hooks."""

from __future__ import annotations

import torch
from door_blocks import HEADS, VOCAB, WIDTH, Block, Encoder, SelfAttention, hidden_keys
from door_case import door
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as users write it
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

X, IDS, MASK = "x=float32[batch,seq,32]", "ids=int64[batch,seq]:high=100", "mask=int64[batch,seq]:padding"


class Lora(nn.Module):
    """A low-rank update beside a frozen layer."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0


@door(IDS, MASK)
def lora_adapters() -> nn.Module:
    torch.manual_seed(6)
    encoder = Encoder(1)
    for block in encoder.blocks:
        block.attention.q, block.attention.v = Lora(block.attention.q), Lora(block.attention.v)
    return encoder


@door(IDS, MASK)
def weight_normed() -> nn.Module:
    torch.manual_seed(6)
    encoder = Encoder(1)
    for name in ("q", "k", "v", "o"):
        weight_norm(getattr(encoder.blocks[0].attention, name))
    return encoder


@door(IDS, MASK)
def spectral_normed() -> nn.Module:
    torch.manual_seed(6)
    encoder = Encoder(1)
    spectral_norm(encoder.blocks[0].attention.v)
    spectral_norm(encoder.blocks[0].mlp[0])
    return encoder


class Tied(nn.Module):
    """One layer run three times, and the table of tokens as the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        shared = Block()
        self.layers = nn.ModuleList([shared, shared, shared])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, hidden_keys(mask))
        return self.head(x)


@door(IDS, MASK)
def tied_and_shared() -> nn.Module:
    torch.manual_seed(6)
    return Tied()


class Counting(nn.Module):
    """Normalises by running statistics, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.BatchNorm1d(WIDTH), SelfAttention()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.attention(self.norm(x.transpose(1, 2)).transpose(1, 2))


@door(X)
def buffer_that_changes() -> nn.Module:
    torch.manual_seed(6)
    return Counting()


@door("x=bfloat16[batch,seq,32]", tolerance=5e-2)
def in_bfloat16() -> nn.Module:
    torch.manual_seed(6)
    return Block().to(torch.bfloat16)


@door("x=float16[batch,seq,32]", tolerance=1e-2)
def in_half() -> nn.Module:
    torch.manual_seed(6)
    return Block().half()


@door(IDS, tolerance=1e-2)
def in_half_from_ids() -> nn.Module:
    torch.manual_seed(6)
    return Encoder(1).half()


@door(IDS, MASK, nest=lambda given: tuple(given.values()), shapes=lambda given: (tuple(given.values()),))
def compiled() -> nn.Module:
    torch.manual_seed(6)
    return torch.compile(Encoder(1), backend="eager")


@door(IDS)
def compiled_part() -> nn.Module:
    torch.manual_seed(6)
    encoder = Encoder(2)
    encoder.blocks[1].compile(backend="eager")
    return encoder


class Scriptable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(self.q(x), self.k(x).transpose(1, 2)) / 6.0
        return torch.matmul(torch.softmax(scores, dim=-1), self.v(x))


@door(X)
def scripted() -> nn.Module:
    torch.manual_seed(6)
    return torch.jit.script(Scriptable())


class Outer(nn.Module):
    """A scripted layer inside of a usual module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), torch.jit.script(Scriptable())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@door(X)
def scripted_part() -> nn.Module:
    torch.manual_seed(6)
    return Outer()


@door(IDS, MASK)
def hooked() -> nn.Module:
    """Hooks that change what a layer takes and returns, and one that only looks."""
    torch.manual_seed(6)
    encoder, seen = Encoder(1), []
    encoder.embed.register_forward_hook(lambda module, args, output: output * WIDTH**0.5)
    encoder.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] + 1.0, *args[1:]))
    encoder.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    return encoder


@door(IDS, MASK)
def left_in_training() -> nn.Module:
    """Dropout everywhere, and nobody called eval()."""
    torch.manual_seed(6)
    encoder = Encoder(1)
    encoder.blocks[0].mlp.append(nn.Dropout(0.5))
    return encoder.train()


@door(IDS, MASK)
def not_seeded() -> nn.Module:
    """Other weights at each call."""
    return Encoder(1)


class Experts(nn.Module):
    """Two of four experts for each token; all are computed and weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.gate = SelfAttention(), nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.SiLU(), nn.Linear(48, WIDTH)) for _ in "abcd"
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attention(x)
        chance = self.gate(x).softmax(-1)
        top, chosen = chance.topk(2, dim=-1)
        weight = torch.zeros_like(chance).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
        return x + sum(weight[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts)), chosen


@door(X)
def experts_by_weights() -> nn.Module:
    torch.manual_seed(6)
    return Experts()


class SparseExperts(Experts):
    """Each expert sees its own tokens only, gathered by `where` and added by `index_add_`, as in Mixtral."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        top, chosen = self.gate(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            out.index_add_(0, token, expert(flat[token]) * top[token, rank, None])
        return out.view_as(x)


@door(X)
def experts_by_index_add() -> nn.Module:
    torch.manual_seed(6)
    return SparseExperts()


class GatedUnits(nn.Module):
    """RMS norms, gated linear units, grouped keys repeated to the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.q, self.kv, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q = self.q(y).unflatten(-1, (HEADS, 8)).transpose(1, 2)
        k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2).repeat_interleave(2, 1) for part in self.kv(y).chunk(2, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.glu(self.up(F.rms_norm(x, (WIDTH,)))))


@door(X)
def gated_units() -> nn.Module:
    torch.manual_seed(6)
    return GatedUnits()


class ReadsFirst(nn.Module):
    """A recurrence over the sequence, and attention to what it found."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner = kind(WIDTH, WIDTH // 2, num_layers=2, batch_first=True, bidirectional=True)
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.inner(x)[0])


@door(X)
def lstm_before_attention() -> nn.Module:
    torch.manual_seed(10)
    return ReadsFirst(nn.LSTM)


@door(X)
def gru_before_attention() -> nn.Module:
    torch.manual_seed(10)
    return ReadsFirst(nn.GRU)


class PerItem(nn.Module):
    """Attention of one item and one head, mapped over the others; a mask of every pair likewise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        def seen(item: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (key <= query) & (mask[item, key] != 0)

        def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
            return (q @ k.T * WIDTH**-0.5).masked_fill(~kept, -1e9).softmax(-1) @ v

        pairs = torch.vmap(torch.vmap(torch.vmap(seen, (None, None, 0)), (None, 0, None)), (0, None, None))
        items, places = torch.arange(x.shape[0]), torch.arange(x.shape[1])
        return torch.vmap(attended)(*self.qkv(x).chunk(3, -1), pairs(items, places, places))


@door(X, MASK)
def mapped_over_items() -> nn.Module:
    return PerItem()
