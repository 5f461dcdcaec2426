"""Modules that differ in masks, positions, and in how a softmax is written."""

from __future__ import annotations

import math

import torch
from door_blocks import HEADS, VOCAB, WIDTH, Block, Encoder, SelfAttention, hidden_keys
from door_case import MORE, Sizes, door, left_padding, ten
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as users write it

X, IDS, MASK = "x=float32[batch,seq,32]", "ids=int64[batch,seq]:high=100", "mask=int64[batch,seq]:padding"
D = WIDTH // HEADS


class Heads(nn.Module):
    """Queries, keys and values in heads; how they are mixed is the subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(part.unflatten(-1, (HEADS, D)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))

    def merge(self, mixed: torch.Tensor) -> torch.Tensor:
        return self.o(mixed.transpose(1, 2).flatten(2))


class Lengths(Heads):
    """Padding given as lengths."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        hidden = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1) >= lengths.unsqueeze(1)
        scores = torch.einsum("bhsd,bhtd->bhst", q, k) / math.sqrt(D)
        weights = scores.masked_fill(hidden[:, None, None, :], -1e4).softmax(dim=-1)
        return self.merge(torch.einsum("bhst,bhtd->bhsd", weights, v))


@door(X, "lengths=int64[batch]:padding:lengths")
def lengths() -> nn.Module:
    torch.manual_seed(5)
    return Lengths()


class SdpaBool(Heads):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool()))


@door(X, MASK)
def sdpa_bool_mask() -> nn.Module:
    torch.manual_seed(5)
    return SdpaBool()


@door(X, "mask=bool[batch,seq]:padding")
def sdpa_bool_input() -> nn.Module:
    torch.manual_seed(5)
    return SdpaBool()


class SdpaFloat(Heads):
    """A float mask, and positions counted over the real tokens as in RoBERTa."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(140, WIDTH, padding_idx=1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.cumsum(mask, dim=1) * mask + 1
        q, k, v = self.split(self.embed(ids) + self.positions(places))
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=hidden_keys(mask)))


@door(IDS, MASK)
def positions_by_cumsum() -> nn.Module:
    torch.manual_seed(5)
    return SdpaFloat()


class SdpaCausal(Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.merge(F.scaled_dot_product_attention(*self.split(x), is_causal=True))


@door(X)
def sdpa_is_causal() -> nn.Module:
    torch.manual_seed(5)
    return SdpaCausal()


class LibraryMasks(nn.Module):
    """nn.MultiheadAttention with both of its masks, then the library's encoder layer, then an own block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, norm_first=True, batch_first=True)
        self.block = Block()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = mask == 0
        causal = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
        x = x + self.attention(x, x, x, key_padding_mask=hidden, attn_mask=causal, need_weights=False)[0]
        return self.block(self.layer(x, src_key_padding_mask=hidden), hidden_keys(mask))


@door(X, MASK, kept="mask")
def library_and_own() -> nn.Module:
    torch.manual_seed(5)
    return LibraryMasks()


class LibraryEncoder(nn.Module):
    """nn.TransformerEncoder, causal, time first, with the library's own mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, src: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(src.shape[0])
        return self.encoder(src, mask=causal, is_causal=True)


@door("src=float32[seq,batch,32]")
def library_encoder_causal() -> nn.Module:
    torch.manual_seed(5)
    return LibraryEncoder()


class Translator(nn.Module):
    """nn.Transformer with a source and a target of different lengths, and padding in both."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.model = nn.Transformer(WIDTH, HEADS, 1, 1, 48, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
        hidden = ~source_mask.bool()
        causal = self.model.generate_square_subsequent_mask(target.size(1))
        x = self.model(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return x @ self.embed.weight.t()


def _source_mask(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    lengths = torch.randint(1, sizes["source_len"] + 1, (sizes["batch"], 1), generator=generator)
    return (torch.arange(sizes["source_len"]) < lengths).long()


@door(
    "source=int64[batch,source_len]:high=100",
    "target=int64[batch,target_len]:high=100",
    "source_mask=int64[batch,source_len]:padding",
    sizes=ten(seq=(), source_len=(11, 1, 2, 7, 16, 33, 64, 5, 77, 30), target_len=MORE),
    values={"source_mask": _source_mask},
)
def translator() -> nn.Module:
    torch.manual_seed(5)
    return Translator()


class CrossAttention(nn.Module):
    """A memory of another length, with its own mask."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = SelfAttention(), SelfAttention()

    def forward(self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor) -> torch.Tensor:
        x = x + self.own(x)
        return x + self.cross(x, hidden_keys(memory_mask), memory)


@door(
    X,
    "memory=float32[batch,source,32]",
    "memory_mask=int64[batch,source]:padding",
    sizes=ten(source=MORE),
)
def cross_attention() -> nn.Module:
    torch.manual_seed(5)
    return CrossAttention()


class Alibi(Heads):
    """Slopes by head times distances, computed in the forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        T = x.shape[1]
        place = torch.arange(T, device=x.device)
        slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / HEADS) for head in range(HEADS)])
        bias = -(place[None, :] - place[:, None]).abs() * slopes[:, None, None]
        causal = torch.full((T, T), float("-inf")).triu(1)
        return self.merge((q @ k.mT / D**0.5 + bias + causal).softmax(-1) @ v)


