"""KVCacheAttention against torch's nn.MultiheadAttention over the whole sequence, on equal weights, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_layers import attention_weights

from attnport.models.blocks.model import split_heads
from attnport.models.kv_cache_attention import KVCacheAttention, KVCacheConfig, make

CONFIG = KVCacheConfig(width=48, heads=3)


def sequence(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def cached(module: KVCacheAttention, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a cache holds after `x`: keys, values, and a mask that hides nothing."""
    keys, values = (split_heads(part(x), 3) for part in (module.project.key, module.project.value))
    return keys, values, torch.ones(x.shape[:2], dtype=torch.int64)


def reference(ours: KVCacheAttention, x: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
    """Causal attention over all of `x`, computed again; `hidden` [B, T] is True for keys that are not there."""
    theirs = nn.MultiheadAttention(48, 3, batch_first=True).double().eval()
    theirs.load_state_dict(attention_weights(ours))
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    y: torch.Tensor = theirs(x, x, x, attn_mask=later, key_padding_mask=hidden, need_weights=False)[0]
    return y


@pytest.mark.parametrize(("past", "new"), [(1, 12), (7, 5), (11, 1), (1, 1), (2, 31)])
@torch.no_grad()
def test_new_tokens_get_what_attention_over_the_whole_gives(past: int, new: int) -> None:
    ours, x = make(CONFIG).double(), sequence(2, past + new)
    y, keys, values = ours(x[:, past:], *cached(ours, x[:, :past]))
    assert torch.allclose(y, reference(ours, x)[:, past:], atol=1e-12)
    whole_keys, whole_values, _ = cached(ours, x)
    assert torch.allclose(keys, whole_keys[:, :, past:])
    assert torch.allclose(values, whole_values[:, :, past:])


@torch.no_grad()
def test_hidden_positions_of_the_cache_are_not_attended() -> None:
    ours, x = make(CONFIG).double(), sequence(2, 12)
    keys, values, mask = cached(ours, x[:, :7])
    mask[0, :3] = mask[1, 2:6] = 0
    hidden = torch.cat([mask == 0, torch.zeros(2, 5, dtype=torch.bool)], dim=1)
    y, _, _ = ours(x[:, 7:], keys, values, mask)
    assert torch.allclose(y, reference(ours, x, hidden)[:, 7:], atol=1e-12)
    assert not torch.allclose(y, reference(ours, x)[:, 7:], atol=1e-3)


@torch.no_grad()
def test_behind_an_empty_cache_the_first_token_sees_itself_alone() -> None:
    ours, x = make(CONFIG).double(), sequence(1, 1)
    rubbish = torch.full((1, 3, 1, 16), 1e3, dtype=torch.float64)
    y, _, values = ours(x, rubbish, rubbish, torch.zeros(1, 1, dtype=torch.int64))
    assert torch.allclose(y, ours.out(values.transpose(1, 2).flatten(2)), atol=1e-12)


@torch.no_grad()
def test_the_order_of_what_is_cached_does_not_matter() -> None:
    ours, x = make(CONFIG).double(), sequence(2, 12)
    keys, values, mask = cached(ours, x[:, :7])
    mask[:, :2] = 0
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    one, other = (
        ours(x[:, 7:], keys, values, mask),
        ours(x[:, 7:], keys[:, :, order], values[:, :, order], mask[:, order]),
    )
    assert torch.allclose(one[0], other[0], atol=1e-12)
