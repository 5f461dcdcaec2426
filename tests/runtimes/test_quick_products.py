"""Products in half precision, which eager on a processor computes in float32: the same but for the order of sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional

from attnport.runtimes._torch_modes import StepByStep, active

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


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_in_fp16_is_what_the_processor_gives_but_for_the_order_of_its_sums(name: str) -> None:
    x = torch.randn(2, 4, 7, 16, generator=torch.Generator().manual_seed(0)).half()
    own = PRODUCTS[name](x)
    with active(StepByStep()):
        found = PRODUCTS[name](x)
    assert found.dtype == own.dtype
    assert torch.equal(found.isinf(), own.isinf())
    torch.testing.assert_close(found, own, rtol=2**-9, atol=2**-9)