@door(X)
def alibi() -> nn.Module:
    torch.manual_seed(5)
    return Alibi()


class ComplexRope(Heads):
    """Rotations by complex numbers, as Llama's first code had them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        inverse = 1.0 / (10000.0 ** (torch.arange(0, D, 2).float() / D))
        angles = torch.outer(torch.arange(x.shape[1]).float(), inverse)
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (
            torch.view_as_real(torch.view_as_complex(part.float().reshape(*part.shape[:-1], -1, 2)) * turn).flatten(3)
            for part in (q, k)
        )
        return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))


@door(X)
def rope_complex() -> nn.Module:
    torch.manual_seed(5)
    return ComplexRope()


class HalfRope(Heads):
    """Rotations of halves, at positions that are given."""

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        inverse = 1.0 / (10000.0 ** (torch.arange(0, D, 2, dtype=torch.float32) / D))
        angles = (position_ids[:, :, None].float() * inverse).repeat(1, 1, 2).unsqueeze(1)
        q, k = (part * angles.cos() + self.rotated(part) * angles.sin() for part in (q, k))
        return self.merge(F.scaled_dot_product_attention(q, k, v))

    @staticmethod
    def rotated(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


@door(X, "position_ids=int64[batch,seq]:high=200")
def rope_given_positions() -> nn.Module:
    torch.manual_seed(5)
    return HalfRope()


class LogSumExp(Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        scores = q @ k.transpose(2, 3) * D**-0.5
        return self.merge(torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True)) @ v)


@door(X)
def softmax_by_logsumexp() -> nn.Module:
    torch.manual_seed(5)
    return LogSumExp()


class MaxAndSum(Heads):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D)
        largest = scores.max(dim=-1, keepdim=True).values
        raised = torch.exp(scores - largest) * mask[:, None, None, :]
        return self.merge(torch.matmul(raised, v) / (raised.sum(dim=-1, keepdim=True) + 1e-9))


@door(X, MASK)
def softmax_by_maximum() -> nn.Module:
    torch.manual_seed(5)
    return MaxAndSum()


class LeftPadded(Encoder):
    """A decoder with left padding; positions count real tokens only; softmax in float32, then cast."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = (mask.long().cumsum(-1) - 1).clamp(min=0)
        angles = places[..., None] / 10.0 ** (torch.arange(WIDTH) / WIDTH * 4)
        T = ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        allowed = causal[None, None] & mask[:, None, None, :].bool()
        added = torch.zeros(ids.shape[0], 1, T, T).masked_fill(~allowed, torch.finfo(torch.float32).min)
        x = self.embed(ids) + angles.sin()
        for block in self.blocks:
            x = block(x, added)
        return x @ self.embed.weight.T


@door(IDS, MASK, values={"mask": left_padding}, kept="mask")
def left_padded_decoder() -> nn.Module:
    torch.manual_seed(5)
    return LeftPadded()


class Buckets(Heads):
    """T5's buckets of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, HEADS)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        place = torch.arange(x.shape[1], device=x.device)
        relative = place[None, :] - place[:, None]
        bucket, distance = (relative > 0).long() * 8, relative.abs()
        far = 4 + (torch.log(distance.float() / 4) / math.log(64 / 4) * 4).long()
        bucket = bucket + torch.where(distance < 4, distance, torch.min(far, torch.full_like(far, 7)))
        bias = self.table(bucket).permute(2, 0, 1).unsqueeze(0) + hidden_keys(mask)
        weights = F.softmax((q @ k.transpose(3, 2) + bias).float(), dim=-1).type_as(q)
        return self.merge(weights @ v)


@door(X, MASK)
def t5_buckets() -> nn.Module:
    torch.manual_seed(5)
    return Buckets()


class RelShift(Heads):
    """Transformer-XL's shift by padding, viewing and slicing."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.u = nn.Linear(WIDTH, WIDTH, bias=False), nn.Parameter(torch.randn(HEADS, 1, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        B, T, E = x.shape
        angle = torch.arange(T - 1, -1, -1.0)[:, None] / 10000 ** (torch.arange(0, E, 2.0) / E)
        r = self.r(torch.cat([angle.sin(), angle.cos()], -1)).view(T, HEADS, D).permute(1, 2, 0)
        by_place = F.pad((q + self.u) @ r, (1, 0)).view(B, HEADS, T + 1, T)[:, :, 1:].reshape(B, HEADS, T, T)
        hidden = torch.ones(T, T).triu(1).bool()
        scores = ((q @ k.mT + by_place) / D**0.5).masked_fill(hidden, -1e30)
        return self.merge(scores.softmax(-1) @ v)


@door(X)
def xl_relative_shift() -> nn.Module:
    torch.manual_seed(5)
    return RelShift()


class Linear(Heads):
    """Linear attention with elu + 1, and padding."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        q, k = F.elu(q) + 1, (F.elu(k) + 1) * mask[:, None, :, None]
        state = torch.einsum("bhtd,bhte->bhde", k, v)
        scale = 1 / (torch.einsum("bhsd,bhd->bhs", q, k.sum(2)) + 1e-6)
        return self.merge(torch.einsum("bhsd,bhde,bhs->bhse", q, state, scale))


@door(X, MASK)
def linear_attention() -> nn.Module:
    torch.manual_seed(5)
    return Linear()
