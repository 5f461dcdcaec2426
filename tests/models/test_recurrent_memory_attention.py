"""RecurrentMemoryAttention against the paper's sum over pairs, written element by element in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnport.models.base import build
from attnport.models.cross_attention import RecurrentMemoryAttention, relative_shift

SIZES = {"width": 24, "heads": 2}


def given(batch: int, seq: int, mem: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seq * 100 + mem)
    x, memory = (torch.randn(batch, length, 24, dtype=torch.float64, generator=generator) for length in (seq, mem))
    return x, memory


def reference(module: RecurrentMemoryAttention, x: torch.Tensor, memory: torch.Tensor) -> np.ndarray:
    """One query, one key and one head at a time; distances by their number, without any shift."""
    weight = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    context = np.concatenate([memory.numpy(), x.numpy()], axis=1)
    B, S, M = x.shape[0], x.shape[1], memory.shape[1]

    def distance_vector(d: int) -> np.ndarray:
        angles = d / 10000 ** (np.arange(0, 24, 2) / 24)
        return np.asarray(weight["distance.weight"] @ np.stack([np.sin(angles), np.cos(angles)], axis=-1).ravel())

    out = np.zeros((B, S, 24))
    for b in range(B):
        for i in range(S):
            for h in range(2):
                part = slice(12 * h, 12 * h + 12)
                q = (weight["project.query.weight"] @ x[b, i].numpy())[part]
                keys, values = (
                    (weight[f"project.{name}.weight"] @ context[b, : i + M + 1].T).T[:, part]
                    for name in ("key", "value")
                )
                scores = np.array([
                    (q + weight["content_bias"][h, 0]) @ key
                    + (q + weight["position_bias"][h, 0]) @ distance_vector(i + M - j)[part]
                    for j, key in enumerate(keys)
                ]) / np.sqrt(12)  # fmt: skip
                shares = np.exp(scores - scores.max())
                out[b, i, part] = shares / shares.sum() @ values
    return np.asarray(out @ weight["out.weight"].T)


@pytest.mark.parametrize(("seq", "mem"), [(5, 7), (1, 1), (7, 1), (1, 9)])
@torch.no_grad()
def test_equals_the_sum_over_pairs(seq: int, mem: int) -> None:
    module, (x, memory) = build(lambda: RecurrentMemoryAttention(**SIZES)).double(), given(2, seq, mem)
    expected = reference(module, x, memory)
    assert np.allclose(module(x, memory).numpy(), expected, atol=1e-12)
    assert expected.std() > 0.1


@torch.no_grad()
def test_one_changed_bias_is_noticed_by_the_comparison() -> None:
    module, (x, memory) = build(lambda: RecurrentMemoryAttention(**SIZES)).double(), given(2, 5, 7)
    expected = reference(module, x, memory)
    module.position_bias[1, 0, 3] += 1
    assert np.abs(module(x, memory).numpy() - expected).max() > 1e-3


def test_the_shift_brings_each_distance_to_its_key() -> None:
    S, T = 4, 7
    distance = torch.arange(T - 1, -1, -1).expand(1, 1, S, T).float()
    shifted = relative_shift(distance)[0, 0]
    for i in range(S):
        at = i + T - S
        assert torch.equal(shifted[i, : at + 1], torch.arange(at, -1, -1).float())


@torch.no_grad()
def test_a_later_token_changes_nothing_before_it_and_the_memory_reaches_all() -> None:
    module, (x, memory) = build(lambda: RecurrentMemoryAttention(**SIZES)), given(2, 6, 4)
    x, memory = x.float(), memory.float()
    changed, other = x.clone(), memory.clone()
    changed[:, 3:] += 1
    other[:, 0] += 1
    before, after = module(x, memory), module(changed, memory)
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert (before[:, 3:] - after[:, 3:]).abs().max() > 0.1
    assert ((module(x, other) - before).abs().amax(dim=-1) > 1e-3).all()


@torch.no_grad()
def test_a_longer_segment_equals_a_shorter_one_behind_a_longer_memory() -> None:
    module, (x, memory) = build(lambda: RecurrentMemoryAttention(**SIZES)).double(), given(2, 8, 5)
    whole = module(x, memory)
    assert torch.allclose(module(x[:, 3:], torch.cat([memory, x[:, :3]], dim=1)), whole[:, 3:], atol=1e-12)
