"""The twin of the plan `auto`: fp16's rounding, without its end at 65504."""

from __future__ import annotations

import numpy as np
import overflowing_models
import pytest
import torch
from torch import nn

from attnport.artifacts import AUTO, ModelSpec
from attnport.cases.inputs import cases
from attnport.runtimes._torch_modes import HalfWithoutOverflow, active, round_parameters, rounded
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import RUNTIME


def test_numbers_of_fp16_s_range_are_rounded_as_fp16_rounds_them() -> None:
    numbers = torch.cat([torch.randn(5000) * scale for scale in (1e-8, 1e-5, 1.0, 1e3, 1.5e4)])
    numbers = torch.cat([numbers.clamp(-65504, 65504), torch.tensor([0.0, -0.0, 65504.0, torch.inf, -torch.inf])])
    half = numbers.half().float()
    held = (half != 0) | (numbers == 0)
    assert torch.equal(rounded(numbers)[held], half[held])
    assert (~held).any()


def test_what_fp16_has_as_zero_alone_stays_what_it_is() -> None:
    """As an epsilon that keeps a division finite, in a mean over no token at all."""
    small = torch.tensor([1e-9, -3e-12, 2e-8])
    assert torch.allclose(rounded(small), small, rtol=2**-11, atol=0)
    with torch.inference_mode(), HalfWithoutOverflow():
        mean = torch.zeros(3, 4) / torch.zeros(3, 1).clamp(min=1e-9)
    assert (mean == 0).all()


def test_beyond_it_numbers_keep_eleven_bits() -> None:
    assert rounded(torch.tensor([65519.0, 65536.0 + 31, 65536.0 + 33, -3e38])).tolist() == [
        65504.0, 65536.0, 65536.0 + 64, -float(np.round(3e38 / 2.0**117) * 2.0**117),
    ]  # fmt: skip
    assert torch.isnan(rounded(torch.tensor([torch.nan]))).all()
    assert rounded(torch.arange(3)).dtype == torch.int64


def test_writing_into_a_view_reaches_what_it_is_a_view_of() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(2, 3)
        made[0] = x / 3
        made[1].add_(x).mul_(7.001)
        return made

    x = torch.tensor([1.0, 10.0, 100.0])
    with active(HalfWithoutOverflow()):
        got = work(x)
    expected = torch.stack([(x / 3).half().float(), (x.half() * torch.tensor(7.001)).float()])
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=0)
    assert torch.equal(got, got.half().float())


def test_a_module_that_names_float16_does_not_overflow_in_it() -> None:
    with active(HalfWithoutOverflow()):
        got = (torch.tensor([300.0]).to(torch.float16) ** 2).float()
    assert got.item() == rounded(torch.tensor([90000.0])).item()


@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal", "grouped"])
def test_attention_step_by_step_is_attention_with_rounded_scores(mask: str) -> None:
    torch.manual_seed(0)
    q, k, v = (rounded(torch.randn(2, 4, 5, 8) * 8) for _ in range(3))
    keep = torch.rand(2, 1, 5, 5) < 0.7
    keep[0, 0, 2] = False
    given: dict[str, object] = {
        "bool": {"attn_mask": keep}, "float": {"attn_mask": torch.randn(2, 1, 5, 5)}, "causal": {"is_causal": True},
        "grouped": {"enable_gqa": True},
    }.get(mask, {})  # fmt: skip
    if mask == "grouped":
        k, v = k[:, :2], v[:, :2]
    attend = nn.functional.scaled_dot_product_attention
    exact = attend(*(each.double() for each in (q, k, v)), **{
        name: each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in given.items()
    })  # fmt: skip
    far = []
    for steps in (False, True):
        with active(HalfWithoutOverflow(step_by_step=steps)):
            far.append((attend(q, k, v, **given) - exact).abs().mean())
    assert 2 * far[0] < far[1] < 0.3  # rounded scores of up to some hundreds


def test_parameters_are_rounded_too_and_the_maker_s_module_is_left_alone() -> None:
    module = nn.Linear(8, 8)
    before = module.weight.clone()
    RUNTIME.open(Opening(overflowing_models.IO, AUTO, spec=_spec_of(module))).close()
    assert torch.equal(module.weight, before)
    assert torch.equal(round_parameters(module).weight, before.half().float())


def _spec_of(module: nn.Module) -> ModelSpec:
    return ModelSpec("one", overflowing_models.fine().source, overflowing_models.IO, lambda: module)


def errors(spec: ModelSpec, plan: str) -> float:
    """The RMS error of a plan against float64, over a few cases."""
    found = list[float]()
    sessions = [
        RUNTIME.open(Opening(spec.io, spec=spec, contract=True, float64=True)),
        RUNTIME.open(Opening(spec.io, plan, spec=spec, contract=True)),
    ]
    for case in cases(spec.io)[:3]:
        exact, got = (session.run(case.feeds)["hidden"].astype(np.float64) for session in sessions)
        found.append(float(np.sqrt(np.mean((got - exact) ** 2))))
    for session in sessions:
        session.close()
    return float(np.max(found))  # NaN where one is


def test_where_nothing_overflows_its_error_is_that_of_the_module_cast() -> None:
    ratio = errors(overflowing_models.fine(), AUTO) / errors(overflowing_models.fine(), "fp16")
    assert 0.7 < ratio < 1.4


def test_where_the_module_cast_overflows_it_has_an_error_of_rounding_still() -> None:
    for model in (overflowing_models.norm(), overflowing_models.residual()):
        assert errors(model, AUTO) < 0.01
        assert not errors(model, "fp16") < 0.1  # NaN, or finite and plain wrong
