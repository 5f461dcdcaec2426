"""Projections fused or apart, windows and chunks, latents, values of another width, two attentions in one module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.dims import TensorSpec
from spellings.case import (
    MASK,
    MEMORY,
    MEMORY_MASK,
    PADDED,
    PADDING,
    PLAIN,
    SDPA,
    Case,
    D,
    E,
    H,
    X,
    Y,
    contract,
    flat,
    heads,
)


class Fused(nn.Module):
    """One projection for q, k and v; subclasses say how it is cut."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.qkv = nn.Linear(E, 3 * E)
        self.proj = nn.Linear(E, E)

    def cut(self, qkv: Any, b: int, n: int) -> Any:
        raise NotImplementedError

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        q, k, v = self.cut(self.qkv(x), b, n)
        attn = (q @ k.transpose(-2, -1)) * D**-0.5
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)


class Split(Fused):
    """nanoGPT's."""

    def cut(self, qkv: Any, b: int, n: int) -> Any:
        return (each.view(b, n, H, D).transpose(1, 2) for each in qkv.split(E, dim=2))


class Chunk(Fused):
    def cut(self, qkv: Any, b: int, n: int) -> Any:
        return (each.reshape(b, n, H, D).permute(0, 2, 1, 3) for each in qkv.chunk(3, dim=-1))


class Unbind(Fused):
    """timm's."""

    def cut(self, qkv: Any, b: int, n: int) -> Any:
        return qkv.reshape(b, n, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)


class Select(Fused):
    def cut(self, qkv: Any, b: int, n: int) -> Any:
        qkv = qkv.view(b, n, 3, H, D).permute(2, 0, 3, 1, 4)
        return qkv[0], qkv[1], qkv[2]


class HeadsOutside(Fused):
    """NeoX's: each head's q, k and v stand together."""

    def cut(self, qkv: Any, b: int, n: int) -> Any:
        return qkv.view(b, n, H, 3 * D).transpose(1, 2).chunk(3, dim=-1)


class Megatron(Fused):
    """The same cut by strides of the third axis."""

    def cut(self, qkv: Any, b: int, n: int) -> Any:
        qkv = qkv.view(b, n, H, 3, D)
        return (qkv[..., at, :].transpose(1, 2) for at in range(3))


class KeyValueFused(nn.Module):
    """PVT's and most cross attentions': q apart, k and v together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.q, self.kv = nn.Linear(E, E), nn.Linear(E, 2 * E)

    def forward(self, x: Any, memory: Any) -> Any:
        b, n, c = x.shape
        q = self.q(x).reshape(b, n, H, D).permute(0, 2, 1, 3)
        k, v = self.kv(memory).reshape(b, -1, 2, H, D).permute(2, 0, 3, 1, 4)
        return ((q @ k.transpose(-2, -1) * D**-0.5).softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)


class HeadsLast(nn.Module):
    """The output is permuted to `[S,B,H,D]`."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v).permute(2, 0, 1, 3).contiguous()


class WideValues(nn.Module):
    """Values wider than keys."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(13)
        self.q, self.k, self.v = nn.Linear(E, H * D), nn.Linear(E, H * D), nn.Linear(E, H * 2 * D)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k = (p(x).view(b, s, H, D).transpose(1, 2) for p in (self.q, self.k))
        v = self.v(x).view(b, s, H, 2 * D).transpose(1, 2)
        return ((q @ k.transpose(-1, -2) / math.sqrt(D)).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Latent(nn.Module):
    """DeepSeek's: keys of a compressed part and a shared part, values narrower than keys."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(14)
        self.q, self.down, self.up = nn.Linear(E, H * 6), nn.Linear(E, 8 + 2), nn.Linear(8, H * (4 + 4))

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, H, 6).transpose(1, 2)
        compressed, k_pe = torch.split(self.down(x), [8, 2], dim=-1)
        k_nope, v = torch.split(self.up(compressed).view(b, s, H, 8).transpose(1, 2), [4, 4], dim=-1)
        k = torch.cat((k_nope, k_pe.view(b, 1, s, 2).expand(-1, H, -1, -1)), dim=-1)
        attn = torch.matmul(q, k.transpose(2, 3)) * 6**-0.5
        later = torch.ones(s, s, dtype=torch.bool).triu(1)
        return torch.matmul(attn.masked_fill(later, float("-inf")).softmax(-1), v).transpose(1, 2).flatten(2)


