"""Bahdanau's and Luong's attentions against their papers' formulas, one pair at a time in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from attnport.models.base import build
from attnport.models.cross_attention import AdditiveAttention, LuongAttention

LUONG = partial(LuongAttention, width=12, radius=3)
ADDITIVE = partial(AdditiveAttention, width=12, hidden=10)
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
SIZES = pytest.mark.parametrize(("S", "T"), [(5, 9), (1, 1), (11, 4), (1, 13)])


def given(S: int, T: int, batch: int = 2) -> Given:
    generator = torch.Generator().manual_seed(S * 100 + T)
    x, memory = (torch.randn(batch, length, 12, dtype=torch.float64, generator=generator) for length in (S, T))
    mask = torch.ones(batch, T, dtype=torch.int64)
    mask[1:, T // 2 + 1 :] = 0
    return x, memory, mask


def softmax(scores: np.ndarray) -> np.ndarray:
    shares = np.exp(scores - scores.max())
    return np.asarray(shares / shares.sum())


def weights_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


@SIZES
@torch.no_grad()
def test_additive_attention_is_bahdanaus_formula(S: int, T: int) -> None:
    module, (x, memory, mask) = build(ADDITIVE).double(), given(S, T)
    w = weights_of(module)
    context, weights = (found.numpy() for found in module(x, memory, mask))
    for b in range(2):
        keys = np.flatnonzero(mask[b].numpy())
        for i in range(S):
            state = w["states.weight"] @ x[b, i].numpy() + w["states.bias"]
            scores = [
                w["score.weight"][0] @ np.tanh(state + w["annotations.weight"] @ memory[b, j].numpy()) for j in keys
            ]
            expected = softmax(np.array(scores))
            assert np.allclose(weights[b, i, keys], expected, atol=1e-12)
            assert np.allclose(context[b, i], expected @ memory[b].numpy()[keys], atol=1e-12)
    assert np.allclose(weights.sum(axis=-1), 1)
    assert (weights[(mask == 0)[:, None].expand(-1, S, -1).numpy()] == 0).all()


@torch.no_grad()
def test_additive_weights_follow_the_order_of_the_source() -> None:
    module, (x, memory, mask) = build(ADDITIVE).double(), given(4, 7)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    context, weights = module(x, memory, mask)
    again, moved = module(x, memory[:, order], mask[:, order])
    assert torch.allclose(again, context, atol=1e-12)
    assert torch.allclose(moved, weights[..., order], atol=1e-12)


@torch.no_grad()
def test_a_source_of_padding_alone_has_the_context_zero() -> None:
    x, memory, mask = given(3, 6)
    mask[0] = 0
    context, weights = build(ADDITIVE).double()(x, memory, mask)
    assert not context[0].any()
    assert not weights[0].any()
    module = build(LUONG).double()
    zero = torch.zeros_like(x)
    parts: list[Any] = [module.all, module.monotonic, module.predictive]
    for found, part in zip(module(x, memory, mask), parts, strict=True):
        assert torch.allclose(found[0], torch.tanh(part.state(torch.cat([zero, x], dim=-1)))[0], atol=1e-12)


@SIZES
@torch.no_grad()
def test_luongs_attentions_are_the_papers_formulas(S: int, T: int) -> None:
    module, (x, memory, mask) = build(LUONG).double(), given(S, T)
    w = weights_of(module)
    found = dict(zip(("all", "monotonic", "predictive"), (y.numpy() for y in module(x, memory, mask)), strict=True))
    for b in range(2):
        e, length = memory[b].numpy(), int(mask[b].sum())
        for t in range(S):
            h = x[b, t].numpy()
            guess = w["predictive.position_score.weight"][0] @ np.tanh(w["predictive.position.weight"] @ h)
            center = length / (1 + np.exp(-guess))
            windows = {
                "all": range(length),
                "monotonic": [s for s in range(length) if t - 3 <= s <= t + 3],
                "predictive": [s for s in range(length) if center - 3 <= s <= center + 3],
            }
            for name, keys in windows.items():
                context = np.zeros(12)
                if len(keys):
                    align = softmax(np.array([h @ w[f"{name}.score.weight"].T @ e[s] for s in keys]))
                    if name == "predictive":
                        align = align * np.exp(-((np.array(keys) - center) ** 2) / (2 * 1.5**2))
                    context = align @ e[list(keys)]
                expected = np.tanh(w[f"{name}.state.weight"] @ np.concatenate([context, h]))
                assert np.allclose(found[name][b, t], expected, atol=1e-12), name


@torch.no_grad()
def test_one_changed_weight_is_noticed() -> None:
    module, inputs = build(LUONG).double(), given(5, 9)
    before = module(*inputs)
    for part in (module.all, module.monotonic, module.predictive):
        part.score.weight[0, 0] += 0.5
    after = module(*inputs)
    assert all((one - other).abs().max() > 1e-3 for one, other in zip(before, after, strict=True))


@torch.no_grad()
def test_what_stands_outside_a_window_is_not_attended() -> None:
    module, (x, memory, mask) = build(LUONG).double(), given(2, 12)
    mask[:] = 1
    changed = memory.clone()
    changed[:, 5:] += 1
    before, after = module(x, memory, mask), module(x, changed, mask)
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])
