"""Modes that change how PyTorch computes a module: twins of `auto` and of islands, and products in half precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import overflowing_models
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear

from attnport.artifacts import AUTO, ModelSpec
from attnport.cases.inputs import cases
from attnport.runtimes._torch_modes import (
    HalfWithoutOverflow,
    Products,
    Rounded,
    StepByStep,
    active,
    round_parameters,
    rounded,
)
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import RUNTIME

HALF = torch.float16
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
grouped = partial(functional.scaled_dot_product_attention, enable_gqa=True)
PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "linear": lambda x: functional.linear(x, x[0, 0], x[0, 0, :, 0]),
    "baddbmm": lambda x: torch.baddbmm(x[0, :, :, :1], x[0], x[0].transpose(1, 2), beta=0.5, alpha=2),
    "einsum": lambda x: torch.einsum("bhsd,bhtd->bhst", x, x),
    "into a tensor": lambda x: torch.mm(x[0, 0], x[0, 0].T, out=torch.zeros(x.shape[2], x.shape[2], dtype=x.dtype)),
    "overflow": lambda x: (3000 * x) @ x.transpose(-1, -2),
    "grouped heads": lambda x: functional.scaled_dot_product_attention(
        x, x[:, :1], x[:, :1], is_causal=True, enable_gqa=True
    ),
    "of nothing": lambda x: x[:, :, :0] @ x.transpose(-1, -2),
}


# --- fp16 without overflow, the twin of auto --------------------------------------------------------------------------


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


# --- attention that a module writes out, under an islands plan: nothing else of it is in half precision ---------------


def half(value: Tensor) -> Tensor:
    return value.to(HALF).to(value.dtype)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, length, 8, generator=random) for length in (5, 7, 7))
    return q, k, v


def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As a fused kernel: what goes in is half precision, the scores are not, nor is the softmax."""
    weights = (half(q) @ half(k).transpose(1, 2) / math.sqrt(8)).softmax(-1)
    return half(half(weights) @ half(v))


def products_of(attend: Callable[..., Tensor], *given: Tensor) -> Products:
    with active(mode := Products()):
        attend(*given)
    return mode


def as_islands(attend: Callable[..., Tensor], *given: Tensor) -> Tensor:
    with active(Rounded(products_of(attend, *given), HALF)):
        return attend(*given)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(1, 2)
    scores.mul_(1 / math.sqrt(8)).add_(torch.zeros(7))
    return scores.softmax(-1).nan_to_num_() @ v


def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.baddbmm(torch.zeros(2, 5, 7), q, k.transpose(1, 2), alpha=1 / math.sqrt(8))
    return torch.bmm(torch.softmax(scores, dim=-1), v)


ATTENTIONS: dict[str, Attend] = {
    "matmul": lambda q, k, v: (q @ k.transpose(1, 2) / math.sqrt(8)).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bst,btd->bsd", (torch.einsum("bsd,btd->bst", q, k) / math.sqrt(8)).softmax(-1), v
    ),
    "baddbmm": added,
    "in place": in_place,
    "transposed": lambda q, k, v: (v.transpose(1, 2) @ (k @ q.transpose(1, 2) / math.sqrt(8)).softmax(1)).transpose(
        1, 2
    ),
    "permuted and masked": lambda q, k, v: (
        torch.where(torch.ones(7, dtype=torch.bool), (q @ k.transpose(1, 2) / math.sqrt(8))[None], -torch.inf)
        .softmax(-1)
        .squeeze(0)
        @ v
    ),
}


@pytest.mark.parametrize("spelling", ATTENTIONS)
def test_an_attention_is_rounded_as_a_kernel_rounds(spelling: str) -> None:
    attend, given = ATTENTIONS[spelling], inputs()
    torch.testing.assert_close(as_islands(attend, *given), expected(*given), rtol=0, atol=2e-4)
    assert not torch.equal(as_islands(attend, *given), attend(*given))
    assert torch.equal(as_islands(attend, *given), half(as_islands(attend, *given)))


def two_in_a_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first = ATTENTIONS["matmul"](q, k, v)
    return ATTENTIONS["matmul"](first, k, v)


def test_every_attention_of_a_module_is_found_by_itself() -> None:
    mode = products_of(two_in_a_row, *inputs())
    assert (mode.scores, mode.values) == ({0, 2}, {1, 3})
    q, k, v = inputs()
    torch.testing.assert_close(as_islands(two_in_a_row, q, k, v), expected(expected(q, k, v), k, v), rtol=0, atol=2e-4)


NONE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "no softmax": lambda q, k, v: (q @ k.transpose(1, 2)) @ v,
    "no product behind it": lambda q, k, v: (q @ k.transpose(1, 2)).softmax(-1) * 2,
    "scores of a layer": lambda q, k, v: linear(q, torch.ones(7, 8)).softmax(-1) @ v,
    "a layer between": lambda q, k, v: linear((q @ k.transpose(1, 2)).softmax(-1), torch.eye(7)) @ v,
    "a product of a product": lambda q, k, v: ((q @ k.transpose(1, 2)) @ torch.ones(2, 7, 7)) @ v,
}  # fmt: skip


@pytest.mark.parametrize("what", NONE)
def test_what_is_no_attention_stays_as_it_is(what: str) -> None:
    mode = products_of(NONE[what], *inputs())
    assert (mode.scores, mode.values) == (set(), set())
    assert torch.equal(as_islands(NONE[what], *inputs()), NONE[what](*inputs()))


def test_a_product_beside_an_attention_stays_as_it_is() -> None:
    def beside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([ATTENTIONS["matmul"](q, k, v), q @ torch.ones(2, 8, 8)], -1)

    given = inputs()
    assert torch.equal(as_islands(beside, *given)[..., 8:], beside(*given)[..., 8:])


# --- products in fp16, computed in float32: the same but for the order of sums ----------------------------------------


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_in_fp16_is_what_the_processor_gives_but_for_the_order_of_its_sums(name: str) -> None:
    x = torch.randn(2, 4, 7, 16, generator=torch.Generator().manual_seed(0)).half()
    own = PRODUCTS[name](x)
    with active(StepByStep()):
        found = PRODUCTS[name](x)
    assert found.dtype == own.dtype
    assert torch.equal(found.isinf(), own.isinf())
    torch.testing.assert_close(found, own, rtol=2**-9, atol=2**-9)