class TwoKinds(nn.Module):
    """Self attention and cross attention in one forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(15)
        self.own, self.q, self.kv = nn.Linear(E, 3 * E), nn.Linear(E, E), nn.Linear(E, 2 * E)

    def forward(self, x: Any, memory: Any, mask: Any) -> Any:
        b, s, _ = x.shape
        later = torch.full((s, s), float("-inf"), dtype=x.dtype).triu(1)
        low = torch.where(mask.bool()[:, None, None, :], 0.0, torch.finfo(torch.float32).min)
        q, k, v = (each.view(b, s, H, D).transpose(1, 2) for each in self.own(x).chunk(3, -1))
        x = x + ((q @ k.mT / math.sqrt(D) + later).softmax(-1) @ v).transpose(1, 2).reshape(b, s, E)
        q = self.q(x).view(b, s, H, D).transpose(1, 2)
        k, v = (each.view(b, -1, H, D).transpose(1, 2) for each in self.kv(memory).chunk(2, -1))
        return x + ((q @ k.mT / math.sqrt(D) + low.to(q.dtype)).softmax(-1) @ v).transpose(1, 2).reshape(b, s, E)


class Perceiver(nn.Module):
    """Learned latents, expanded over the batch, are the queries."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(16)
        self.latents = nn.Parameter(torch.randn(3, E))
        self.to_q, self.to_kv = nn.Linear(E, E), nn.Linear(E, 2 * E)

    def forward(self, x: Any, mask: Any) -> Any:
        b = x.shape[0]
        latents = self.latents.unsqueeze(0).expand(b, -1, -1)
        q = self.to_q(latents).view(b, -1, H, D).transpose(1, 2)
        k, v = (each.view(b, -1, H, D).transpose(1, 2) for each in self.to_kv(x).chunk(2, dim=-1))
        attn = (q @ k.transpose(-1, -2) * D**-0.5).masked_fill(mask[:, None, None] == 0, -1e9)
        return (attn.softmax(-1) @ v).transpose(1, 2).reshape(b, -1, E)


