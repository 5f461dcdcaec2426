"""Attention that a module writes out runs in half precision under an islands plan, and nothing else of it does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from attnport.runtimes._torch_modes import Found, Rounded, active

HALF = torch.float16
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


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


def found(attend: Callable[..., Tensor], *given: Tensor) -> Found:
    with active(mode := Found()):
        attend(*given)
    return mode


def rounded(attend: Callable[..., Tensor], *given: Tensor) -> Tensor:
    with active(Rounded(found(attend, *given), HALF)):
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
    torch.testing.assert_close(rounded(attend, *given), expected(*given), rtol=0, atol=2e-4)
    assert not torch.equal(rounded(attend, *given), attend(*given))
    assert torch.equal(rounded(attend, *given), half(rounded(attend, *given)))


def two_in_a_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first = ATTENTIONS["matmul"](q, k, v)
    return ATTENTIONS["matmul"](first, k, v)


def test_every_attention_of_a_module_is_found_by_itself() -> None:
    mode = found(two_in_a_row, *inputs())
    assert (mode.scores, mode.values) == ({0, 2}, {1, 3})
    q, k, v = inputs()
    torch.testing.assert_close(rounded(two_in_a_row, q, k, v), expected(expected(q, k, v), k, v), rtol=0, atol=2e-4)


NONE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "no softmax": lambda q, k, v: (q @ k.transpose(1, 2)) @ v,
    "no product behind it": lambda q, k, v: (q @ k.transpose(1, 2)).softmax(-1) * 2,
    "scores of a layer": lambda q, k, v: linear(q, torch.ones(7, 8)).softmax(-1) @ v,
    "a layer between": lambda q, k, v: linear((q @ k.transpose(1, 2)).softmax(-1), torch.eye(7)) @ v,
    "a product of a product": lambda q, k, v: ((q @ k.transpose(1, 2)) @ torch.ones(2, 7, 7)) @ v,
}  # fmt: skip


@pytest.mark.parametrize("what", NONE)
def test_what_is_no_attention_stays_as_it_is(what: str) -> None:
    mode = found(NONE[what], *inputs())
    assert (mode.scores, mode.values) == (set(), set())
    assert torch.equal(rounded(NONE[what], *inputs()), NONE[what](*inputs()))


def test_a_product_beside_an_attention_stays_as_it_is() -> None:
    def beside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([ATTENTIONS["matmul"](q, k, v), q @ torch.ones(2, 8, 8)], -1)

    given = inputs()
    assert torch.equal(rounded(beside, *given)[..., 8:], beside(*given)[..., 8:])
