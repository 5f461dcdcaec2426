"""The attentions that transformers are made of, against torch's, transformers' and float64 NumPy's on equal weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import attend, heads, project_out
from torch import nn

from attnport.models.base import build, get
from attnport.models.cross_attention import CrossAttention, MultiHeadAttention
from attnport.models.self_attention import (
    AlibiAttention,
    CausalSelfAttention,
    FusedQkvAttention,
    GroupedQueryAttention,
    MaskedSelfAttention,
    RotaryAttention,
    SelfAttention,
)

E, H = 64, 4
CAUSAL = ("causal_self_attention", "masked_self_attention", "grouped_query_attention", "alibi_attention")
WITH_MASK = ("masked_self_attention", "grouped_query_attention", "rotary_attention", "alibi_attention")
WITHOUT_POSITIONS = ("self_attention",)
SHAPES = [(1, 1), (2, 7), (3, 17)]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(batch: int, length: int) -> torch.Tensor:
    """Item 0 whole, item 1 padded on the right, item 2 on the left."""
    keep = torch.ones(batch, length, dtype=torch.int64)
    keep[1:2, (2 * length) // 3 :] = 0
    keep[2:3, : length // 3] = 0
    return keep


def lower(length: int) -> np.ndarray:
    return np.tril(np.ones((length, length), dtype=bool))


def close(got: torch.Tensor, expected: np.ndarray | torch.Tensor) -> bool:
    expected = torch.as_tensor(expected)
    assert expected.abs().mean() > 0.1
    return bool(torch.allclose(got, expected, atol=1e-9, rtol=0))


def projected(module: nn.Module, x: torch.Tensor, groups: int = H) -> list[np.ndarray]:
    """q, k and v in heads."""
    project = module.project
    parts = ((project.query, H), (project.key, groups), (project.value, groups))
    return [heads(part, x, count) for part, count in parts]


def torchs(module: nn.Module, **widths: int) -> nn.MultiheadAttention:
    """torch's own attention with the weights of a module of three projections."""
    theirs = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64, **widths).eval()
    owner = module if widths else module.project
    projections = (owner.query, owner.key, owner.value)
    with torch.no_grad():
        if widths:
            for weight, part in zip(("q", "k", "v"), projections, strict=True):
                getattr(theirs, f"{weight}_proj_weight").copy_(part.weight)
        else:
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in projections]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in projections]))
        theirs.out_proj.load_state_dict(module.out.state_dict())
    return theirs


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_one_head_is_the_papers_formula(batch: int, length: int) -> None:
    module, x = build(SelfAttention).double(), normal(batch, length, E)
    q, k, v = (heads(part, x, 1) for part in (module.query, module.key, module.value))
    assert close(module(x), attend(q, k, v, True)[:, 0])


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_causal_equals_torch(batch: int, length: int) -> None:
    module, x = build(CausalSelfAttention).double(), normal(batch, length, E)
    expected, _ = torchs(module)(x, x, x, attn_mask=torch.from_numpy(~lower(length)), need_weights=False)
    assert close(module(x), expected)


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_causal_and_padded_equals_torch_where_a_row_has_a_key(batch: int, length: int) -> None:
    module, x, keep = build(MaskedSelfAttention).double(), normal(batch, length, E), padded(batch, length)
    masks = {"attn_mask": torch.from_numpy(~lower(length)), "key_padding_mask": keep == 0}
    expected, _ = torchs(module)(x, x, x, need_weights=False, **masks)
    valid = keep.bool()
    assert close(module(x, keep)[valid], expected[valid])


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 11), (13, 4)])
def test_separate_inputs_equal_torch(queries: int, keys: int) -> None:
    module, keep = build(MultiHeadAttention).double(), padded(3, keys).bool()
    query, key, value = normal(3, queries, E), normal(3, keys, 48, seed=1), normal(3, keys, 32, seed=2)
    theirs = torchs(module, kdim=48, vdim=32)
    expected, _ = theirs(query, key, value, key_padding_mask=~keep, need_weights=False)
    some = keep.any(-1)
    assert close(module(query, key, value, keep)[some], expected[some])


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 11), (13, 4)])
def test_cross_attention_is_the_papers_formula(queries: int, keys: int) -> None:
    module, keep = build(CrossAttention).double(), padded(3, keys)
    x, memory = normal(3, queries, E), normal(3, keys, 48, seed=1)
    k, v = np.split(heads(module.key_value, memory, 2 * H), 2, axis=1)
    q = heads(module.query, nn.functional.layer_norm(x, (E,)))
    mixed = attend(q, k, v, keep.numpy()[:, None, None] != 0)
    assert close(module(x, memory, keep), x.numpy() + project_out(module.out, mixed))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_grouped_heads_share_keys_and_values(groups: int, batch: int, length: int) -> None:
    module = build(lambda: GroupedQueryAttention(groups=groups)).double()
    x, keep = normal(batch, length, E), padded(batch, length)
    mixed = attend(*projected(module, x, groups), lower(length) & (keep.numpy() != 0)[:, None, None])
    assert close(module(x, keep), project_out(module.out, mixed))


def test_one_group_is_multi_query_attention() -> None:
    module = build(lambda: GroupedQueryAttention(groups=1))
    assert module.project.key.out_features == module.project.value.out_features == E // H