class LearnedQueries(nn.Module):
    """One set of queries for every batch row: the product broadcasts over the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.queries = nn.Parameter(torch.randn(1, H, 3, D))

    def forward(self, k: Any, v: Any) -> Any:
        return (self.queries @ k.transpose(-1, -2)).softmax(-1) @ v


class PooledByOneToken(nn.Module):
    """A learned class query without a batch, `[H,1,D]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(17)
        self.query = nn.Parameter(torch.randn(H, 1, D))

    def forward(self, k: Any, v: Any) -> Any:
        return torch.softmax(torch.matmul(self.query, k.transpose(-2, -1)) / 2, dim=-1) @ v


class Windows(nn.Module):
    """Swin's: windows of an image of 4 x 4 as batch rows, shifted, a mask for each window, a table of biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(18)
        self.qkv = nn.Linear(E, 3 * E)
        self.table = nn.Parameter(torch.randn(9, H))
        y, x = torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
        y, x = y.flatten(), x.flatten()
        self.register_buffer("index", (y[:, None] - y[None] + 1) * 3 + (x[:, None] - x[None] + 1))
        region = torch.zeros(4, 4)
        region[2:3], region[3:] = 3, 6
        region[:, 2:3] += 1
        region[:, 3:] += 2
        region = region.view(2, 2, 2, 2).permute(0, 2, 1, 3).reshape(4, 4)
        differ = region[:, None, :] - region[:, :, None]
        self.register_buffer("mask", differ.masked_fill(differ != 0, -100.0).masked_fill(differ == 0, 0.0))

    def forward(self, x: Any) -> Any:
        b = x.shape[0]
        x = torch.roll(x, (-1, -1), (1, 2)).view(b, 2, 2, 2, 2, E).permute(0, 1, 3, 2, 4, 5).reshape(b * 4, 4, E)
        q, k, v = self.qkv(x).reshape(b * 4, 4, 3, H, D).permute(2, 0, 3, 1, 4)
        attn = q * D**-0.5 @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(4, 4, H).permute(2, 0, 1).contiguous()
        attn = attn + bias.unsqueeze(0)
        attn = attn.view(b, 4, H, 4, 4) + self.mask.unsqueeze(1).unsqueeze(0)
        attn = attn.view(-1, H, 4, 4).softmax(-1)
        x = (attn @ v).transpose(1, 2).reshape(b, 2, 2, 2, 2, E).permute(0, 1, 3, 2, 4, 5).reshape(b, 4, 4, E)
        return torch.roll(x, (1, 1), (1, 2))


class AnyNumberOfWindows(nn.Module):
    """As `Windows`, of a grid whose size is not known: neither the batch nor the number of windows is a number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(21)
        self.qkv = nn.Linear(E, 3 * E)

    def hidden(self, x: Any) -> Any:
        at = torch.arange(x.shape[1])[:, None, None] + torch.arange(4)[:, None] + torch.arange(4)
        return at % 3 == 1

    def masked(self, attn: Any, x: Any) -> Any:
        return attn + (self.hidden(x) * -100.0)[None, :, None]

    def forward(self, x: Any) -> Any:
        b, n = x.shape[:2]
        q, k, v = self.qkv(x.reshape(b * n, 4, E)).reshape(b * n, 4, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
        attn = self.masked((q @ k.mT * D**-0.5).view(b, n, H, 4, 4), x)
        return (attn.view(-1, H, 4, 4).softmax(-1) @ v).transpose(1, 2).reshape(b, n, 4, E)


class WindowsFilled(AnyNumberOfWindows):
    """The same with scores that are filled."""

    def masked(self, attn: Any, x: Any) -> Any:
        return attn.masked_fill(self.hidden(x)[None, :, None], float("-inf"))


class Chunks(nn.Module):
    """Chunks that see only themselves: scores `[B,H,C,W,W]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(19)
        self.qkv = nn.Linear(E, 3 * E)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (each.unflatten(-1, (H, D)).permute(0, 3, 1, 2, 4) for each in self.qkv(x).chunk(3, dim=-1))
        dots = torch.einsum("bhcid,bhcjd->bhcij", q, k) * D**-0.5
        dots = dots.masked_fill(~mask.bool()[:, None, :, None, :], -1e9)
        return torch.einsum("bhcij,bhcjd->bhcid", dots.softmax(-1), v).permute(0, 2, 3, 1, 4).flatten(3)


class Axial(nn.Module):
    """Attention along one axis of a grid, rows as batch: scores of rank 5."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(20)
        self.to_q, self.to_k, self.to_v = (nn.Linear(E, E) for _ in range(3))

    def forward(self, x: Any) -> Any:
        q, k, v = (p(x).unflatten(-1, (H, D)).transpose(2, 3) for p in (self.to_q, self.to_k, self.to_v))
        return (torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D), dim=-1) @ v).transpose(2, 3).flatten(3)


class OneHeadOperator(nn.Module):
    """`scaled_dot_product_attention` over queries of rank 3, with a mask of their rank."""

    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return sdpa(q, k, v, attn_mask=mask.bool()[:, None, :].expand(-1, q.shape[1], -1)) + sdpa(q, k, v)


class RawOperator(nn.Module):
    """q, k, v are inputs and the output is the attention's."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, scale=0.3)


