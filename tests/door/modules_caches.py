"""Modules with a cache of keys and values: concatenated, of fixed size, rotating, and the transformers library's."""

from __future__ import annotations

from typing import Any

import torch
from door_blocks import HEADS, VOCAB, WIDTH
from door_case import MORE, Sizes, door, ten
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as users write it

D = WIDTH // HEADS
PAST = (6, 1, 4, 2, 9, 3, 20, 7, 1, 50)


class CachedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        B, S, _ = x.shape
        return self.qkv(x).view(B, S, 3, HEADS, D).permute(2, 0, 3, 1, 4).unbind(0)

    def merge(self, mixed: torch.Tensor) -> torch.Tensor:
        return self.o(mixed.transpose(1, 2).flatten(2))


class GrowingCache(CachedAttention):
    """Several new tokens behind the cached ones; a query sees the cache and the new tokens up to itself."""

    def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.split(x)
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        S, T = q.shape[2], k.shape[2]
        allowed = torch.ones(S, T, dtype=torch.bool, device=x.device).tril(T - S)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)), k, v


@door(
    "x=float32[batch,seq,32]",
    f"past_k=float32[batch,{HEADS},past,{D}]",
    f"past_v=float32[batch,{HEADS},past,{D}]",
    sizes=ten(past=PAST),
)
def growing_cache() -> nn.Module:
    torch.manual_seed(3)
    return GrowingCache()


class MaskedCache(CachedAttention):
    """As `GrowingCache`, with a padding mask over the cached and the new tokens, as transformers' decoders take one."""

    def forward(
        self, x: torch.Tensor, attention_mask: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        q, k, v = self.split(x)
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        S, T = q.shape[2], k.shape[2]
        allowed = torch.arange(T) <= torch.arange(T - S, T)[:, None]
        allowed = allowed & attention_mask[:, None, None, :].bool()
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)), k, v


@door(
    "x=float32[batch,seq,32]",
    "attention_mask=int64[batch,past+seq]:padding",
    f"past_k=float32[batch,{HEADS},past,{D}]",
    f"past_v=float32[batch,{HEADS},past,{D}]",
    sizes=ten(past=PAST),
)
def masked_cache() -> nn.Module:
    torch.manual_seed(5)
    return MaskedCache()


class OneToken(nn.Module):
    """Two layers, one new token, the cache as a list of pairs; `past + 1` keys go out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(CachedAttention() for _ in range(2))

    def forward(
        self, ids: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        x, grown = self.embed(ids), []
        for layer, (past_k, past_v) in zip(self.layers, cache, strict=True):
            q, k, v = layer.split(x)
            k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
            x = x + layer.merge((q @ k.transpose(-1, -2) * D**-0.5).softmax(-1) @ v)
            grown.append((k, v))
        return x @ self.embed.weight.T, grown


@door(
    "ids=int64[batch,1]:high=100",
    *(f"cache_{layer}_{at}=float32[batch,{HEADS},past,{D}]" for layer in (0, 1) for at in (0, 1)),
    sizes=ten(seq=(), past=PAST),
    nest=lambda given: {
        "ids": given["ids"],
        "cache": [(given[f"cache_{layer}_0"], given[f"cache_{layer}_1"]) for layer in (0, 1)],
    },
)
def one_token_lists() -> nn.Module:
    torch.manual_seed(3)
    return OneToken()


class StepFlat(CachedAttention):
    """One new token, as an embedding; the cache by two names."""

    def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> dict[str, torch.Tensor]:
        q, k, v = self.split(x)
        k, v = torch.cat((past_k, k), -2), torch.cat((past_v, v), -2)
        return {"y": self.merge(F.scaled_dot_product_attention(q, k, v)), "present_k": k, "present_v": v}


@door(
    "x=float32[batch,1,32]",
    f"past_k=float32[batch,{HEADS},past,{D}]",
    f"past_v=float32[batch,{HEADS},past,{D}]",
    sizes=ten(seq=(), past=PAST),
)
def one_token_step() -> nn.Module:
    torch.manual_seed(3)
    return StepFlat()


class StaticCache(CachedAttention):
    """A cache of 160 places; new keys are written at `positions`, and later places are hidden."""

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        q, k, v = self.split(x)
        k_cache, v_cache = k_cache.clone(), v_cache.clone()
        k_cache[:, :, positions] = k
        v_cache[:, :, positions] = v
        allowed = torch.arange(k_cache.shape[2], device=x.device)[None, :] <= positions[:, None]
        return self.merge(F.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=allowed)), k_cache, v_cache


def _positions(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return torch.arange(sizes["seq"]) + torch.randint(0, 20, (1,), generator=generator)


STATIC = (
    "x=float32[batch,seq,32]",
    "positions=int64[seq]:high=160",
    f"k_cache=float32[batch,{HEADS},160,{D}]",
    f"v_cache=float32[batch,{HEADS},160,{D}]",
)


@door(*STATIC, dims=("seq=1:16:140",), values={"positions": _positions})
def static_cache() -> nn.Module:
    torch.manual_seed(3)
    return StaticCache()


class ScatteredCache(StaticCache):
    """As above, written by `index_copy`."""

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        q, k, v = self.split(x)
        k_all, v_all = k_cache.index_copy(2, positions, k), v_cache.index_copy(2, positions, v)
        hidden = torch.arange(k_all.size(2))[None, :] > positions[:, None]
        scores = (q @ k_all.mT / D**0.5).masked_fill(hidden, float("-inf"))
        return self.merge(scores.softmax(-1) @ v_all), k_all, v_all


@door(*STATIC, dims=("seq=1:16:140",), values={"positions": _positions})
def scattered_cache() -> nn.Module:
    torch.manual_seed(3)
    return ScatteredCache()


class RotatingCache(CachedAttention):
    """Keeps the last keys: as many go out as came in."""

    def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.split(x)
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        y = self.merge(F.scaled_dot_product_attention(q, k, v))
        window = past_k.shape[2]
        return y, k[:, :, -window:], v[:, :, -window:]


@door(
    "x=float32[batch,seq,32]",
    f"past_k=float32[batch,{HEADS},past,{D}]",
    f"past_v=float32[batch,{HEADS},past,{D}]",
    sizes=ten(seq=MORE, past=PAST),
)
def rotating_cache() -> nn.Module:
    torch.manual_seed(3)
    return RotatingCache()


class LibraryCache(nn.Module):
    """The transformers library's decoder, with its cache made from tensors and taken apart again."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=256,
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, ids: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> dict[str, Any]:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        cache.update(past_k, past_v, 0)
        logits = self.model(ids, past_key_values=cache, use_cache=True).logits
        return {"logits": logits, "present_k": cache.layers[0].keys, "present_v": cache.layers[0].values}


@door(
    "ids=int64[batch,seq]:high=100",
    f"past_k=float32[batch,{HEADS},past,{D}]",
    f"past_v=float32[batch,{HEADS},past,{D}]",
    sizes=ten(past=PAST),
)
def library_cache() -> nn.Module:
    torch.manual_seed(3)
    return LibraryCache()
