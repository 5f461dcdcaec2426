"""The blocks that models share, against the papers' formulas, torch and transformers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attnport.models.base import build, randomise
from attnport.models.blocks import (
    Frequencies,
    RelativePositions,
    RMSNorm,
    RotaryPositions,
    SinusoidalPositions,
    merge_heads,
    split_heads,
)
from attnport.models.cached_decoders import SwiGLU
from attnport.runtimes.torch_eager import cast


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_sinusoidal_positions_are_the_papers() -> None:
    added = SinusoidalPositions(8)(torch.zeros(1, 11, 8, dtype=torch.float64))[0]
    for p in range(11):
        for i in range(4):
            angle = p / 10000 ** (2 * i / 8)
            assert added[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert added[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_positions_behind_a_cache_go_on() -> None:
    positions, x = SinusoidalPositions(8), normal(2, 9, 8)
    assert torch.equal(positions(x)[:, 4:], positions(x[:, 4:], offset=4))


@pytest.mark.parametrize("shift", [1, 5, 300])
def test_rotated_products_depend_on_distances_alone(shift: int) -> None:
    rotary, q, k = RotaryPositions(16), normal(1, 2, 7, 16), normal(1, 2, 7, 16).flip(2)
    here = rotary(q) @ rotary(k).transpose(-1, -2)
    there = rotary(q, shift) @ rotary(k, shift).transpose(-1, -2)
    assert torch.allclose(here, there, atol=1e-10)
    assert not torch.allclose(here, rotary(q, shift) @ rotary(k).transpose(-1, -2), atol=1e-2)


def test_rotary_turns_pairs_as_complex_numbers() -> None:
    x = normal(2, 3, 7, 16)
    pairs = torch.complex(x[..., :8], x[..., 8:])
    frequencies = torch.tensor([10000 ** (-2 * i / 16) for i in range(8)], dtype=torch.float64)
    turned = pairs * torch.exp(1j * (torch.arange(7)[:, None] + 4) * frequencies)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    assert torch.allclose(RotaryPositions(16)(x, offset=4), expected, atol=1e-12)


def test_rotary_in_half_precision_knows_far_positions() -> None:
    x = normal(1, 1, 3, 16)
    wide, half = RotaryPositions(16)(x, 4099), RotaryPositions(16)(x.half(), 4099)
    assert half.dtype == torch.float16
    assert torch.allclose(half.double(), wide, atol=1e-2)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
def test_relative_positions_are_those_of_transformers_t5(bidirectional: bool, alignment: str) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    S, T = 40, 200
    module = RelativePositions(4, bidirectional=bidirectional)
    i = torch.arange(S)[:, None] + (T - S if alignment == "lower_right" else 0)
    buckets = t5.T5Attention._relative_position_bucket(torch.arange(T)[None] - i, bidirectional, 32, 128)
    expected = module.table(buckets).permute(2, 0, 1)[None]
    found = module(S, T, alignment)
    assert found.shape == (1, 4, S, T)
    assert (found == expected).float().mean() > 0.999  # a float32 logarithm may fall on the other side of a bound


def test_rms_norm_equals_torch() -> None:
    ours, theirs = RMSNorm(12, eps=1e-5).double(), nn.RMSNorm(12, eps=1e-5, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.copy_(normal(12)))
    x = normal(3, 5, 12) * 7
    assert torch.allclose(ours(x), theirs(x), atol=1e-12)
    assert torch.equal(ours(torch.zeros_like(x)), torch.zeros_like(x))


def test_rms_norm_of_large_half_precision_numbers_is_finite() -> None:
    found = RMSNorm(12).half()(torch.full((1, 12), 3e4, dtype=torch.float16))
    assert torch.allclose(found, torch.ones_like(found), atol=1e-2)


def test_swiglu_is_the_papers_formula() -> None:
    block, x = SwiGLU(6, 10).double(), normal(2, 3, 6)
    gate, up, down = (part.weight.detach().double() for part in (block.gate, block.up, block.down))
    for b, t in ((0, 0), (1, 2)):
        opened = [float(row @ x[b, t]) for row in gate]
        hidden = [value / (1 + math.exp(-value)) * float(row @ x[b, t]) for value, row in zip(opened, up, strict=True)]
        assert torch.allclose(block(x)[b, t], down @ torch.tensor(hidden, dtype=torch.float64), atol=1e-12)


def test_heads_merge_as_they_were_split() -> None:
    x = normal(2, 5, 12)
    split = split_heads(x, 3)
    assert split.shape == (2, 3, 5, 4)
    assert torch.equal(split[1, 2, 3], x[1, 3, 8:])
    assert torch.equal(merge_heads(split), x)


@pytest.mark.parametrize(
    ("part", "fan_in"), [(nn.Linear(300, 200), 300), (nn.Conv1d(30, 200, 5), 150), (nn.Conv2d(6, 400, (5, 4)), 120)]
)
def test_random_weights_have_the_variance_of_one_over_fan_in(part: nn.Module, fan_in: int) -> None:
    randomise(part)
    weight, bias = part.weight.double(), part.bias.double()  # type: ignore[operator, union-attr]
    assert weight.var().item() * fan_in == pytest.approx(1, rel=0.1)
    assert bias.std().item() == pytest.approx(0.1, rel=0.3)


def test_a_projection_without_a_bias_is_drawn_too() -> None:
    drawn = build(lambda: nn.Linear(5, 3, bias=False), seed=1)
    assert torch.equal(drawn.weight, build(lambda: nn.Linear(5, 3, bias=False), seed=1).weight)
    assert not torch.equal(drawn.weight, build(lambda: nn.Linear(5, 3, bias=False), seed=2).weight)
    assert not drawn.training


def test_a_cast_leaves_the_table_in_float64() -> None:
    table = Frequencies(8, 100.0)
    expected = torch.tensor([1.0, 100**-0.25, 100**-0.5, 100**-0.75], dtype=torch.float64)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        torch.testing.assert_close(cast(table, dtype)(torch.float64), expected, rtol=1e-15, atol=0)
    assert table.half()(torch.float32).dtype == torch.float32
    assert not table.state_dict()


def test_far_positions_are_as_exact_in_half_precision_as_its_result_can_be() -> None:
    rotary, x = RotaryPositions(16), torch.randn(1, 1, 3, 16, generator=torch.Generator().manual_seed(0))
    exact = cast(rotary, torch.float64)(x.double(), 4001)
    got = cast(rotary, torch.bfloat16)(x.bfloat16(), 4001)
    torch.testing.assert_close(got.double(), exact, atol=3e-2, rtol=0)