class Stacked(nn.Module):
    """Two attentions of one module, the second fed by the first without anything between; and one softmax apart."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        first = sdpa(q, k, v)
        return sdpa(first, k, v, is_causal=True) * k.softmax(-1)[:, :, :1, :1]


class Multihead(nn.Module):
    """torch's own module."""

    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        torch.manual_seed(21)
        self.attn, self.weights = nn.MultiheadAttention(E, H, batch_first=True), weights

    def forward(self, x: Any, mask: Any) -> Any:
        out, weights = self.attn(x, x, x, key_padding_mask=mask == 0, need_weights=self.weights)
        return (out, weights) if self.weights else out


_WINDOWS = contract(
    TensorSpec("x", "float32", ("batch", "chunk", 4, E)),
    outputs=(TensorSpec("y", "float32", ("batch", "chunk", 4, E)),),
)
_QKV = (heads("q", "seq"), heads("k", "mem"), heads("v", "mem"))
CASES: dict[str, Case] = {
    **{
        name: Case(module, PLAIN, "none")
        for name, module in {
            "qkv_split": Split,
            "qkv_chunk": Chunk,
            "qkv_unbind": Unbind,
            "qkv_select": Select,
            "qkv_heads_outside": HeadsOutside,
            "qkv_megatron": Megatron,
        }.items()
    },
    "kv_fused": Case(KeyValueFused, contract(X, MEMORY), "none"),
    "heads_last": Case(
        HeadsLast, contract(*_QKV, outputs=(TensorSpec("y", "float32", ("seq", "batch", H, D)),)), "none", SDPA
    ),
    "wide_values": Case(WideValues, contract(X, outputs=(flat("y", "seq", 2 * E),)), "none"),
    "latent": Case(Latent, PLAIN, "causal"),
    "two_kinds": Case(TwoKinds, contract(X, MEMORY, MEMORY_MASK, masks=(PADDING,)), ("causal", "padding(mask)")),
    "perceiver": Case(Perceiver, contract(X, MASK, outputs=(flat("y", 3),), masks=(PADDING,)), "padding(mask)"),
    "learned_queries": Case(LearnedQueries, contract(*_QKV[1:], outputs=(heads("y", 3),)), "none"),
    "pooled_by_one_token": Case(PooledByOneToken, contract(*_QKV[1:], outputs=(heads("y", 1),)), "none"),
    "windows": Case(
        Windows,
        contract(
            TensorSpec("x", "float32", ("batch", 4, 4, E)), outputs=(TensorSpec("y", "float32", ("batch", 4, 4, E)),)
        ),
        "bias",
    ),
    "windows_any_number": Case(AnyNumberOfWindows, _WINDOWS, "bias"),
    "windows_filled": Case(WindowsFilled, _WINDOWS, "explicit"),
    "chunks": Case(
        Chunks,
        contract(
            TensorSpec("x", "float32", ("batch", "chunk", 4, E)),
            TensorSpec("mask", "int64", ("batch", "chunk", 4)),
            outputs=(TensorSpec("y", "float32", ("batch", "chunk", 4, E)),),
            masks=(PADDING,),
        ),
        "padding(mask)",
    ),
    "axial": Case(
        Axial,
        contract(
            TensorSpec("x", "float32", ("batch", "chunk", "seq", E)),
            outputs=(TensorSpec("y", "float32", ("batch", "chunk", "seq", E)),),
        ),
        "none",
    ),
    "one_head_operator": Case(
        OneHeadOperator,
        contract(flat("q", "seq"), flat("k", "mem"), flat("v", "mem"), MEMORY_MASK, masks=(PADDING,)),
        ("padding(mask)", "none"),
        SDPA,
    ),
    "raw_operator": Case(RawOperator, contract(*_QKV, outputs=(heads("y", "seq"),)), "none", SDPA),
    "multihead": Case(lambda: Multihead(weights=False), PADDED, "padding(mask)", SDPA),
    "multihead_weights": Case(
        lambda: Multihead(weights=True),
        contract(X, MASK, outputs=(Y, TensorSpec("weights", "float32", ("batch", "seq", "seq"))), masks=(PADDING,)),
        "padding(mask)",
    ),
}
STACKED = Case(Stacked, contract(*_QKV, outputs=(heads("y", "seq"),)), ("none", "causal"), SDPA)
