"""The table of frequencies: its numbers, and what a cast of the module does to it."""

from __future__ import annotations

import torch

from attnport.models.blocks.positions import Frequencies, RotaryPositions
from attnport.runtimes.torch_eager import cast


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
