"""LatentAttention against transformers' DeepSeek-V2 attention on equal weights."""

from __future__ import annotations

import pytest
import torch

from attnport.models.base import build
from attnport.models.self_attention import LatentAttention

SIZES = {
    "width": 48, "heads": 3, "query_latent": 40, "latent": 28, "plain_depth": 12, "rotary_depth": 8,
    "value_depth": 10,
}  # fmt: skip


def given(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, seq, 48, generator=torch.Generator().manual_seed(seq))
    return x, torch.ones(batch, seq, dtype=torch.int64)


def interleaved(weight: torch.Tensor, heads: int, before: int) -> torch.Tensor:
    """Rows of each head whose last, rotary, ones are turned as neighbours there and as halves here."""
    depth = weight.shape[0] // heads
    half = torch.arange((depth - before) // 2)
    rows = torch.cat([torch.arange(before), before + torch.stack([half, half + len(half)], dim=1).flatten()])
    return weight.reshape(heads, depth, -1)[:, rows].flatten(0, 1)


def reference(ours: LatentAttention, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """What transformers gives; `hidden` [B, T] is True for padding."""
    library = pytest.importorskip("transformers.models.deepseek_v2.modeling_deepseek_v2")
    config = library.DeepseekV2Config(
        hidden_size=48, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40, kv_lora_rank=28,
        qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, attn_implementation="eager",
    )  # fmt: skip
    model = library.DeepseekV2Attention(config, 0).eval()
    model.load_state_dict(
        {
            "q_a_proj.weight": ours.query_down.weight,
            "q_a_layernorm.weight": ours.query_norm.weight,
            "q_b_proj.weight": interleaved(ours.query_up.weight, 3, 12),
            "kv_a_proj_with_mqa.weight": interleaved(ours.latent_down.weight, 1, 28),
            "kv_a_layernorm.weight": ours.latent_norm.weight,
            "kv_b_proj.weight": ours.key_value_up.weight,
            "o_proj.weight": ours.out.weight,
        }
    )
    T = x.shape[1]
    later = torch.ones(T, T, dtype=torch.bool).triu(1) | hidden[:, None, None]
    turns = library.DeepseekV2RotaryEmbedding(config)(x, torch.arange(T)[None])
    mask = torch.zeros(later.shape).masked_fill(later, -1e30)
    found: torch.Tensor = model(x, attention_mask=mask, position_embeddings=turns)[0]
    return found


@pytest.mark.parametrize("seq", [1, 2, 17])
@torch.no_grad()
def test_equals_deepseeks_on_equal_weights(seq: int) -> None:
    ours, (x, mask) = build(lambda: LatentAttention(**SIZES)), given(3, seq)
    ours.query_norm.weight.uniform_(0.5, 1.5)
    ours.latent_norm.weight.uniform_(0.5, 1.5)
    mask[1, max(1, seq - 4) :] = 0
    expected = reference(ours, x, mask == 0)
    assert torch.allclose(ours(x, mask), expected, atol=1e-5)
    assert expected.std() > 0.1


@torch.no_grad()
def test_one_changed_weight_is_noticed_by_the_comparison() -> None:
    ours, (x, mask) = build(lambda: LatentAttention(**SIZES)), given(2, 9)
    expected = reference(ours, x, mask == 0)
    ours.latent_down.weight[-1, 0] += 0.5
    assert not torch.allclose(ours(x, mask), expected, atol=1e-5)


@torch.no_grad()
def test_a_row_with_no_allowed_key_gives_zero() -> None:
    ours, (x, mask) = build(lambda: LatentAttention(**SIZES)), given(2, 6)
    mask[0] = 0
    mask[1, :2] = 0
    y = ours(x, mask)
    assert torch.equal(y[0], torch.zeros_like(y[0]))
    assert torch.equal(y[1, :2], torch.zeros_like(y[1, :2]))
    assert (y[1, 2:].abs().amax(dim=-1) > 1e-3).all()


def test_values_are_narrower_than_keys_in_what_is_shipped() -> None:
    module = build(LatentAttention)
    assert module.key_value_parts[1] < sum(module.query_parts)
