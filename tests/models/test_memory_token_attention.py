"""MemoryTokenAttention against torch's nn.MultiheadAttention on equal weights, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_layers import attention_weights

from attnport.models.base import build
from attnport.models.self_attention import MemoryTokenAttention


def given(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, seq, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(seq))
    return x, torch.ones(batch, seq, dtype=torch.int64)


def theirs(ours: MemoryTokenAttention, **options: bool) -> nn.MultiheadAttention:
    """torch's attention with the weights of ours; its own learned key and value, where it has one, are ours too."""
    model = nn.MultiheadAttention(48, 3, batch_first=True, **options).double().eval()
    weights = attention_weights(ours)
    if options:
        weights |= {"bias_k": ours.memory_keys[None], "bias_v": ours.memory_values[None]}
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("seq", [1, 2, 11])
@torch.no_grad()
def test_one_memory_token_is_torchs_learned_key_and_value(seq: int) -> None:
    ours, (x, mask) = build(lambda: MemoryTokenAttention(width=48, heads=3, memory=1)).double(), given(3, seq)
    mask[1, seq // 2 :] = 0
    expected, _ = theirs(ours, add_bias_kv=True)(x, x, x, key_padding_mask=mask == 0)
    assert torch.allclose(ours(x, mask), expected, atol=1e-12)
    assert not torch.allclose(ours(x, mask), theirs(ours)(x, x, x)[0], atol=1e-2)


@torch.no_grad()
def test_many_memory_tokens_are_keys_and_values_like_any_other() -> None:
    """Tokens that project to the memory's keys and values, put in front of the sequence."""
    ours, (x, mask) = build(lambda: MemoryTokenAttention(width=48, heads=3, memory=5)).double(), given(2, 9)
    mask[1, 3:6] = 0
    own = torch.randn(5, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours.memory_keys.copy_(ours.project.key(own))
    ours.memory_values.copy_(ours.project.value(own))
    context = torch.cat([own.expand(2, -1, -1), x], dim=1)
    hidden = nn.functional.pad(mask == 0, (5, 0))
    expected, _ = theirs(ours)(x, context, context, key_padding_mask=hidden)
    assert torch.allclose(ours(x, mask), expected, atol=1e-12)


@torch.no_grad()
def test_a_sequence_of_padding_alone_reads_the_memory() -> None:
    ours, (x, mask) = build(MemoryTokenAttention).double(), given(2, 6)
    x = nn.functional.pad(x, (0, 16))
    mask[0] = 0
    y = ours(x, mask)
    other = x.clone()
    other[0, 1:] += 3
    assert torch.equal(ours(other, mask)[0, 0], y[0, 0])
    ours.memory_values.add_(1.0)
    expected = y[0] + ours.out.weight.sum(dim=1)
    assert torch.allclose(ours(x, mask)[0], expected, atol=1e-10)


@torch.no_grad()
def test_another_order_of_the_tokens_gives_the_same_in_that_order() -> None:
    ours, (x, mask) = build(lambda: MemoryTokenAttention(width=48, heads=3)).double(), given(2, 7)
    mask[1, 5:] = 0
    order = torch.tensor([4, 2, 6, 0, 1, 5, 3])
    assert torch.allclose(ours(x[:, order], mask[:, order]), ours(x, mask)[:, order], atol=1e-12)