def test_as_many_groups_as_heads_are_multi_head_attention() -> None:
    grouped = build(lambda: GroupedQueryAttention(groups=H)).double()
    plain = build(MaskedSelfAttention, seed=1).double()
    plain.load_state_dict(grouped.state_dict())
    x, keep = normal(3, 9, E), padded(3, 9)
    assert close(grouped(x, keep), plain(x, keep).detach())


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_rotary_equals_transformers_llama(batch: int, length: int) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    module, x, keep = build(RotaryAttention).double(), normal(batch, length, E), padded(batch, length)
    q, k, v = (torch.from_numpy(part.copy()) for part in projected(module, x))
    frequencies = 10000.0 ** (-torch.arange(0, E // H, 2, dtype=torch.float64) / (E // H))
    angles = torch.arange(length)[:, None] * torch.cat([frequencies, frequencies])
    q, k = llama.apply_rotary_pos_emb(q, k, angles.cos()[None], angles.sin()[None])
    mixed = attend(q.numpy(), k.numpy(), v.numpy(), (keep.numpy() != 0)[:, None, None])
    assert close(module(x, keep), project_out(module.out, mixed))


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_alibi_is_the_papers_formula(batch: int, length: int) -> None:
    module, x, keep = build(AlibiAttention).double(), normal(batch, length, E), padded(batch, length)
    at = np.arange(length)
    slopes = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])  # 2^(-8/H), its square, ...
    bias = slopes[:, None, None] * (at[None, :] - at[:, None])
    mixed = attend(*projected(module, x), lower(length) & (keep.numpy() != 0)[:, None, None], bias)
    assert close(module(x, keep), project_out(module.out, mixed))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(("batch", "length"), [*SHAPES, (1, 41)])
def test_one_projection_with_position_bias_is_the_papers_formula(weights: bool, batch: int, length: int) -> None:
    module = build(lambda: FusedQkvAttention(weights=weights)).double()
    x, keep = normal(batch, length, E), padded(batch, length)
    q, k, v = np.split(heads(module.qkv, x, 3 * H), 3, axis=1)
    bias, table = np.zeros((H, length, length)), module.bias.weight.detach().numpy()
    for h, i, j in np.ndindex(bias.shape):
        bias[h, i, j] = table[max(-16, min(16, j - i)) + 16, h]
    mixed = attend(q, k, v, (keep.numpy() != 0)[:, None, None], bias)
    found = module(x, torch.zeros(keep.shape, dtype=x.dtype).masked_fill(keep == 0, -torch.inf)[:, None, None])
    assert close(found[0] if weights else found, project_out(module.out, mixed))


def test_returned_weights_are_rows_that_sum_to_one_or_zero() -> None:
    module = build(lambda: FusedQkvAttention(weights=True)).double()
    mask = torch.zeros(2, 1, 1, 6, dtype=torch.float64)
    mask[0, ..., 4:], mask[1] = -torch.inf, -torch.inf
    y, weights = module(normal(2, 6, E), mask)
    assert torch.allclose(weights[0].sum(-1), torch.ones(H, 6, dtype=torch.float64))
    assert torch.equal(weights[0, ..., 4:], torch.zeros(H, 6, 2, dtype=torch.float64))
    assert torch.equal(weights[1], torch.zeros_like(weights[1]))
    assert torch.allclose(y[1], module.out.bias.expand(6, E))


def test_weights_change_nothing_but_what_is_returned() -> None:
    x, mask = normal(2, 6, E), torch.zeros(2, 1, 1, 6, dtype=torch.float64)
    found, _ = build(lambda: FusedQkvAttention(weights=True)).double()(x, mask)
    assert close(build(FusedQkvAttention).double()(x, mask), found.detach())


@pytest.mark.parametrize("name", WITH_MASK)
def test_an_item_without_any_key_gets_the_output_projection_of_zero(name: str) -> None:
    module, keep = get(name).make().double(), torch.ones(2, 5, dtype=torch.int64)
    keep[1] = 0
    found = module(normal(2, 5, E), keep)
    assert torch.equal(found[1], module.out.bias.expand(5, E))
    assert torch.isfinite(found).all()


def test_a_memory_without_any_key_adds_the_output_projection_of_zero() -> None:
    module, x = build(CrossAttention).double(), normal(1, 5, E)
    found = module(x, normal(1, 3, 48), torch.zeros(1, 3, dtype=torch.int64))
    assert torch.equal(found, x + module.out.bias)


def test_one_head_without_positions_permutes_with_its_tokens() -> None:
    module, x = build(SelfAttention).double(), normal(2, 9, E)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    assert close(module(x[:, order]), module(x)[:, order].detach())


def test_a_memory_may_stand_in_any_order() -> None:
    module, x, memory, keep = build(CrossAttention).double(), normal(3, 4, E), normal(3, 9, 48), padded(3, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    assert close(module(x, memory[:, order], keep[:, order]), module(x, memory, keep).detach())


@pytest.mark.parametrize("name", ["rotary_attention", "alibi_attention"])
def test_positions_are_felt(name: str) -> None:
    module, x, keep = get(name).make().double(), normal(1, 9, E), torch.ones(1, 9, dtype=torch.int64)
    order = torch.tensor([1, 0, *range(2, 9)])
    assert (module(x[:, order], keep)[:, 2:] - module(x, keep)[:, 2:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["self_attention", *CAUSAL, "rotary_attention"])
def test_equal_tokens_give_what_one_gives(name: str) -> None:
    """A mean of equal values is that value, whatever the weights."""
    module, x = get(name).make().double(), normal(2, 1, E)
    one, many = (
        module(x.expand(2, T, E), *([torch.ones(2, T, dtype=torch.int64)] if name in WITH_MASK else [])) for T in (1, 8)
    )
    assert close(many, one.expand_as(many).detach())
